"""Where changes are executed: one point of a network, with what is known of it as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from lamina import measure, run
from lamina.build import Target
from lamina.build.data import Dataset
from lamina.errors import UnsupportedError
from lamina.explain.predictions import Prediction
from lamina.pipeline.prepared import Prepared
from lamina.pipeline.profile.point import Options, profile_point
from lamina.pipeline.rows import WHOLE_STEP
from lamina.pipeline.watch import unwatched
from lamina.pipeline.what_if.swaps import CLOCKS, Part, Swapped, swap_part, whole, whole_error
from lamina.record import Counter, KernelRun, LayerRun, Roofs, WhatIf
from lamina.spec import Point, Workload

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

    @property
    def repeat(self) -> measure.Repeat:
        """How often parts and the whole are timed."""
        if self.workload.repeat is not None:
            return measure.Repeat(self.workload.repeat, self.workload.repeat, min_time_s=0, max_time_s=float("inf"))
        return measure.Repeat(min_time_s=min(0.1, self.workload.seconds), max_time_s=self.workload.seconds)

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
        self, change: str, detail: str, part: Part, after: Callable[[], nn.Module], predict: Callable[[str], Prediction]
    ) -> Iterator[WhatIf]:
        """A part computed in another way, phase by phase."""
        phases = ["forward", WHOLE_STEP] if self.network.backward else ["forward"]
        if all(self.has(change, detail, part.name, phase) for phase in phases):
            return
        try:
            found = swap_part(
                part, after, self.point.precision, self.network.backward, self.workload.check, self.repeat
            )
        except Exception as error:
            yield self.refused(change, f"{detail}: {part.name}", f"it does not run alone: {run.one_line(error)}")
            return
        for phase, swapped in found.items():
            yield self.record(change, detail, part.name, phase, swapped, predict(phase))

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
        """The whole network with other parts; both steps are timed here, one after the other."""
        if self.has(change, detail, self.whole.layer):
            return
        clock = measure.clock(CLOCKS[self.device.type][1], self.device)
        gradients = self.target.input_gradients
        before = whole(self.network, self.network.module, clock, gradients, self.repeat)
        try:
            module = after()
            error = None
            if check and self.workload.check:
                error = whole_error(self.network, module, self.point.precision)
            found = Swapped(before, whole(self.network, module, clock, gradients, self.repeat), error)
        except Exception as refused:
            found = Swapped(before, reason=run.one_line(refused))
        yield self.record(change, detail, self.whole.layer, WHOLE_STEP, found, prediction)

    def moved(self, change: str, detail: str, point: Point, predict: Predict) -> Iterator[WhatIf]:
        """The whole network at another point: every phase of every layer, and the step."""
        if self.has(change, detail, self.whole.layer):
            return
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
