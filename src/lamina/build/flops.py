"""FLOPs of calls that have no closed form, by the formulas of ``torch.utils.flop_counter``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

_COPIES = (torch.ops.aten.clone, torch.ops.aten._unsafe_view)
"""Operators that copy, as ``flatten`` of a channels-last tensor does; views copy nothing."""
Run = Callable[[Sequence[Tensor], Callable[..., Any] | None], Sequence[Tensor]]


class FlopCounter(TorchDispatchMode):
    """Adds the FLOPs of the operators that run.

    ``FlopCounterMode`` is not used: it also hooks every module.
    """

    supports_higher_order_operators = True  # such as `torch.cond`

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0
        self.copies = self.computes = False
        """Whether an operator copied data, and whether one did more than that."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        operator = getattr(func, "_overloadpacket", func)
        formula = flop_registry.get(operator)
        if formula is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=result)
        self.copies |= operator in _COPIES
        self.computes |= operator not in (*_COPIES, torch.ops.prim.device) and not getattr(func, "is_view", False)
        return result


def count(
    run: Run, target: Any, examples: Sequence[Tensor], device: torch.device, weights: Sequence[Tensor]
) -> tuple[int, int, int] | None:
    """FLOPs of the forward, backward data and backward weight phase of a call; ``None`` if an operator has no formula.

    Args:
        run: the call, on input tensors and another target.
        target: the module or function that it calls.
        examples: meta tensors of the shape, strides and dtype of its inputs.
        device: of its inputs.
        weights: its trainable parameters, if the target is a function.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    counter = FlopCounter()
    try:
        inputs = [_fake(mode, tensor, device).requires_grad_(tensor.is_floating_point()) for tensor in examples]
        held: Sequence[Tensor] = ()
        function = None
        if isinstance(target, nn.Module):
            state = {
                name: _fake(mode, tensor, device).requires_grad_(tensor.requires_grad)
                for name, tensor in (*target.named_parameters(), *target.named_buffers())
            }
            held = [tensor for tensor in state.values() if tensor.requires_grad]
            function = lambda *a, **k: functional_call(target, state, a, k)  # noqa: E731
        with mode, counter, torch.enable_grad():
            outputs = run(inputs, function)
    except Exception:  # whatever the code of a user's module raises
        return None
    forward = counter.flops
    if not forward:
        return (0, 0, 0) if counter.copies and not counter.computes else None
    held = held or [weight for weight in weights if isinstance(weight, FakeTensor)]
    data = [tensor for tensor in inputs if tensor.requires_grad]
    roots = [output for output in outputs if output.requires_grad]
    try:
        counts = []
        for wanted in (data, held):
            before = counter.flops
            if wanted and roots:
                with mode, counter:
                    seeds = [torch.empty_like(root) for root in roots]
                    torch.autograd.grad(roots, list(wanted), seeds, retain_graph=True, allow_unused=True)
            counts.append(counter.flops - before)
        missing = weights and not held
        return forward, counts[0], forward if missing else counts[1]
    except Exception:
        return (forward, forward, forward) if weights or held else (forward, 2 * forward, 0)


def _fake(mode: FakeTensorMode, tensor: Tensor, device: torch.device) -> Tensor:
    with mode:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
