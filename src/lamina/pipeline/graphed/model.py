"""``graphed``: forward passes, and backward passes where gradients are needed, as CUDA graphs."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from lamina.errors import LaminaError, UsageError
from lamina.measure.clocks.capture import as_if_captured
from lamina.pipeline.graphed.batch import Batch, ModelState, batch_of, device_of
from lamina.pipeline.graphed.record import WARMUP, Aside, Replayable, memory_pool, record
from lamina.pipeline.graphed.state import Run, State, compare

_log = logging.getLogger(__name__)


def graphed(model: nn.Module, example: Any = None, *, graphs: int = 4, check: bool = True) -> GraphedModel:
    """A model whose passes are replayed as CUDA graphs. It has the parameters and buffers of the model itself.

    Calls within ``torch.no_grad`` or ``torch.inference_mode`` replay a forward pass. Other calls replay a forward pass
    and, from ``loss.backward()``, a backward pass; loss and optimizer stay in the ordinary loop, where
    `graphed_step` captures them too. The first calls of each signature run in eager mode. The next is captured, and
    compared with eager mode.

    Args:
        model: on one CUDA device. What its Python code does beyond tensors happens at capture alone.
        example: a call's input (a tuple: its arguments), to capture now: with the backward pass in training mode.
            Otherwise the first calls are the examples.
        graphs: signatures that are captured; calls with further ones run in eager mode.
        check: compare captured passes with eager mode.

    Raises:
        UnsupportedError: the model is not on a CUDA device, or cannot be captured, with the reason.
        CheckError: captured passes differ from eager mode.

    Example::

        fast = lamina.graphed(model.eval())
        with torch.inference_mode():
            y = fast(x)
    """
    if graphs < 1:
        raise UsageError(f"graphs: expected at least 1, got {graphs}")
    fast = GraphedModel(model, graphs, check)
    if example is not None:
        with torch.set_grad_enabled(model.training):
            fast.capture(*(example if isinstance(example, tuple) else (example,)))
    return fast


@dataclass
class _Recording:
    """Captured passes: the batch that they read, their outputs, and the gradients that they read and write."""

    forward: Replayable
    batch: Batch
    outputs: tuple[Tensor, ...]
    spec: TreeSpec
    constants: tuple[tuple[bool, Any], ...]
    backward: Replayable | None = None
    received: tuple[Tensor | None, ...] = ()
    gradients: tuple[Tensor | None, ...] = ()


class GraphedModel(nn.Module):
    """A model with captured passes; see `graphed`. ``captured`` is the number of signatures that have graphs."""

    def __init__(self, model: nn.Module, graphs: int = 4, check: bool = True):
        super().__init__()
        self.device = device_of(model)
        self.module = model
        self.training = model.training
        self.graphs, self.check = graphs, check
        self._trained = [p for p in model.parameters() if p.requires_grad]
        self._state = ModelState(model)
        self._stream = Aside(self.device)
        # Forward passes would overwrite gradients in memory that they share, before they are used or added to.
        self._pool, self._gradient_pool = memory_pool(), memory_pool()
        self._last: _Recording | None = None
        self._passes = 0
        self._forget(self._state.now())

    @property
    def captured(self) -> int:
        return len(self._recordings)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the model's; the outputs are fresh tensors."""
        if (assumed := self._state.now()) != self._taken_for_granted:
            self._forget(assumed)
        batch = batch_of(args, kwargs)
        signature = self._signature(batch)
        recording = self._recordings.get(signature)
        if recording is None:
            calls = self._calls[signature] = self._calls.get(signature, 0) + 1
            if calls <= WARMUP or self.captured >= self.graphs:
                if calls == WARMUP + 1:
                    _log.warning("graphs=%d signatures are captured; calls with others run in eager mode", self.graphs)
                with self._stream.work():
                    return self.module(*args, **kwargs)
            recording = self._recordings[signature] = self._recorded(batch)
        return self._played(recording, batch)

    def capture(self, *args: Any, **kwargs: Any) -> None:
        """Capture passes for calls like this one now; buffers and random numbers stay as they are."""
        batch = batch_of(args, kwargs)
        before = State(self._state.tensors, self.device)
        try:
            with self._stream.work():
                for _ in range(WARMUP):
                    self._once(batch.static(self.device))
            before.restore()
            self._recordings[self._signature(batch)] = self._recorded(batch)
        finally:
            before.restore()

    def _signature(self, batch: Batch) -> Hashable:
        kind = self.device.type
        cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        return batch.signature(), self._differentiable(batch), cast

    def _differentiable(self, batch: Batch) -> bool:
        wanted = bool(self._trained) or any(tensor.requires_grad for tensor in batch.tensors)
        return torch.is_grad_enabled() and wanted

    def _once(self, batch: Batch, seed: Sequence[Tensor | None] | None = None) -> list[Tensor | None]:
        """A pass in eager mode, and its backward pass where gradients are needed: outputs and gradients."""
        args, kwargs = batch.arguments()
        with _uncached_autocast(self.device):
            results = self.module(*args, **kwargs)
        outputs = [leaf for leaf in tree_flatten(results)[0] if isinstance(leaf, Tensor)]
        if not self._differentiable(batch):
            return [*outputs]
        roots = [y for y in outputs if y.requires_grad]
        received = [torch.ones_like(y) for y in roots] if seed is None else [g for g in seed if g is not None]
        gradients = torch.autograd.grad(roots, self._leaves(batch), received, allow_unused=True) if roots else ()
        return [*(y.detach() for y in outputs), *gradients]

    def _leaves(self, batch: Batch) -> list[Tensor]:
        return [*(tensor for tensor in batch.tensors if tensor.requires_grad), *self._trained]

    def _recorded(self, batch: Batch) -> _Recording:
        static = batch.static(self.device)
        differentiable = self._differentiable(batch)
        with self._stream.work(), _uncached_autocast(self.device), torch.inference_mode(False):

            def forward() -> Any:
                args, kwargs = static.arguments()
                with torch.set_grad_enabled(differentiable):
                    return self.module(*args, **kwargs)

            graph, results = record(forward, self._stream, self._pool)
            leaves, spec = tree_flatten(results)
            outputs = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
            constants = tuple((isinstance(y, Tensor), None if isinstance(y, Tensor) else y) for y in leaves)
            recording = _Recording(graph, static, outputs, spec, constants)
            roots = [y for y in outputs if y.requires_grad]
            if differentiable and roots:
                received = tuple(torch.zeros_like(y) if y.requires_grad else None for y in outputs)
                sent = [gradient for gradient in received if gradient is not None]

                def backward() -> Any:
                    return torch.autograd.grad(roots, self._leaves(static), sent, allow_unused=True)

                recording.backward, found = record(backward, self._stream, self._gradient_pool)
                recording.received, recording.gradients = received, tuple(found)
                recording.outputs = tuple(y.detach() for y in outputs)
        if self.check:
            self._compare(recording, batch)
        return recording

    def _compare(self, recording: _Recording, batch: Batch) -> None:
        """Run the passes in eager mode and by the graphs, each from the same state, which is restored."""
        start = State(self._state.tensors, self.device)
        seed = [None if g is None else torch.randn_like(g) for g in recording.received]
        kind = self.device.type
        cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None

        def run(how: Run) -> list[Tensor]:
            start.restore()
            if how == "graph":
                recording.batch.fill(batch)
                recording.forward.replay()
                results = [y.clone() for y in recording.outputs]
                if recording.backward is not None:
                    self._send(recording, seed)
                    recording.backward.replay()
                    results += [g for g in recording.gradients if g is not None]
            else:
                with self._stream.work(), as_if_captured() if how == "told" else nullcontext():
                    results = [t for t in self._once(batch.static(self.device), seed or None) if t is not None]
            return [t.clone() for t in results] + start.changes()

        try:
            compare(run, "outputs, gradients and buffers", self.module, cast)
        finally:
            start.restore()

    @staticmethod
    def _send(recording: _Recording, received: Sequence[Tensor | None]) -> None:
        for static, gradient in zip(recording.received, received, strict=True):
            if static is not None:
                static.zero_() if gradient is None else static.copy_(gradient)

    def _played(self, recording: _Recording, batch: Batch) -> Any:
        self._passes += 1
        if recording.backward is None:
            recording.batch.fill(batch)
            recording.forward.replay()
            outputs: Sequence[Tensor] = [y.detach().clone() for y in recording.outputs]
        else:
            tensors = [*batch.tensors]
            outputs = _Passes.apply(self, recording, batch, *tensors, *self._trained)  # type: ignore[no-untyped-call]
        rest = iter(outputs)
        return tree_unflatten([next(rest) if is_tensor else c for is_tensor, c in recording.constants], recording.spec)

    def _forget(self, assumed: Hashable) -> None:
        """Drop every graph: what they took for granted has changed."""
        self._unshare()
        self._taken_for_granted, self._last = assumed, None
        self._trained = [p for p in self.module.parameters() if p.requires_grad]
        self._recordings: dict[Hashable, _Recording] = {}
        self._calls: dict[Hashable, int] = {}

    def _unshare(self) -> None:
        """Copy the gradients that autograd has kept from the last backward pass: the next overwrites them."""
        recording = self._last
        if recording is None:
            return
        for parameter, gradient in zip(reversed(self._trained), reversed(recording.gradients), strict=False):
            kept = parameter.grad
            if kept is not None and gradient is not None and kept.data_ptr() == gradient.data_ptr():
                parameter.grad = kept.clone()


class _Passes(torch.autograd.Function):
    """Captured passes as a node of autograd."""

    @staticmethod
    def forward(ctx: Any, model: GraphedModel, recording: _Recording, batch: Batch, *leaves: Tensor) -> Any:
        recording.batch.fill(batch)
        recording.forward.replay()
        ctx.model, ctx.recording, ctx.passes = model, recording, model._passes
        ctx.wanted = [tensor.requires_grad for tensor in leaves[: len(leaves) - len(model._trained)]]
        outputs = tuple(y.clone() for y in recording.outputs)
        plain = [y for y, g in zip(outputs, recording.received, strict=True) if g is None]
        ctx.mark_non_differentiable(*plain)
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *received: Tensor | None) -> Any:
        model, recording = ctx.model, ctx.recording
        if ctx.passes != model._passes:
            raise LaminaError(
                "another pass has overwritten the activations of this backward pass: graphs share their memory; call "
                "backward before the next forward pass, or use the model without graphs for the other pass"
            )
        model._unshare()
        model._send(recording, received)
        recording.backward.replay()
        model._last = recording
        rest = iter(recording.gradients)
        inputs = [next(rest) if wanted else None for wanted in ctx.wanted]
        owned = [g.clone() if g is not None else None for g in inputs]
        return None, None, None, *owned, *(g.detach() if g is not None else None for g in rest)


def _uncached_autocast(device: torch.device) -> torch.autocast:
    """The autocast of the caller without its cache: a weight that was cast outside of a graph would be fixed in it."""
    kind = device.type
    enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    return torch.autocast(kind, dtype, enabled=enabled, cache_enabled=False)
