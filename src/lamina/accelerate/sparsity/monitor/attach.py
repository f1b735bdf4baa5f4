"""The monitor itself: hooks that watch the activation maps of a model while it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch.nn.functional as F
from torch import Tensor, nn

from lamina.accelerate.sparsity.monitor.calculator import Calculator, Impl, Ticket, capturing
from lamina.accelerate.sparsity.monitor.chosen import chosen
from lamina.accelerate.sparsity.monitor.exhaustive import Exhaustive
from lamina.accelerate.sparsity.monitor.fused import can_fuse, counted_relu
from lamina.accelerate.sparsity.monitor.observation import Observation
from lamina.accelerate.sparsity.monitor.parameters import Pace, Parameters
from lamina.accelerate.sparsity.monitor.reference import as_matrices
from lamina.accelerate.sparsity.monitor.report import MapReport
from lamina.accelerate.sparsity.monitor.scheduler import Scheduler
from lamina.errors import UsageError


class Monitor:
    """Observes how many zeros a model's activation maps hold, at the iterations that its scheduler picks.

    A training-mode forward of the model is an iteration. A map is what one call of a monitored module answers within
    it: a module that is called again makes another map, ``name:2``. In evaluation mode nothing is observed or counted.
    The training loop never waits: results are taken in at the beginning of a later iteration. Hooks are on the maps'
    modules only from one iteration that observes to the next, while these follow each other, so a map that is new then
    is found at the next of these.

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
        self.observations: list[Observation] = []
        self._latest: dict[str, Observation] = {}
        self._calculator = Calculator(impl)
        self._calls: dict[str, int] = {}
        self._tickets: list[Ticket] = []
        # Maps of this forward to be counted at its end, and their versions.
        self._seen: dict[str, tuple[Tensor, int]] = {}
        # What a captured graph counts: the row of its counts, and the map's rows and columns.
        self._captured: dict[str, tuple[int, int, int]] = {}
        self._wake = 0
        self._begun = self._paused = self._watching = self._capturing = False
        self._modules = chosen(model, modules)
        self._on_maps: list[Callable[[], None]] = []
        self._on_model = [
            model.register_forward_pre_hook(self._before),
            model.register_forward_hook(self._after, always_call=True),
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.finish()
        self.detach()

    def detach(self) -> None:
        """Take the hooks off the model; what was observed stays."""
        for handle in self._on_model:
            handle.remove()
        self._on_model.clear()
        self._unhook()

    def finish(self) -> None:
        """Wait for the results that are under way. Not for use within a training loop."""
        for ticket, found in self._calculator.drain():
            self._take_in(ticket, found)
        self._wake = 0

    def take(self) -> list[Observation]:
        """The observations since last asked."""
        taken, self.observations = self.observations, []
        return taken

    def latest(self, name: str) -> Observation | None:
        """What was last observed of a map, if anything; never waits. The density that an adaptive layer asks for."""
        return self._latest.get(name)

    def report(self) -> tuple[MapReport, ...]:
        """How each map stands, in the order in which the model calls them."""
        state, of = self.scheduler.state, MapReport.of
        return tuple(of(entry, state, self.scheduler.parameters) for entry in self.scheduler.maps)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Neither count nor observe within."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    @contextmanager
    def replay(self) -> Iterator[bool]:
        """One iteration that replays a CUDA graph; answers whether to replay the graph that counts.

        Raises:
            UsageError: no forward was captured with this monitor attached.
        """
        if not self._captured:
            raise UsageError("monitor: expected a forward captured in a CUDA graph while the monitor is attached")
        self._begin()
        wanted = [name for name in self._captured if self._is_wanted(name)]
        yield bool(wanted)
        for name in wanted:
            self._ask(name, *self._captured[name])
        self._end()

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

    def _before(self, module: nn.Module, args: Any) -> None:
        if self._paused or not self.model.training:
            return
        self._capturing = capturing()
        self._begun = not self._capturing
        if self._begun:
            self._begin()
        self._watching = self._capturing or self.iteration >= self._wake
        if not self._watching:
            self._unhook()
        elif not self._on_maps:
            self._on_maps.extend(self._hook(name, each) for name, each in self._modules.items())

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        self._watching = False
        self._calls.clear()
        seen, self._seen = self._seen, {}
        for name, (row, x) in self._calculator.count_together(seen, self.channels).items():
            self._note(name, row, *_sizes(x, self.channels))
        if self._begun:
            self._end()
        self._begun = self._capturing = False
        if self.fuse or self._wake > self.iteration + 1:
            self._unhook()

    def _unhook(self) -> None:
        for remove in self._on_maps:
            remove()
        self._on_maps.clear()

    def _hook(self, name: str, module: nn.Module) -> Callable[[], None]:
        """Watch a module; answer what ends it."""
        # A module under way has read its forward already; one with a forward of its own may do more than ReLU.
        if self.fuse and type(module) is nn.ReLU and module is not self.model and "forward" not in vars(module):
            module.forward = partial(self._relu, name, module.inplace)  # type: ignore[method-assign]
            return partial(delattr, module, "forward")
        # Prepended, so that it runs before the model's own where the model is itself a map.
        see = partial(self._see, name, type(module) is nn.ReLU)
        return module.register_forward_hook(see, prepend=True).remove

    def _see(self, module: str, is_relu: bool, watched: nn.Module, args: Any, output: Any) -> None:
        if not self._watching:
            return
        if not isinstance(output, Tensor):
            raise UsageError(f"monitor: {module}: expected a module that answers a tensor, got {type(output).__name__}")
        name = self._call(module)
        if not self._counts(name, output):
            return
        # Autograd holds what ReLU gave as it is until backward, so counting it can wait; what others gave may change.
        if is_relu and output.requires_grad and self._calculator.can_wait(name, output, self.channels):
            self._seen[name] = output, output._version
        else:
            self._count(name, output)

    def _relu(self, module: str, inplace: bool, x: Tensor) -> Tensor:
        name = self._call(module)
        if not (self._counts(name, x) and self._calculator.by_kernel(x) and can_fuse(x, self.channels)):
            y = F.relu(x, inplace)
            if self._counts(name, y):
                self._count(name, y)
            return y

        def count(here: Tensor, there: Tensor) -> None:
            self._note(name, self._calculator.count(name, here, relu_to=there), *_sizes(here, 1))

        return counted_relu(x, inplace, self.channels, count)

    def _call(self, module: str) -> str:
        """The name of the map that this call of a module makes."""
        self._calls[module] = call = self._calls.get(module, 0) + 1
        return module if call == 1 else f"{module}:{call}"

    def _counts(self, name: str, output: Tensor) -> bool:
        """Whether to count a map now."""
        if not output.numel():
            return False
        if self._capturing:
            if not self._calculator.knows(name):
                raise UsageError(f"monitor: {name}: run an iteration before capturing one: counting needs memory")
            return True
        return self._is_wanted(name)

    def _note(self, name: str, row: int, rows: int, columns: int) -> None:
        """Remember that a map's counts are in a row of the calculator's."""
        if self._capturing:
            self._captured[name] = (row, rows, columns)
        else:
            self._ask(name, row, rows, columns)

    def _count(self, name: str, output: Tensor) -> None:
        matrices = as_matrices(output.detach(), self.channels)
        self._note(name, self._calculator.count(name, matrices), *_sizes(matrices, 1))

    def _is_wanted(self, name: str) -> bool:
        return self.scheduler.is_due(name, self.iteration)

    def _ask(self, name: str, row: int, rows: int, columns: int) -> None:
        process = self.scheduler.observing(name, self.iteration)
        self._tickets.append(Ticket(name, row, rows, columns, self.iteration, process))

    def _begin(self) -> None:
        self.iteration += 1
        arrived = [*self._calculator.arrived()]
        for ticket, found in arrived:
            self._take_in(ticket, found)
        if arrived:
            self._wake = self.scheduler.wakes()

    def _end(self) -> None:
        if self._tickets:
            self._calculator.send(self._tickets)
            self._tickets.clear()
            self._wake = self.scheduler.wakes()

    def _take_in(self, ticket: Ticket, found: Observation) -> None:
        self.observations.append(found)
        self._latest[ticket.name] = found
        self.scheduler.observed(ticket.name, ticket.process, found.sparsity)


def _sizes(x: Tensor, channels: int) -> tuple[int, int]:
    """Rows and columns of a map."""
    rows = x.shape[channels] if x.ndim > 1 else 1
    return rows, x.numel() // rows
