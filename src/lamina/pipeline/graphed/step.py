"""``graphed_step``: a training step in one CUDA graph."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lamina.errors import UsageError
from lamina.measure.clocks.capture import as_if_captured
from lamina.pipeline.graphed.batch import Batch, ModelState, batch_of, device_of
from lamina.pipeline.graphed.record import WARMUP, Aside, Replayable, memory_pool, record
from lamina.pipeline.graphed.state import Run, State, compare

UNSTEADY = 3
"""Changes of hyperparameters after which the optimizer leaves the graph: it would be captured again and again."""

_log = logging.getLogger(__name__)


def graphed_step(
    model: nn.Module,
    loss: Callable[..., Tensor],
    optimizer: torch.optim.Optimizer,
    *,
    autocast: torch.dtype | None = None,
    scaler: torch.amp.GradScaler | None = None,
    clip_norm: float | None = None,
    accumulate: int = 1,
    graphs: int = 4,
    check: bool = True,
) -> GraphedStep:
    """A training step that is replayed as a CUDA graph: forward, loss, backward, clipping, optimizer.

    The first calls of each signature are ordinary eager steps. The next one is captured, and compared with eager mode
    from the same state. Learning rates may change from step to step. Another change of a hyperparameter, of
    ``requires_grad`` or of training mode captures again.

    Args:
        model: on one CUDA device. What its Python code does beyond tensors happens at capture alone.
        loss: ``loss(model(inputs), targets)`` gives a scalar.
        optimizer: SGD (its fused implementation is used) and optimizers with ``capturable`` run in the graph, others in
            eager mode after it.
        autocast: the dtype of mixed precision.
        scaler: for float16; scaling is captured, the step of the scaler runs in eager mode.
        clip_norm: clip the norm of all gradients to this.
        accumulate: batches for one update of the optimizer; the loss of each is divided by it.
        graphs: signatures that are captured; batches of further ones run in eager mode.
        check: compare a captured step with eager mode, which needs memory for two more copies of the state.

    Raises:
        UnsupportedError: the model is not on a CUDA device; on a call, the step cannot be captured, with the reason.
        UsageError: an argument is out of range.
        CheckError: on a call, a captured step differs from eager mode.

    Example::

        step = lamina.graphed_step(model, nn.functional.cross_entropy, optimizer, autocast=torch.bfloat16)
        for x, y in loader:
            loss = step(x, y)
    """
    for name, value in (("accumulate", accumulate), ("graphs", graphs)):
        if value < 1:
            raise UsageError(f"{name}: expected at least 1, got {value}")
    return GraphedStep(model, loss, optimizer, autocast, scaler, clip_norm, accumulate, graphs, check)


@dataclass
class _Recording:
    """A captured step: its graph, the batch that it reads, its loss, and the gradients that it writes."""

    graph: Replayable
    batch: Batch
    loss: Tensor
    gradients: list[Tensor | None]


class GraphedStep:
    """A training step; see `graphed_step`. ``captured`` is the number of graphs, ``taken`` that of batches."""

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Tensor],
        optimizer: torch.optim.Optimizer,
        autocast: torch.dtype | None,
        scaler: torch.amp.GradScaler | None,
        clip_norm: float | None,
        accumulate: int,
        graphs: int,
        check: bool,
    ):
        self.device = device_of(model)
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self.autocast, self.scaler, self.clip_norm = autocast, scaler, clip_norm
        self.accumulate, self.graphs, self.check = accumulate, graphs, check
        self.taken = 0
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._update_captured = scaler is None and make_capturable(optimizer)
        self._rates = [torch.zeros((), device=self.device) for _ in optimizer.param_groups]
        self._filled: list[Any] = [None] * len(self._rates)
        self._state = ModelState(model)
        self._stream, self._pool = Aside(self.device), memory_pool()
        self._changed = -1
        self._recordings: dict[Hashable, _Recording] = {}
        self._calls: dict[Hashable, int] = {}
        self._update_graph: Replayable | None = None
        self._current: _Recording | None = None
        self._previous: Batch | None = None
        optimizer.zero_grad(set_to_none=True)
        self._forget(self._assumed())

    @property
    def captured(self) -> int:
        return len(self._recordings)

    def __call__(self, inputs: Any, targets: Any) -> Tensor:
        """Take a step on a batch; its loss, on the device.

        Args:
            inputs: the model's argument; a tuple or dict are its arguments.
            targets: what the loss compares with. Tensors on the CPU are copied to the device.
        """
        if (assumed := self._assumed()) != self._taken_for_granted:
            self._forget(assumed)
        batch = batch_of(inputs, targets)
        signature = batch.signature()
        last = (self.taken + 1) % self.accumulate == 0
        recording = self._recordings.get(signature)
        if recording is not None:
            self._replay(recording, batch, last)
        elif self._ready(signature):
            recording = self._recordings[signature] = self._record(batch)
            if not (self.check and self._compare(recording, batch, last)):
                self._replay(recording, batch, last)
        self.taken += 1
        if recording is not None:
            return recording.loss.clone()
        self._previous, self._current = batch, None
        with self._stream.work():
            return self._eager(batch.static(self.device), last)

    def _ready(self, signature: Hashable) -> bool:
        """Whether a batch of this signature is to be captured now: the optimizer has its state, and kernels exist."""
        calls = self._calls[signature] = self._calls.get(signature, 0) + 1
        if calls <= WARMUP or self._updates < WARMUP:
            return False
        if self.captured < self.graphs:
            return True
        if calls == WARMUP + 1:
            _log.warning("graphs=%d signatures are captured; batches of others run in eager mode", self.graphs)
        return False

    def _eager(self, batch: Batch, last: bool, told: bool = False) -> Tensor:
        """A step in eager mode; ``told`` that it is captured are the model and the loss."""
        if self.accumulate == 1:
            self.optimizer.zero_grad(set_to_none=True)
        with as_if_captured() if told else nullcontext():
            loss = self._backward(batch)
        if last:
            self._update()
            self._updates += 1
        return loss

    def _backward(self, batch: Batch) -> Tensor:
        inputs, targets = batch.arguments()
        with torch.autocast(self.device.type, self.autocast) if self.autocast else nullcontext():
            if isinstance(inputs, dict):
                outputs = self.model(**inputs)
            else:
                outputs = self.model(*inputs) if isinstance(inputs, tuple) else self.model(inputs)
            loss = self.loss(outputs, targets)
        scaled = loss / self.accumulate if self.accumulate > 1 else loss
        (self.scaler.scale(scaled) if self.scaler else scaled).backward()
        return loss.detach()

    def _update(self) -> None:
        if self.clip_norm is not None:
            if self.scaler:
                self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self._parameters, self.clip_norm)
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        if self.accumulate > 1:  # in place: captured backward passes add to these tensors
            torch._foreach_zero_([p.grad for p in self._parameters if p.grad is not None])

    def _record(self, batch: Batch) -> _Recording:
        """Capture the step on the batch before this one: the comparison is then on values that capture did not see."""
        previous = self._previous
        if previous is None or previous.signature() != batch.signature():
            previous = batch
        static = previous.static(self.device)
        whole = self._update_captured and self.accumulate == 1

        def step() -> Tensor:
            if self.accumulate == 1:
                self.optimizer.zero_grad(set_to_none=True)
            loss = self._backward(static)
            if whole:
                self._update()
            return loss

        with self._stream.work(), self._tensor_rates():
            graph, loss = record(step, self._stream, self._pool)
            if self._update_captured and not whole and self._update_graph is None:
                self._update_graph, _ = record(self._update, self._stream, self._pool)
        return _Recording(graph, static, loss, [p.grad for p in self._parameters])

    def _replay(self, recording: _Recording, batch: Batch, last: bool) -> None:
        for number, (rate, group) in enumerate(zip(self._rates, self.optimizer.param_groups, strict=True)):
            lr = group["lr"]
            if isinstance(lr, Tensor) or lr != self._filled[number]:  # a launch less in most steps
                rate.fill_(lr)
                self._filled[number] = lr
        if self._current is not recording:  # each graph writes gradients of its own, unless they accumulate
            self._current = recording
            for parameter, gradient in zip(self._parameters, recording.gradients, strict=True):
                parameter.grad = gradient
        recording.batch.fill(batch)
        recording.graph.replay()
        if not last or (self._update_captured and self.accumulate == 1):
            return
        if self._update_graph is not None:
            self._update_graph.replay()
        else:
            self._update()

    def _compare(self, recording: _Recording, batch: Batch, last: bool) -> bool:
        """Take the step in eager mode and then by the graph, each from the same state; the last one counts.

        Returns:
            Whether there was memory for it; otherwise no step was taken.
        """
        start = None
        try:
            start = State(self._changing(), self.device)
            scale = self.scaler.state_dict() if self.scaler else {}

            def run(how: Run) -> list[Tensor]:
                start.restore()
                if self.scaler:
                    self.scaler.load_state_dict(scale)
                if how == "graph":
                    self._current = None
                    self._replay(recording, batch, last)
                    loss = recording.loss
                else:
                    with self._stream.work():
                        loss = self._eager(batch.static(self.device), last, told=how == "told")
                return [loss.clone(), *start.changes()]

            compare(run, "the loss and the updated state", self.model, self.autocast)
        except torch.OutOfMemoryError:
            _log.warning("there is no memory to compare a captured step with eager mode; it is used unchecked")
            if start is not None:
                start.restore()
            self._current = None
            return False
        except Exception:
            if start is not None:
                start.restore()
            self._forget(self._taken_for_granted)
            raise
        return True

    def _changing(self) -> Iterator[Tensor]:
        """The tensors that a step changes; accumulated gradients too."""
        yield from self._state.tensors
        for state in self.optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))
        if self.accumulate > 1:
            yield from (p.grad for p in self._parameters if p.grad is not None)

    def _assumed(self) -> Hashable:
        """What a graph takes for granted; learning rates are read from tensors."""
        groups = self.optimizer.param_groups if self._update_captured else ()
        fixed = tuple(tuple((k, v) for k, v in group.items() if k not in ("params", "lr")) for group in groups)
        return self._state.now(), repr(fixed)

    def _forget(self, assumed: Hashable) -> None:
        """Drop every graph: what they took for granted has changed."""
        self._changed += 1
        if self._changed == UNSTEADY and self._update_captured:
            _log.warning("hyperparameters of the optimizer keep changing: it runs in eager mode, after the graph")
            self._update_captured = False
            assumed = self._assumed()
        self._taken_for_granted = assumed
        self._recordings, self._calls, self._updates = {}, {}, 0
        self._update_graph = self._current = self._previous = None

    @contextmanager
    def _tensor_rates(self) -> Iterator[None]:
        """Learning rates as tensors on the device, for a capture; schedulers go on with numbers."""
        groups = self.optimizer.param_groups if self._update_captured else []
        numbers = [group["lr"] for group in groups]
        try:
            for group, rate in zip(groups, self._rates, strict=False):
                group["lr"] = rate
            yield
        finally:
            for group, number in zip(groups, numbers, strict=True):
                group["lr"] = number


def make_capturable(optimizer: torch.optim.Optimizer) -> bool:
    """Set an optimizer so that its step can be captured; whether that is possible."""
    if not isinstance(optimizer, torch.optim.SGD) and "capturable" not in optimizer.defaults:
        return False
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True
        else:  # SGD reads a learning rate from the device in its fused implementation alone
            group["fused"], group["foreach"] = True, False
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.device != parameter.device:  # counts of steps
                state[name] = value.to(parameter.device)
    return True
