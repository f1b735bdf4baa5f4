"""The monitor: samples the activation maps of a model while it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lamina.accelerate.common.operands import observable
from lamina.accelerate.training.sparsity_monitor.calculator import Arrival, Calculator, Impl, MapInfo, Ticket, capturing
from lamina.accelerate.training.sparsity_monitor.exhaustive import Exhaustive
from lamina.accelerate.training.sparsity_monitor.fused import relu_and_count
from lamina.accelerate.training.sparsity_monitor.modules import check_paces, select_modules
from lamina.accelerate.training.sparsity_monitor.observation import Observation
from lamina.accelerate.training.sparsity_monitor.parameters import Pace, Parameters, require
from lamina.accelerate.training.sparsity_monitor.report import MapReport
from lamina.accelerate.training.sparsity_monitor.scheduler import Scheduler
from lamina.errors import UsageError

BATCHED_ITERATIONS = 8
"""Iterations whose counts are copied to the host together if no decision depends on them, to save launches."""


@dataclass(eq=False, slots=True)
class MonitoredModule:
    """A module that is monitored.

    Attributes:
        calls: how often it was called in this forward pass.
        deferrable: whether its output could be counted at the end of the forward pass, when it was last sampled.
        changed: whether its output was once changed in place before that.
    """

    module: str
    calls: int = 0
    deferrable: bool = False
    changed: bool = False

    def map(self, call: int) -> str:
        """The name of the map that a call outputs."""
        return self.module if call == 1 else f"{self.module}:{call}"


class Monitor:
    """Samples the zeros of a model's activation maps, at the iterations that its scheduler selects.

    A training-mode forward of the model is an iteration. A map is the output of one call of a monitored module within
    it: a module that is called again makes another map, ``name:2``. In evaluation mode nothing is observed or counted.
    The training loop never synchronizes: results are read at the beginning of a later iteration. In an iteration that
    observes, ``nn.ReLU`` modules have another forward and others have hooks; where nothing is observed they have not,
    so a map that is new then is found when one observes again.

    Whole iterations in a CUDA graph: run a few iterations, capture one graph as it is, which counts every map, and one
    under :meth:`paused`, which counts none, then replay one or the other under :meth:`replay`.

    Args:
        model: any module; its computation is unchanged.
        parameters: those of the scheduler.
        modules: names of the modules to monitor; if left out, every ReLU, or the other activations of a model without.
        paces: schedules of some maps, by name or pattern of names: ``{"features.*": Pace.parse("every:10")}``.
        exhaustive: sample every map at every iteration, for comparison; the parameters are then ignored.
        channels: the dimension of channels in a map: 1 for images, -1 for tokens.
        fuse: fused ReLU and count: ``nn.ReLU`` modules compute and count in one kernel when they are sampled.
        impl: the implementation of the count.

    Raises:
        UsageError: there is nothing to monitor, a name or pattern fits no monitored module, or an argument is of
            another type.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Parameters | None = None,
        *,
        modules: Iterable[str] | None = None,
        paces: Mapping[str, Pace] | None = None,
        exhaustive: bool = False,
        channels: int = 1,
        fuse: bool = False,
        impl: Impl = "auto",
    ):
        require(nn.Module, "an nn.Module", model=model)
        require(Integral, "the dimension of channels", channels=channels)
        self.model, self.channels, self.fuse = model, channels, fuse
        self.scheduler = Exhaustive() if exhaustive else Scheduler(parameters, paces)
        self.iteration = -1
        self._observations: list[Observation] = []
        # Results that have not been read, and the last one of each map.
        self._unread: list[Arrival] = []
        self._latest: dict[str, Arrival] = {}
        self._pending: list[Arrival] = []  # arrived within their own iteration
        self._calculator = Calculator(impl, 1 if self.scheduler.decides else BATCHED_ITERATIONS)
        # Maps that have been counted in this forward, and those to be counted at its end: the call, and their versions.
        self._counted: list[MapInfo] = []
        self._deferred: list[tuple[MonitoredModule, int, Tensor, int]] = []
        # Maps that a captured graph counts.
        self._captured: dict[str, MapInfo] = {}
        self._next_due = 0
        self._paused, self._watching, self._capturing = 0, False, False
        self._modules = [(MonitoredModule(name), module) for name, module in select_modules(model, modules).items()]
        self._named = modules is not None
        check_paces(paces or {}, [monitored.module for monitored, _ in self._modules])
        self._hooks: list[RemovableHandle] = []
        # Attributes of ReLUs, and their forward while they are sampled.
        self._forwards: list[tuple[dict[str, Any], Callable[[Tensor], Tensor]]] = []
        self._root = next((monitored for monitored, module in self._modules if module is model), None)
        # The forward of the model, its instance attribute of that name if it had one, and its replacement.
        self._model_forward, self._own_forward = model.forward, vars(model).get("forward")
        self._monitored_forward = self._forward
        vars(model)["forward"] = self._monitored_forward

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.finish()
        self.detach()

    def detach(self) -> None:
        """Restore the forward of the model; observations are kept."""
        self._paused += 1  # permanently, in case this forward has been wrapped by another
        self._unhook()
        if vars(self.model).get("forward") is self._monitored_forward:
            del vars(self.model)["forward"]
            if self._own_forward is not None:
                vars(self.model)["forward"] = self._own_forward

    def finish(self) -> None:
        """Synchronize to read all results in flight. Not for use within a training loop."""
        self._record([*self._pending, *self._calculator.drain()])
        self._pending.clear()
        self._next_due = 0

    @property
    def observations(self) -> list[Observation]:
        """The observations since :meth:`take`."""
        self._poll()
        for ticket, words in self._unread:
            self._observations += ticket.read(words)
        self._unread.clear()
        return self._observations

    def take(self) -> list[Observation]:
        """Return and clear the observations."""
        taken, self._observations = self.observations, []
        return taken

    def latest(self, name: str) -> Observation | None:
        """The last observation of a map, if any, without synchronizing; the density source of adaptive layers."""
        self._poll()
        if name not in self._latest:
            return None
        ticket, words = self._latest[name]
        return next(found for found in ticket.read(words) if found.name == name)

    def report(self) -> tuple[MapReport, ...]:
        """The state of each map, in the order in which the model calls them."""
        self._poll()
        state, of = self.scheduler.state, MapReport.of
        return tuple(of(entry, state, self.scheduler.parameters) for entry in self.scheduler.maps)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Neither count nor sample within."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    @contextmanager
    def replay(self) -> Iterator[bool]:
        """One iteration that replays a CUDA graph; yields whether to replay the graph that counts.

        Raises:
            UsageError: no forward was captured with this monitor attached.
        """
        if not self._captured:
            raise UsageError("monitor: expected a forward captured in a CUDA graph while the monitor is attached")
        self._begin()
        self._calculator.flush()  # a graph always writes to the first row of counts
        wanted = [info for name, info in self._captured.items() if self.scheduler.is_due(name, self.iteration)]
        yield bool(wanted)
        self._counted += wanted
        self._end()
        self._calculator.flush()

    def state_dict(self) -> dict[str, Any]:
        """The state for resuming, as plain data; synchronizes to read results in flight."""
        self.finish()
        return {"iteration": self.iteration, "scheduler": self.scheduler.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned.

        Raises:
            UsageError: it was saved with other parameters.
        """
        self.scheduler.load_state_dict(state["scheduler"])
        self.iteration, self._next_due = state["iteration"], 0

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        """Replaces the forward of the model: a hook would have several times the overhead."""
        if self._paused or not self.model.training or not self._begin_forward():
            return self._model_forward(*args, **kwargs)
        try:
            output = self._model_forward(*args, **kwargs)
            if self._root is not None:
                self._on_output(self._root, self.model, args, output)
            return output
        finally:
            self._finish_forward()

    def _begin_forward(self) -> bool:
        """Begin an iteration; returns whether to sample it, and installs hooks if so."""
        self._capturing = capturing()
        if not self._capturing:
            self._begin()
            if self.iteration < self._next_due:
                if self._hooks or self._forwards:
                    self._unhook()
                return False
        self._watching = True
        if any("forward" in attributes for attributes, _ in self._forwards):
            self._unhook()  # the forward of a ReLU has been replaced meanwhile
        if not self._hooks and not self._forwards:
            self._hook()
        for attributes, forward in self._forwards:
            attributes.setdefault("forward", forward)
        return True

    def _finish_forward(self) -> None:
        """Count deferred maps, and send the counts."""
        self._watching = False
        self._release()
        for monitored, _ in self._modules:
            monitored.calls = 0
        deferred, self._deferred = self._deferred, []
        self._counted += self._calculator.count_batch([*self._unchanged(deferred)], self.channels)
        if self._capturing:
            self._captured |= {info.name: info for info in self._counted}
            self._counted.clear()
        else:
            self._end()

    def _hook(self) -> None:
        """Install hooks on the monitored modules."""
        relu = self._counting_relu if self.fuse else self._relu
        for monitored, module in self._modules:
            # The model itself is already running; a ReLU with a forward of its own may compute something else.
            if type(module) is nn.ReLU and module is not self.model and "forward" not in vars(module):
                self._forwards.append((vars(module), partial(relu, monitored, module)))
            elif module is not self.model:
                self._hooks.append(module.register_forward_hook(partial(self._on_output, monitored), prepend=True))

    def _unhook(self) -> None:
        for handle in self._hooks:
            handle.remove()
        self._hooks.clear()
        self._release()
        self._forwards.clear()

    def _release(self) -> None:
        """Restore the forward of ReLUs."""
        for attributes, forward in self._forwards:
            if attributes.get("forward") is forward:
                del attributes["forward"]

    def _on_output(self, monitored: MonitoredModule, watched: nn.Module, args: Any, output: Any) -> None:
        if not self._watching:
            return
        if not isinstance(output, Tensor):
            if not self._named:
                return
            name = monitored.module
            raise UsageError(f"monitor: {name}: expected a module that returns a tensor, got {type(output).__name__}")
        if not observable(output):
            return
        monitored.calls += 1
        self._count_or_defer(monitored, output, type(watched) is nn.ReLU)

    def _relu(self, monitored: MonitoredModule, relu: nn.ReLU, x: Tensor) -> Tensor:
        """Replaces the forward of a sampled ReLU.

        It does little, since CPU caches are cold between one ReLU and the next: the end of the forward pass processes
        all maps in a row.
        """
        y = torch.relu_(x) if relu.inplace else torch.relu(x)
        monitored.calls += 1
        if monitored.deferrable and y.requires_grad:
            self._deferred.append((monitored, monitored.calls, y, y._version))
        else:
            self._count_or_defer(monitored, y, True)
        return y

    def _counting_relu(self, monitored: MonitoredModule, relu: nn.ReLU, x: Tensor) -> Tensor:
        """Replaces the forward of a sampled ReLU: fused ReLU and count."""
        name = monitored.map(monitored.calls + 1)
        if not self._is_due(name, x):
            return self._relu(monitored, relu, x)
        info = self._calculator.known(name, x, self.channels, relu=True)
        if not info.direct:
            return self._relu(monitored, relu, x)
        monitored.calls += 1
        y = relu_and_count(x, relu.inplace, partial(self._calculator.count_relu, info, self.channels))
        self._counted.append(info)
        return y

    def _count_or_defer(self, monitored: MonitoredModule, output: Tensor, is_relu: bool) -> None:
        """Count a map, now or at the end of the forward pass."""
        name = monitored.map(monitored.calls)
        if not self._is_due(name, output):
            return
        # Autograd keeps the output of a ReLU until backward, so its count can be deferred; others may change.
        if is_relu and output.requires_grad and not monitored.changed:
            monitored.deferrable = self._calculator.known(name, output, self.channels).direct
            if monitored.deferrable:
                self._deferred.append((monitored, monitored.calls, output, output._version))
                return
        self._counted.append(self._calculator.count(name, output, self.channels))

    def _unchanged(
        self, deferred: Iterable[tuple[MonitoredModule, int, Tensor, int]]
    ) -> Iterator[tuple[MapInfo, Tensor]]:
        """The deferred maps that are unchanged; a module whose output was changed is not deferred again."""
        for monitored, call, x, version in deferred:
            name = monitored.map(call)
            if x._version != version:
                monitored.deferrable, monitored.changed = False, True
            elif self._is_due(name, x):
                info = self._calculator.known(name, x, self.channels)
                if info.direct:
                    yield info, x
                else:
                    self._counted.append(self._calculator.count(name, x, self.channels))

    def _is_due(self, name: str, output: Tensor) -> bool:
        """Whether to count a map now."""
        if not output.numel():
            return False
        if self._capturing:
            if not self._calculator.knows(name):
                raise UsageError(f"monitor: {name}: expected an iteration before capture, which allocates memory")
            return True
        return self.scheduler.is_due(name, self.iteration)

    def _begin(self) -> None:
        self.iteration += 1
        if self._calculator.in_flight or self._pending:
            self._receive()

    def _end(self) -> None:
        if self._counted:
            maps, now = tuple(self._counted), self.iteration
            self._counted.clear()
            processes = tuple([self.scheduler.observing(info.name, now) for info in maps])
            self._calculator.send(Ticket(now, maps, processes))
            self._next_due = self.scheduler.next_due_iteration()

    def _poll(self) -> None:
        """Request all counts, and read those that have arrived."""
        self._calculator.flush()
        self._receive()

    def _receive(self) -> None:
        """Read the counts of earlier iterations that have arrived."""
        arrived = [*self._pending, *self._calculator.arrived()]
        self._pending = [each for each in arrived if each[0].iteration >= self.iteration]
        if arrived[: len(arrived) - len(self._pending)]:
            self._record(arrived[: len(arrived) - len(self._pending)])
            self._next_due = self.scheduler.next_due_iteration()

    def _record(self, arrived: Iterable[Arrival]) -> None:
        for ticket, words in arrived:
            self._unread.append((ticket, words))
            for info, process, sparsity in zip(ticket.maps, ticket.processes, ticket.sparsities(words), strict=True):
                self._latest[info.name] = ticket, words
                self.scheduler.observed(info.name, process, sparsity)
