"""Where changes are executed: one point of a network, with what is known of it as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import nn

from lamina import measure, run
from lamina.build import Target
from lamina.build.data import Dataset
from lamina.errors import DeviceLostError, UnsupportedError
from lamina.explain.predictions import Prediction
from lamina.pipeline.guard import Guard, Lost
from lamina.pipeline.prepared import Prepared
from lamina.pipeline.profile.point import Options, profile_point
from lamina.pipeline.rows import WHOLE_STEP
from lamina.pipeline.timing import short_repeat_of
from lamina.pipeline.watch import Watch, unwatched
from lamina.pipeline.what_if.equal import Known, module_signature, signature
from lamina.pipeline.what_if.swaps import CLOCKS, Part, Swapped, swap_part, time_parts, whole, whole_error
from lamina.record import Counter, KernelRun, LayerRun, Roofs, Timing, WhatIf
from lamina.spec import Point, Workload

T = TypeVar("T")
ALONE = "dense, alone"
"""What a part that runs as it is, and by itself, is called where it is watched."""
Mark = tuple[str, str, str, str, str, int]
Elsewhere = Callable[[Point, Options, str], Sequence[str]]
"""From a point, how it runs and a database to the command line of a process that profiles it into that."""
Predict = Callable[[Sequence[LayerRun], Sequence[KernelRun], Sequence[Counter], Roofs | None], Prediction]


def mark(one: WhatIf) -> Mark:
    """What makes a what-if unique within a run."""
    return one.change, one.detail, one.layer, one.phase, one.precision, one.batch


@dataclass(frozen=True)
class Baseline:
    """A point as it is: what predictions start from."""

    rows: tuple[LayerRun, ...]
    kernels: tuple[KernelRun, ...]
    counters: tuple[Counter, ...]
    roofs: Roofs | None


@dataclass(frozen=True)
class Stage:
    """One point of a network, ready to be changed.

    Attributes:
        workload: without patterns of layers: the whole network is profiled.
        network: its ``selected`` layers are changed and listed; changes of the whole network are made in any case.
        done: the what-ifs that are there already.
        lost: layers, and the changes of them that an earlier process did not survive, to the reasons.
        known: what was measured of it so far.
        progress: is called with the fraction of the current change that is done.
    """

    target: Target
    workload: Workload
    point: Point
    options: Options
    data: Dataset | None
    device: torch.device
    device_name: str
    network: Prepared
    base: Baseline
    done: Mapping[Mark, WhatIf] = field(default_factory=dict)
    elsewhere: Elsewhere | None = None
    lost: Lost = field(default_factory=dict)
    watch: Watch = unwatched
    known: Known = field(default_factory=Known)
    progress: Callable[[float], object] = lambda done: None

    @property
    def whole(self) -> LayerRun:
        """The row of the whole step.

        Raises:
            UnsupportedError: the network did not run.
        """
        row = next((row for row in self.base.rows if row.phase == WHOLE_STEP), None)
        if row is None or row.timing is None:
            raise UnsupportedError(f"the network itself has no time: {row.reason if row else 'it was not measured'}")
        return row

    @property
    def gpu(self) -> bool:
        """Whether there is one."""
        return self.device.type == "cuda"

    def rows_of(self, layers: Sequence[str], phase: str = WHOLE_STEP) -> list[LayerRun]:
        """The rows of some layers, of one phase; their whole ``step`` is all their phases."""
        return [
            row
            for row in self.base.rows
            if row.layer in layers and row.phase != WHOLE_STEP and phase in (row.phase, WHOLE_STEP)
        ]

    def predicted(self, predict: Predict, rows: Sequence[LayerRun]) -> Prediction:
        """A prediction as the share of the rows' own time, which other clocks see otherwise."""
        found = predict(rows, self.base.kernels, self.base.counters, self.base.roofs)
        of = [row for row in rows if row.phase == WHOLE_STEP] or rows
        before = sum(row.timing.median_us for row in of if row.timing)
        if found.us is not None and not before:
            return Prediction(None, "no kernel runs here")
        return Prediction(None if found.us is None else found.us / before, found.rule)

    def record(
        self, change: str, detail: str, layer: str, phase: str, found: Swapped, prediction: Prediction
    ) -> WhatIf:
        """A what-if from what was measured and the share of its time that was predicted to stay."""
        detail += " (channels last)" if self.point.layout == "nhwc" else ""
        us = None if prediction.us is None else prediction.us * found.before.median_us
        return WhatIf(
            change, detail, layer, phase, self.point.precision, self.network.batch, found.before, us, prediction.rule,
            found.after, found.rel_error, found.reason,
        )  # fmt: skip

    def refused(self, change: str, detail: str, reason: str) -> WhatIf:
        """A change of the whole network that was not executed."""
        row = self.whole
        assert row.timing is not None
        nothing = Prediction(None, "not executed")
        return self.record(change, detail, row.layer, WHOLE_STEP, Swapped(row.timing, reason=reason), nothing)

    def has(self, change: str, detail: str, layer: str, phase: str = WHOLE_STEP) -> bool:
        """Whether a what-if is there already."""
        detail += " (channels last)" if self.point.layout == "nhwc" else ""
        return (change, detail, layer, phase, self.point.precision, self.network.batch) in self.done

    def swap(
        self,
        change: str,
        detail: str,
        part: Part,
        after: Callable[[], nn.Module],
        predict: Callable[[str], Prediction],
        by_values: bool = False,
    ) -> Iterator[WhatIf]:
        """A part computed by another module, phase by phase.

        Of equal parts one is measured, unless the time of the replacement depends on the values of its input
        (``by_values``).
        """
        if all(self.has(change, detail, part.name, phase) for phase in self._phases):
            return
        try:
            before = self._before(part)
        except DeviceLostError:
            raise
        except Exception as error:
            yield self.refused(change, f"{detail}: {part.name}", f"it does not run alone: {run.one_line(error)}")
            return
        key = None
        try:
            module = after()
            if not by_values:
                key = change, detail, signature(part), module_signature(module)
            if key is None or key not in self.known.swapped:
                with self.guarded(part.name, f"{change}, {detail}"):
                    found = swap_part(
                        part,
                        module,
                        before,
                        self.point.precision,
                        self.network.backward,
                        self.workload.check,
                        self.repeat([part]),
                    )
                self.known.swapped[key] = found
            found = self.known.swapped[key]
        except DeviceLostError:
            raise
        except Exception as refused:
            found = {phase: Swapped(time, reason=run.one_line(refused)) for phase, time in before.items()}
            if isinstance(refused, UnsupportedError):
                self.known.swapped[key] = found
        for phase, swapped in found.items():
            yield self.record(change, detail, part.name, phase, swapped, predict(phase))

    @contextmanager
    def guarded(self, layer: str, impl: str) -> Iterator[None]:
        """Watch over a layer, or the whole network, as a change makes it.

        Raises:
            UnsupportedError: it must not run.
            DeviceLostError: it made the GPU unusable.
        """
        if (layer, impl) in self.lost:
            raise UnsupportedError(self.lost[layer, impl])
        with Guard(self.target.name, impl, self.device, self.watch)(layer, "what-if"):
            yield

    def counted(self, items: Sequence[T]) -> Iterator[T]:
        """The items of a change, each of which advances its progress."""
        for done, item in enumerate(items):
            self.progress(done / len(items))
            yield item

    def time_parts(self, change: str, parts: Sequence[Part], details: Callable[[Part], Sequence[str]]) -> None:
        """Time the parts that a change swaps as they are, all at once; equal ones and known ones once.

        Where that fails, `swap` times each by itself.
        """
        unknown = [
            part
            for part in parts
            if not all(self.has(change, one, part.name, phase) for one in details(part) for phase in self._phases)
        ]
        try:
            todo = {key: part for part in unknown if (key := signature(part)) not in self.known.parts}
            if not todo:
                return
            with self.guarded(self.whole.layer, ALONE):
                times = time_parts(todo, self.network.backward, self.repeat([*todo.values()]))
        except DeviceLostError:
            raise
        except Exception:  # whatever the code of a user's module raises
            return
        self.known.parts.update({key: time for key, time in times.items() if not isinstance(time, Exception)})

    def _before(self, part: Part) -> dict[str, Timing]:
        key = signature(part)
        if key not in self.known.parts:
            with self.guarded(part.name, ALONE):
                (found,) = time_parts({key: part}, self.network.backward, self.repeat([part])).values()
            if isinstance(found, Exception):
                raise found
            self.known.parts[key] = found
        return self.known.parts[key]

    def repeat(self, parts: Sequence[Part] = ()) -> measure.Repeat:
        """How often to time some parts, or the whole step."""
        rows = [self.rows_of(part.layers) for part in parts] or [[self.whole]]
        slowest = max(sum(row.timing.median_us for row in of if row.timing) for of in rows)
        return short_repeat_of(self.workload, slowest)

    @property
    def _phases(self) -> list[str]:
        return ["forward", WHOLE_STEP] if self.network.backward else ["forward"]

    def step(self) -> Timing:
        """The time of the whole step as it is; measured once."""
        clock = measure.clock(CLOCKS[self.device.type][1], self.device)
        if clock.name not in self.known.steps:
            self.known.steps[clock.name] = self.time_step(self.network.module, clock)
        return self.known.steps[clock.name]

    def time_step(self, module: nn.Module, clock: measure.Clock) -> Timing:
        """The time of the whole step, or of inference, computed by ``module``.

        Raises:
            RuntimeError, UnsupportedError: it did not run.
        """
        return whole(self.network, module, clock, self.target.input_gradients, self.repeat())

    @property
    def partial(self) -> bool:
        """Whether some layers are not to be changed."""
        return len(self.network.selected) < len(self.network.trace.calls)

    def selects(self, layers: Sequence[str]) -> bool:
        """Whether any of these layers is to be changed."""
        return not self.network.selected.isdisjoint(layers)

    def swap_whole(
        self, change: str, detail: str, after: Callable[[], nn.Module], prediction: Prediction, check: bool = True
    ) -> Iterator[WhatIf]:
        """The whole network with other parts."""
        if self.has(change, detail, self.whole.layer):
            return
        clock = measure.clock(CLOCKS[self.device.type][1], self.device)
        before = self.step()
        try:
            module = after()
            error = None
            with self.guarded(self.whole.layer, f"{change}, {detail}"):
                if check and self.workload.check:
                    error = whole_error(self.network, module, self.point.precision)
                found = Swapped(before, self.time_step(module, clock), error)
        except DeviceLostError:
            raise
        except Exception as refused:
            found = Swapped(before, reason=run.one_line(refused))
        yield self.record(change, detail, self.whole.layer, WHOLE_STEP, found, prediction)

    def moved(self, change: str, detail: str, point: Point, predict: Predict) -> Iterator[WhatIf]:
        """The whole network at another point: every phase of every layer, and the step."""
        if self.has(change, detail, self.whole.layer):
            return
        with self.guarded(self.whole.layer, f"{change}, {detail}"):
            found = profile_point(
                self.target, self.workload, point, self.options, self.data, self.device, self.device_name, unwatched
            )
        yield from self.paired(change, detail, self.base.rows, found.rows, predict)

    def paired(
        self, change: str, detail: str, before: Sequence[LayerRun], after: Sequence[LayerRun], predict: Predict
    ) -> Iterator[WhatIf]:
        """Every row ``before`` a change with its like ``after`` it."""
        by_place = {(row.layer, row.phase): row for row in after}
        for row in before:
            if row.timing is None or not (row.phase == WHOLE_STEP or self.selects([row.layer])):
                continue
            new = by_place.get((row.layer, row.phase))
            reason = "" if new and new.timing else new.reason if new else "this phase does not run there"
            swapped = Swapped(row.timing, new.timing if new else None, new.rel_error if new else None, reason)
            rows = before if row.phase == WHOLE_STEP else [row]
            yield self.record(change, detail, row.layer, row.phase, swapped, self.predicted(predict, rows))
