"""The monitor itself: hooks that watch the activation maps of a model while it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lamina.accelerate.training.sparsity_monitor.calculator import Arrival, Calculator, Impl, Known, Ticket, capturing
from lamina.accelerate.training.sparsity_monitor.chosen import chosen
from lamina.accelerate.training.sparsity_monitor.exhaustive import Exhaustive
from lamina.accelerate.training.sparsity_monitor.fused import counted_relu
from lamina.accelerate.training.sparsity_monitor.observation import Observation
from lamina.accelerate.training.sparsity_monitor.parameters import Pace, Parameters
from lamina.accelerate.training.sparsity_monitor.report import MapReport
from lamina.accelerate.training.sparsity_monitor.scheduler import Scheduler
from lamina.errors import UsageError

TURNS = 8
"""Iterations whose counts come to the host together where nothing is decided by them: what runs in a row runs fast."""


@dataclass(eq=False, slots=True)
class Place:
    """A module that is monitored.

    Attributes:
        calls: how often it was called in this forward.
        waits: what it gives can be counted at the end of the forward; it could be, when it was looked at last.
        changed: what it gave has once been changed before that.
    """

    module: str
    calls: int = 0
    waits: bool = False
    changed: bool = False

    def map(self, call: int) -> str:
        """The name of the map that a call makes."""
        return self.module if call == 1 else f"{self.module}:{call}"


class Monitor:
    """Observes how many zeros a model's activation maps hold, at the iterations that its scheduler picks.

    A training-mode forward of the model is an iteration. A map is what one call of a monitored module answers within
    it: a module that is called again makes another map, ``name:2``. In evaluation mode nothing is observed or counted.
    The training loop never waits: results are taken in at the beginning of a later iteration. In an iteration that
    observes, ``nn.ReLU`` modules have another forward and others have hooks; where nothing is observed they have not,
    so a map that is new then is found when one observes again.

    Whole iterations in a CUDA graph: run a few iterations, capture one graph as it is, which counts every map, and one
    under :meth:`paused`, which counts none, then replay one or the other under :meth:`replay`.

    Args:
        model: any module; it is only watched.
        parameters: those of the scheduler.
        modules: names of the modules to monitor, every ReLU if left out.
        paces: a period and duration of its own for some maps.
        exhaustive: observe every map at every iteration, for comparison; the parameters are then of no account.
        channels: the axis of channels in a map: 1 for images, -1 for tokens.
        fuse: where the kernel counts, ``nn.ReLU`` modules compute and count in one pass when they are observed.
        impl: who counts.

    Raises:
        UsageError: there is nothing to monitor, or a name is unknown.
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
        self.model, self.channels, self.fuse = model, channels, fuse
        self.scheduler = Exhaustive() if exhaustive else Scheduler(parameters, paces)
        self.iteration = -1
        self._observations: list[Observation] = []
        # Results that nobody has asked for yet, and the last one that has a map.
        self._unread: list[Arrival] = []
        self._latest: dict[str, Arrival] = {}
        self._early: list[Arrival] = []  # came while their iteration was the last
        self._calculator = Calculator(impl, 1 if self.scheduler.decides else TURNS)
        # Maps that have been counted in this forward, and those to be counted at its end: the call, and their versions.
        self._counted: list[Known] = []
        self._seen: list[tuple[Place, int, Tensor, int]] = []
        # What a captured graph counts.
        self._captured: dict[str, Known] = {}
        self._wake = 0
        self._paused, self._watching, self._capturing = 0, False, False
        self._modules = [(Place(name), module) for name, module in chosen(model, modules).items()]
        self._hooks: list[RemovableHandle] = []
        # Attributes of ReLUs, and what is their forward while they are observed.
        self._forwards: list[tuple[dict[str, Any], Callable[[Tensor], Tensor]]] = []
        self._root = next((place for place, module in self._modules if module is model), None)
        # The model's own forward, what was its attribute if anything was, and what it is now.
        self._inner, self._before = model.forward, vars(model).get("forward")
        self._outer = self._forward
        vars(model)["forward"] = self._outer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.finish()
        self.detach()

    def detach(self) -> None:
        """Give the model its own forward back; what was observed stays."""
        self._paused += 1  # for good, where somebody has put another forward around this one
        self._unhook()
        if vars(self.model).get("forward") is self._outer:
            del vars(self.model)["forward"]
            if self._before is not None:
                vars(self.model)["forward"] = self._before

    def finish(self) -> None:
        """Wait for the results that are under way. Not for use within a training loop."""
        self._note([*self._early, *self._calculator.drain()])
        self._early.clear()
        self._wake = 0

    @property
    def observations(self) -> list[Observation]:
        """What was observed since :meth:`take`."""
        self._catch_up()
        for ticket, words in self._unread:
            self._observations += ticket.read(words)
        self._unread.clear()
        return self._observations

    def take(self) -> list[Observation]:
        """The observations since last asked."""
        taken, self._observations = self.observations, []
        return taken

    def latest(self, name: str) -> Observation | None:
        """What was last observed of a map, if anything; never waits. The density that an adaptive layer asks for."""
        self._catch_up()
        if name not in self._latest:
            return None
        ticket, words = self._latest[name]
        return next(found for found in ticket.read(words) if found.name == name)

    def report(self) -> tuple[MapReport, ...]:
        """How each map stands, in the order in which the model calls them."""
        self._catch_up()
        state, of = self.scheduler.state, MapReport.of
        return tuple(of(entry, state, self.scheduler.parameters) for entry in self.scheduler.maps)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Neither count nor observe within."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    @contextmanager
    def replay(self) -> Iterator[bool]:
        """One iteration that replays a CUDA graph; answers whether to replay the graph that counts.

        Raises:
            UsageError: no forward was captured with this monitor attached.
        """
        if not self._captured:
            raise UsageError("monitor: expected a forward captured in a CUDA graph while the monitor is attached")
        self._begin()
        self._calculator.flush()  # a graph writes to where the first turn's counts go
        wanted = [known for name, known in self._captured.items() if self.scheduler.is_due(name, self.iteration)]
        yield bool(wanted)
        self._counted += wanted
        self._end()
        self._calculator.flush()

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed training needs to be monitored on, as plain data; waits for what is under way."""
        self.finish()
        return {"iteration": self.iteration, "scheduler": self.scheduler.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave.

        Raises:
            UsageError: it was saved with other parameters.
        """
        self.scheduler.load_state_dict(state["scheduler"])
        self.iteration, self._wake = state["iteration"], 0

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model does instead of its forward: a hook on it would cost several times as much."""
        if self._paused or not self.model.training or not self._watches():
            return self._inner(*args, **kwargs)
        try:
            output = self._inner(*args, **kwargs)
            if self._root is not None:
                self._see(self._root, self.model, args, output)
            return output
        finally:
            self._finish_forward()

    def _watches(self) -> bool:
        """Begin an iteration; answer whether it is to be observed, and watch the maps if it is."""
        self._capturing = capturing()
        if not self._capturing:
            self._begin()
            if self.iteration < self._wake:
                if self._hooks or self._forwards:
                    self._unhook()
                return False
        self._watching = True
        if any("forward" in attributes for attributes, _ in self._forwards):
            self._unhook()  # somebody has given a ReLU a forward of its own meanwhile
        if not self._hooks and not self._forwards:
            self._hook()
        for attributes, forward in self._forwards:
            attributes.setdefault("forward", forward)
        return True

    def _finish_forward(self) -> None:
        """Count what has waited, and send what was counted."""
        self._watching = False
        self._release()
        for place, _ in self._modules:
            place.calls = 0
        seen, self._seen = self._seen, []
        self._counted += self._calculator.count_together([*self._still(seen)], self.channels)
        if self._capturing:
            self._captured |= {known.name: known for known in self._counted}
            self._counted.clear()
        else:
            self._end()

    def _hook(self) -> None:
        """Watch the maps."""
        relu = self._counting_relu if self.fuse else self._relu
        for place, module in self._modules:
            # A module under way has read its forward already; one with a forward of its own may do more than ReLU.
            if type(module) is nn.ReLU and module is not self.model and "forward" not in vars(module):
                self._forwards.append((vars(module), partial(relu, place, module)))
            elif module is not self.model:
                self._hooks.append(module.register_forward_hook(partial(self._see, place), prepend=True))

    def _unhook(self) -> None:
        for handle in self._hooks:
            handle.remove()
        self._hooks.clear()
        self._release()
        self._forwards.clear()

    def _release(self) -> None:
        """Give ReLUs their own forward back."""
        for attributes, forward in self._forwards:
            if attributes.get("forward") is forward:
                del attributes["forward"]

    def _see(self, place: Place, watched: nn.Module, args: Any, output: Any) -> None:
        if not self._watching:
            return
        if not isinstance(output, Tensor):
            name = place.module
            raise UsageError(f"monitor: {name}: expected a module that answers a tensor, got {type(output).__name__}")
        place.calls += 1
        self._look(place, output, type(watched) is nn.ReLU)

    def _relu(self, place: Place, relu: nn.ReLU, x: Tensor) -> Tensor:
        """What an observed ReLU does instead of its forward.

        As little as can be, for other code runs between one ReLU and the next, and each finds the host's caches cold:
        the end of the forward pass looks at all maps in a row.
        """
        y = torch.relu_(x) if relu.inplace else torch.relu(x)
        place.calls += 1
        if place.waits and y.requires_grad:
            self._seen.append((place, place.calls, y, y._version))
        else:
            self._look(place, y, True)
        return y

    def _counting_relu(self, place: Place, relu: nn.ReLU, x: Tensor) -> Tensor:
        """What an observed ReLU does instead of its forward where it counts what it writes."""
        name = place.map(place.calls + 1)
        if not self._counts(name, x):
            return self._relu(place, relu, x)
        known = self._calculator.known(name, x, self.channels, relu=True)
        if not known.direct:
            return self._relu(place, relu, x)
        place.calls += 1
        y = counted_relu(x, relu.inplace, partial(self._calculator.count_relu, known, self.channels))
        self._counted.append(known)
        return y

    def _look(self, place: Place, output: Tensor, is_relu: bool) -> None:
        """Count a map, now or at the end of the forward pass."""
        name = place.map(place.calls)
        if not self._counts(name, output):
            return
        # Autograd holds what ReLU gave as it is until backward, so counting it can wait; what others gave may change.
        if is_relu and output.requires_grad and not place.changed:
            place.waits = self._calculator.known(name, output, self.channels).direct
            if place.waits:
                self._seen.append((place, place.calls, output, output._version))
                return
        self._counted.append(self._calculator.count(name, output, self.channels))

    def _still(self, seen: Iterable[tuple[Place, int, Tensor, int]]) -> Iterator[tuple[Known, Tensor]]:
        """Of maps that have waited those to be counted that are as they were; one that is not will not wait again."""
        for place, call, x, version in seen:
            name = place.map(call)
            if x._version != version:
                place.waits, place.changed = False, True
            elif self._counts(name, x):
                known = self._calculator.known(name, x, self.channels)
                if known.direct:
                    yield known, x
                else:
                    self._counted.append(self._calculator.count(name, x, self.channels))

    def _counts(self, name: str, output: Tensor) -> bool:
        """Whether to count a map now."""
        if not output.numel():
            return False
        if self._capturing:
            if not self._calculator.knows(name):
                raise UsageError(f"monitor: {name}: run an iteration before capturing one: counting needs memory")
            return True
        return self.scheduler.is_due(name, self.iteration)

    def _begin(self) -> None:
        self.iteration += 1
        if self._calculator.under_way or self._early:
            self._take_in()

    def _end(self) -> None:
        if self._counted:
            maps, now = tuple(self._counted), self.iteration
            self._counted.clear()
            processes = tuple([self.scheduler.observing(known.name, now) for known in maps])
            self._calculator.send(Ticket(now, maps, processes))
            self._wake = self.scheduler.wakes()

    def _catch_up(self) -> None:
        """Ask for all counts, and take in what has arrived."""
        self._calculator.flush()
        self._take_in()

    def _take_in(self) -> None:
        """Take in what has arrived of iterations before this one."""
        arrived = [*self._early, *self._calculator.arrived()]
        self._early = [each for each in arrived if each[0].iteration >= self.iteration]
        if arrived[: len(arrived) - len(self._early)]:
            self._note(arrived[: len(arrived) - len(self._early)])
            self._wake = self.scheduler.wakes()

    def _note(self, arrived: Iterable[Arrival]) -> None:
        for ticket, words in arrived:
            self._unread.append((ticket, words))
            for known, process, sparsity in zip(ticket.maps, ticket.processes, ticket.sparsities(words), strict=True):
                self._latest[known.name] = ticket, words
                self.scheduler.observed(known.name, process, sparsity)
