"""Tracing of a network to a list of layers, by module hooks and a torch function mode.

One forward pass over fake tensors records every call that creates a tensor: leaf modules, and functions called outside
of them (residual adds, flattening, attention). Where the path depends on values, or TorchScript is called, it is a
pass over the real tensors.
Parameters and buffers are kept by identity, so each call can be run again separately on real tensors.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.parameter import is_lazy

from lamina.build.calls import Call, Slot, Trace, tensors_of
from lamina.build.flops import count
from lamina.build.recorder import Recorder
from lamina.errors import UnsupportedError
from lamina.spec.layers import Opaque

HINTS = {
    "more than 1 value per channel": "set a larger --batch-size",
    "scalar types: Long, Int": "give each input with its type, such as --input tokens=int64:128",
}
"""What a user can do, by a part of PyTorch's error."""

OTHER_INPUTS = "if it expects other inputs, give them: --input-size 3x224x224, --input tokens=int64:128, or input_size="
"""What a user can do about any other error of the network."""

SCRIPTED: tuple[Any, ...] = (torch._C.ScriptFunction, torch._C.ScriptMethod)
"""What runs TorchScript."""


@contextmanager
def _without_tracebacks() -> Iterator[None]:
    """PyTorch logs the traceback of an operation that fails on fake tensors, which is handled here."""
    logger = logging.getLogger(FakeTensorMode.__module__)
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def _without_torchscript() -> Iterator[None]:
    """TorchScript's fused kernels read the memory of their tensors, which fake ones do not have: it is refused."""

    def refuse(*_: object, **__: object) -> None:
        raise UnsupportedError("TorchScript needs the values of its inputs")

    before = [vars(kind)["__call__"] for kind in SCRIPTED]
    for kind in SCRIPTED:
        kind.__call__ = refuse
    try:
        yield
    finally:
        for kind, call in zip(SCRIPTED, before, strict=True):
            kind.__call__ = call


@_without_tracebacks()
def trace(network: nn.Module, *inputs: Tensor) -> Trace:
    """Trace the layers of a network.

    Control flow that depends on values is followed for these inputs. A write into part of a tensor is recorded as a new
    tensor for later readers; views of the old one that were taken before do not see it. A network that runs, but not
    under the hooks of a trace (nested tensors, transforms of `torch.func`), is one layer, and `Trace.whole` says why.

    Args:
        network: any module; its in-place activations become out-of-place ones, and lazy layers get their sizes.
        inputs: example inputs of the right shape, dtype and device; values matter only to control flow.

    Raises:
        UnsupportedError: the network does not accept this input, or on the meta device its control flow needs values.
    """
    for module in network.modules():
        if getattr(module, "inplace", False) is True:
            module.inplace = False  # type: ignore[assignment]
    try:
        if any(is_lazy(parameter) for parameter in network.parameters()):
            _run_once(network, inputs)
        fake, sizes_only = FakeTensorMode(allow_non_fake_inputs=True), any(tensor.is_meta for tensor in inputs)
        try:
            with nullcontext() if sizes_only else _without_torchscript():
                found = _recorded(network, [fake.from_tensor(tensor.detach()) for tensor in inputs], fake)
            leaves = [leaf for call in found.calls for leaf in call.template] if found else []
            # A constant of a function that is not seen, such as one of an extension in C++, needs its value.
            if any(isinstance(leaf, FakeTensor) for leaf in leaves) and not sizes_only:
                found = _recorded(network, [tensor.detach().clone() for tensor in inputs], nullcontext())
        except Exception:
            if sizes_only:
                raise
            found = _recorded(network, [tensor.detach().clone() for tensor in inputs], nullcontext())
        if found is None:  # it made layers in this pass, as it does in its first
            _run_once(network, inputs)
            found = _recorded(network, [tensor.detach().clone() for tensor in inputs], nullcontext())
        if found is None:
            raise UnsupportedError("it makes layers in every forward pass")
    except Exception as error:
        if whole := _recorded_whole(network, inputs):
            reason = (str(error).splitlines() or [""])[0]
            return replace(whole, whole=f"{type(error).__name__}: {reason}")
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in inputs)
        hints = [hint for part, hint in HINTS.items() if part in str(error)]
        if not hints and not isinstance(error, UnsupportedError):
            hints = [OTHER_INPUTS]
        reason = "; ".join([f"{type(error).__name__}: {error}", *hints])
        raise UnsupportedError(f"{type(network).__name__} could not be traced on input {shapes}: {reason}") from error
    return found


def _recorded(
    network: nn.Module, examples: Sequence[Tensor], mode: AbstractContextManager[object], whole: bool = False
) -> Trace | None:
    """The trace of one forward pass, after which modules, buffers and random state are as before.

    ``None`` if it made layers of which nothing remains.
    """
    own = set(network.modules())
    recorder = Recorder(network, whole)
    for example in examples:
        recorder.slot(example)
    devices = {example.device.index for example in examples if example.device.type == "cuda"}
    functions = nullcontext() if whole else recorder
    with torch.random.fork_rng(sorted(devices)), _unchanged(network), mode, recorder.hooked(), functions:
        with torch.compiler.set_stance("force_eager"):  # `torch.cond` compiles its branches, hooks included
            result = network(*examples)
        if not own.issuperset(network.modules()):
            return None
    outputs = tuple(recorder.numbers(tensors_of(result)))
    with _unchanged(network):
        calls = tuple(_counted(call, recorder.slots, examples[0].device) for call in recorder.calls)
    return Trace(calls, tuple(recorder.slots), tuple(range(len(examples))), outputs)


def _recorded_whole(network: nn.Module, inputs: Sequence[Tensor]) -> Trace | None:
    """The trace of a network as one layer; ``None`` if the network itself does not run."""
    if any(tensor.is_meta for tensor in inputs):
        return None
    with suppress(Exception):
        return _recorded(network, [tensor.detach().clone() for tensor in inputs], nullcontext(), whole=True)
    return None


def _counted(call: Call, slots: Sequence[Slot], device: torch.device) -> Call:
    """The call with the FLOPs of its phases, if it has no closed form."""
    layer = call.resolved.layer
    if not isinstance(layer, Opaque) or layer.alias or not call.inputs:
        return call
    used = [slots[number] for number in call.inputs]
    examples = [torch.empty_strided(slot.shape, slot.stride, dtype=slot.dtype, device="meta") for slot in used]
    flops = count(call.run, call.target, examples, device, call.weights)
    if flops is None:
        return call
    return replace(call, resolved=replace(call.resolved, layer=layer.model_copy(update={"flops": flops})))


def _run_once(network: nn.Module, inputs: Sequence[Tensor]) -> None:
    with torch.no_grad():
        network(*(tensor.detach().clone() for tensor in inputs))


@contextmanager
def _unchanged(network: nn.Module) -> Iterator[None]:
    """Put attributes, modules and the values of buffers back that a forward pass sets."""
    values = {buffer: buffer.detach().clone() for buffer in network.buffers()}
    modules = [module for module in network.modules() if not isinstance(module, torch.jit.ScriptModule)]
    before = [dict(vars(module)) for module in modules]
    # Parameters, hooks, and what a module collects.
    members = [
        {name: value.copy() for name, value in attributes.items() if type(value) in (dict, OrderedDict, list)}
        for attributes in before
    ]
    try:
        yield
    finally:
        for module, attributes, inside in zip(modules, before, members, strict=True):
            vars(module).clear()
            vars(module).update(attributes)
            for name, own in inside.items():
                member = attributes[name]
                member.clear()
                (member.extend if isinstance(member, list) else member.update)(own)
        with torch.no_grad():
            for buffer, value in values.items():
                buffer.copy_(value)
