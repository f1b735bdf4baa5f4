"""``explain`` and ``compare``: stored runs as findings and paragraphs, or held against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lamina import explain as rules
from lamina.errors import UsageError, nearest
from lamina.explain import CounterComparison, KernelComparison, Paragraph
from lamina.record import Counter, Finding, KernelRun, LayerRun, Run
from lamina.record.comparison import Comparison
from lamina.store import Store


@dataclass(frozen=True)
class Explained:
    """What can be concluded from a run: findings, most useful first, and paragraphs for a person.

    ``headlines`` are the answer, at most five lines for each setting; there are none of a single layer.
    """

    run: Run
    findings: tuple[Finding, ...]
    paragraphs: tuple[Paragraph, ...]
    headlines: tuple[Finding, ...] = ()


def explain(store: Store, run_id: str, layer: str = "") -> Explained:
    """Explain a run, or one ``layer`` of it; shares are of the whole step all the same.

    Args:
        run_id: a run's id, its unique beginning, or ``latest``.

    Raises:
        UsageError: there is no such run, it has no layers, or no layer of that name.
    """
    side = look_up(store, run_id)
    known = {row.layer for row in side.rows}
    if layer and layer not in known:
        raise UsageError(f"run {side.run.id} has no layer {layer!r}; {nearest(layer, known)}")
    roofs = next(iter(store.roofs(side.run.id)), None)
    limit_w = side.run.environment.get("power_limit_w")
    found = rules.findings(side.rows, roofs, side.kernels, side.counters, limit_w)
    text = rules.paragraphs(side.rows, roofs, side.kernels, side.counters, layer=layer or None)
    top = () if layer else rules.headlines(side.rows, roofs, side.kernels, side.counters)
    return Explained(side.run, tuple(it for it in found if not layer or it.layer == layer), text, top)


@dataclass(frozen=True)
class Side:
    """One of two runs to be compared, at one ``batch`` size if it is given."""

    run: Run
    rows: tuple[LayerRun, ...]
    kernels: tuple[KernelRun, ...] = ()
    counters: tuple[Counter, ...] = ()
    batch: int | None = None

    @property
    def title(self) -> str:
        """What it is."""
        device = self.run.environment.get("device")
        return f"{self.run.target} on {device}" + (f", batch {self.batch}" if self.batch else "")

    @property
    def column(self) -> str:
        """What its column is called."""
        return f"{self.run.id} b{self.batch}" if self.batch else self.run.id


def look_up(store: Store, run_id: str, batch: int | None = None) -> Side:
    """A run's rows, kernels and counters, at one ``batch`` size if it is given.

    Raises:
        UsageError: there is no such run, or it has no layers, or none at that batch size.
    """
    run = store.run(run_id)
    rows = store.layers(run.id)
    if not rows:
        ended = f"it ended before one was measured; see 'lamina runs show {run.id}'"
        wanted = ended if run.verb in ("bench", "profile") else "expected one of 'lamina bench' or 'lamina profile'"
        raise UsageError(f"run {run.id} ({run.verb}) has no layers: {wanted}")
    kept = tuple(row for row in rows if batch is None or row.batch == batch)
    if not kept:
        known = ", ".join(map(str, sorted({row.batch for row in rows})))
        raise UsageError(f"run {run.id} has nothing at batch {batch}; expected one of: {known}")
    return Side(run, kept, store.kernels(run.id), store.counters(run.id), batch)


def compare(
    store: Store, first: str, second: str, *, other: Store | None = None, layer: str = "", per_item: bool = False
) -> tuple[Comparison, ...]:
    """The times of a run, phase by phase, beside those of another.

    Args:
        first: a run's id, its unique beginning, or ``latest``: the baseline.
        second: the other run.
        other: the database of the other run, if it is not ``store``.
        layer: only this layer.
        per_item: divide times by the batch size.

    Raises:
        UsageError: there is no such run, it has no layers, or no layer of that name.
    """
    return compare_layers(look_up(store, first), look_up(other or store, second), layer, per_item)


def compare_layers(a: Side, b: Side, layer: str = "", per_item: bool = False) -> tuple[Comparison, ...]:
    """Phase by phase, of one ``layer`` or of all, a difference inside the noise being none.

    ``per_item`` divides times by the batch.
    """
    a, b = _of_layer(a, b, layer)
    if per_item:
        a, b = (replace(side, rows=rules.per_item(side.rows)) for side in (a, b))
    return rules.compare(a.rows, b.rows)


def compare_kernels(a: Side, b: Side, layer: str = "") -> tuple[KernelComparison, ...]:
    """Which kernels each phase launches.

    Raises:
        UsageError: a run has no kernels.
    """
    for side in (a, b):
        if not side.kernels:
            raise UsageError(f"run {side.run.id} has no kernels: expected one of 'lamina profile'")
    a, b = _of_layer(a, b, layer)
    return rules.compare_kernels(a.rows, a.kernels, b.rows, b.kernels)


def compare_counters(
    a: Side, b: Side, layer: str = "", metrics: Sequence[str] = (), per_item: bool = False
) -> tuple[CounterComparison, ...]:
    """Metric by metric; ``per_item`` divides counts by the batch.

    Raises:
        UsageError: a run has no counters, or neither has one of the ``metrics``.
    """
    for side in (a, b):
        if not side.counters:
            raise UsageError(f"run {side.run.id} has no counters: expected one of 'lamina profile --counters core'")
    known = {one.metric for one in (*a.counters, *b.counters)}
    for metric in metrics:
        if metric not in known:
            raise UsageError(f"--metric: {metric!r} was not counted: {nearest(metric, known)}")
    a, b = _of_layer(a, b, layer)
    return rules.compare_counters(
        a.rows, a.kernels, a.counters, b.rows, b.kernels, b.counters, metrics, per_item=per_item
    )


def _of_layer(a: Side, b: Side, layer: str) -> tuple[Side, Side]:
    if not layer:
        return a, b
    known = {row.layer for row in (*a.rows, *b.rows)}
    if layer not in known:
        raise UsageError(f"--layer: neither run has a layer {layer!r}; {nearest(layer, known)}")
    of = [replace(side, rows=tuple(row for row in side.rows if row.layer == layer)) for side in (a, b)]
    return of[0], of[1]
