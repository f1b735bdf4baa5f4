"""One layer on its actual tensors: its outputs, and the gradients of its inputs and weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from lamina.run.protocols import Call
from lamina.spec import Phase

Results = Sequence[Tensor | None]
"""What a phase of a layer computes."""


class LayerGraph:
    """One layer on its leaves, with the autograd graph of its forward pass for the backward phases.

    ``target`` is the module that computes it, ``None`` for a function.
    """

    def __init__(self, call: Call, leaf: dict[int, Tensor], received: dict[int, Tensor], target: nn.Module | None):
        self.leaf, self.received, self.target = leaf, received, target
        changed = None if target is call.module else target
        self._weights = tuple(p for p in changed.parameters() if p.requires_grad) if changed else call.weights
        tensors = [leaf[n] for n in call.inputs]
        self.run: Callable[[], tuple[Tensor, ...]] = lambda: call.run(tensors, target)
        self._data = [tensor for tensor in leaf.values() if tensor.requires_grad]
        self.outputs = self.run()
        sent = [(out, received[n]) for n, out in zip(call.outputs, self.outputs, strict=True) if n in received]
        self._roots = [(out, gradient) for out, gradient in sent if out.requires_grad]

    @property
    def parameters(self) -> int:
        """Number of trainable parameters."""
        return sum(weight.numel() for weight in self._weights)

    def gradients(self, wanted: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        """Gradients with respect to the given leaves or weights; none where no output depends on them."""
        if not self._roots:
            return (None,) * len(wanted)
        roots, gradients = zip(*self._roots, strict=True)
        return torch.autograd.grad(roots, wanted, gradients, retain_graph=True, allow_unused=True)

    def phase(self, phase: Phase) -> Callable[[], object] | None:
        """The callable of a phase, or ``None`` if nothing needs its gradient."""
        if phase is Phase.FORWARD:
            return self.run
        wanted = self._data if phase is Phase.BACKWARD_DATA else self._weights
        return (lambda: self.gradients(wanted)) if wanted and self._roots else None

    def results(self, phase: Phase) -> tuple[Tensor | None, ...]:
        """The results of a phase, for comparison."""
        if phase is Phase.FORWARD:
            return self.outputs
        call = self.phase(phase)
        return call() if call else ()  # type: ignore[return-value]
