"""``reproduce``: a paper's table or figure, its published values beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lamina.errors import UsageError
from lamina.pipeline.bench import bench
from lamina.pipeline.targets import find
from lamina.pipeline.watch import Watch, unwatched
from lamina.record import Run
from lamina.record.beside import Beside
from lamina.spec import Phase, ResolvedLayer, Workload, show
from lamina.spec.published import SCALES, Published, PublishedValue
from lamina.store import Store


@dataclass(frozen=True)
class Reproduced:
    """A table or figure with our values; ``run`` holds the measurements, where it needed any."""

    entry: Published
    rows: tuple[Beside, ...]
    run: Run | None


def reproduce(
    entry: Published,
    workload: Workload,
    store: Store | None,
    cache: Path,
    command: str = "",
    watch: Watch = unwatched,
) -> Reproduced:
    """Count or measure what an entry's table shows.

    Entries that ``counts`` need no store and run nothing. For the others every layer of the recipe is measured
    by ``workload``.

    Raises:
        UsageError: the entry has to measure and no store was given.
    """
    target, _ = find(entry.recipe)
    rows = _beside(entry, target.resolve(workload.batch[0] if workload.batch else None))
    if entry.counts:
        return Reproduced(entry, rows, None)
    if store is None:
        raise UsageError(f"{entry.id} has to be measured: expected a store, got none")
    return Reproduced(entry, rows, bench(target, workload, store, cache=cache, command=command, watch=watch))


def _beside(entry: Published, layers: Sequence[ResolvedLayer]) -> tuple[Beside, ...]:
    named = {layer.name: layer for layer in layers}
    return tuple(_compare(value, named) for value in entry.values)


def _compare(value: PublishedValue, layers: Mapping[str, ResolvedLayer]) -> Beside:
    if value.layer not in layers:
        raise UsageError(f"published layer {value.layer!r} is not in the recipe, which has {', '.join(layers)}")
    layer = layers[value.layer]
    match value.quantity:
        case "operations":
            count = layer.cost(Phase.FORWARD).flops
            return Beside(value, f"{count / SCALES.get(value.unit, 1):.4g}", value.agrees(count))
        case "input":
            shape = show(layer.inputs[0])
            return Beside(value, shape, shape == value.value)
        case other:
            raise UsageError(f"{value.layer}: no rule computes the quantity {other!r}")
