"""``report``: a stored run as a page or as single figures, with what can be concluded from it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lamina import explain
from lamina.errors import UsageError, nearest
from lamina.explain.counter_comparison import COUNTED
from lamina.explain.launches import Launch, Launches, mean, total
from lamina.explain.wording import kernel_name
from lamina.measure.counters import derived
from lamina.pipeline.uncollected import uncollected
from lamina.record import Counter, KernelRun, Key, LayerRun, Roofs, Run
from lamina.record.comparison import Comparison, Setting, by_setting
from lamina.record.wording import label, place
from lamina.report import still
from lamina.report.figures import STEP, Material, template
from lamina.report.html import write_report
from lamina.report.html.study import write_study
from lamina.report.palette import PHASES
from lamina.report.study_markdown import study_markdown
from lamina.store import Store


@dataclass(frozen=True)
class Stored:
    """A run as it was read."""

    run: Run
    rows: tuple[LayerRun, ...]
    roofs: Roofs | None
    kernels: tuple[KernelRun, ...]
    counters: tuple[Counter, ...]


@dataclass(frozen=True)
class Other:
    """The run to hold this one against: ``run_id`` in ``store``."""

    store: Store
    run_id: str


def write(
    store: Store,
    run_id: str,
    path: str | os.PathLike[str],
    assets: Literal["inline", "dir"] = "inline",
    against: Other | None = None,
) -> Path:
    """Write the report of a run and answer where it is.

    Args:
        run_id: a run's id, its unique beginning, or ``latest``.
        assets: ``inline`` for one self-contained file, ``dir`` to keep the plotting library beside it.
        against: another run, for speedups.

    Raises:
        UsageError: there is no such run, or the run has nothing that a report shows.
    """
    with uncollected():
        it = read(store, run_id)
        if (study := store.study(it.run.id)) is not None:
            return write_study(Path(path), it.run, study)
        epochs, what_ifs = store.epochs(it.run.id), store.what_ifs(it.run.id)
        if not (it.rows or epochs or what_ifs):
            about = f"run {it.run.id} ({it.run.verb}, {it.run.status})"
            raise UsageError(f"{about} has no layers, epochs or what-ifs to report: see 'lamina runs show {it.run.id}'")
        made = material(it, against)
        return write_report(
            path,
            it.run,
            it.rows,
            it.roofs,
            explain.findings(it.rows, it.roofs, it.kernels, it.counters, it.run.environment.get("power_limit_w")),
            made.rooflines,
            made.shares,
            epochs,
            assets,
            material=made,
            headlines=explain.headlines(it.rows, it.roofs, it.kernels, it.counters),
            passages=explain.paragraphs(it.rows, it.roofs, it.kernels, it.counters),
            places=[place(setting) for setting in made.settings],
            coverages=store.coverages(it.run.id),
            what_ifs=what_ifs,
        )


def summary(store: Store, run_id: str) -> str:
    """A study as Markdown, for a pull request; ``latest`` is the latest study: it begins other runs after its own.

    Raises:
        UsageError: there is no such run, or it is no study that has ended.
    """
    studies = store.runs(1, "study") if run_id == "latest" else ()
    run = studies[0] if studies else store.run(run_id)
    study = store.study(run.id)
    if study is None:
        raise UsageError(
            f"run {run.id} ({run.verb}, {run.status}): expected a study that has ended, "
            "one of 'lamina runs ls --verb study'"
        )
    return study_markdown(study)


def draw(
    store: Store,
    run_id: str,
    figure: str,
    path: Path,
    phase: str = STEP,
    batch: int | None = None,
    against: Other | None = None,
) -> Path:
    """Draw one figure of a run as PNG or SVG and answer where it is.

    Args:
        figure: its id, one of ``lamina.report.figures.FIGURES``.
        phase: one phase, or ``step`` for a layer's phases together.
        batch: the batch size to show, where the run has several.

    Raises:
        UsageError: no such run, figure, phase or batch size; the rows differ in more than the batch; or what the
            figure shows was not recorded.
        MissingError: matplotlib is not installed.
    """
    shown = template(figure)
    if phase not in (STEP, *PHASES):
        raise UsageError(f"there is no phase {phase!r}: {nearest(phase, [STEP, *PHASES])}")
    it = read(store, run_id)
    made = material(it, against)
    setting = _setting(made, batch) if shown.by_setting else next(iter(made.settings), ())
    drawn = shown.figure(made.scene(setting, phase if shown.by_phase else STEP))
    of = [it.run.target, str(it.run.environment.get("device", ""))]
    of += [label(setting)] if shown.by_setting and setting else []
    of += [phase] if shown.by_phase and phase != STEP else []
    return still.save(drawn, path, ", ".join(of))


def _setting(made: Material, batch: int | None) -> Setting:
    """The one point of the grid at a batch size; of several batch sizes the largest, unless one is named."""
    batches = sorted({row.batch for row in made.rows})
    if batch is not None and batch not in batches:
        raise UsageError(f"the run has nothing at batch {batch}; expected one of: {', '.join(map(str, batches))}")
    wanted = batch or max(batches, default=0)
    found = [setting for setting, rows in made.settings.items() if any(row.batch == wanted for row in rows)]
    if len(found) > 1:
        raise UsageError(
            f"an image shows one setting, but the run has {len(found)} at batch {wanted} "
            f"({'; '.join(map(label, found))}): the page of 'lamina report' shows them all"
        )
    return found[0] if found else ()


def read(store: Store, run_id: str) -> Stored:
    """A run with everything that figures and explanations need."""
    run = store.run(run_id)
    roofs = next(iter(store.roofs(run.id)), None)
    return Stored(run, store.layers(run.id), roofs, store.kernels(run.id), store.counters(run.id))


def material(it: Stored, against: Other | None = None) -> Material:
    """What the figures of a run are drawn from."""
    launches = Launches(it.kernels, it.counters)
    comparisons: Sequence[Comparison] = ()
    said = ""
    if against is not None:
        other = against.store.run(against.run_id)
        comparisons = explain.compare(against.store.layers(other.id), it.rows)
        said = f"{other.target} on {other.environment.get('device')} (run {other.id})"
    return Material(
        it.rows,
        it.roofs,
        explain.rooflines(it.rows, it.roofs),
        explain.shares(it.rows),
        kernels={key: [launch.kernel for launch in of] for key, of in launches.items()},
        counted=_counted(it.rows, launches) if it.counters else {},
        names={name: kernel_name(name) for name in {kernel.name for kernel in it.kernels}},
        comparisons=comparisons,
        against=said,
    )


def _counted(rows: Sequence[LayerRun], launches: Launches) -> dict[Key, Mapping[str, float | None]]:
    """Metrics and figures of each row, and of each layer in each setting under the phase ``step``."""
    made = {row.key: _values(launches[row.key]) for row in rows if row.phase != STEP}
    for members in by_setting(rows).values():
        layers: dict[str, list[Key]] = {}
        for row in members:
            if row.phase != STEP:
                layers.setdefault(row.layer, []).append(row.key)
        for keys in layers.values():
            together = _values([launch for key in dict.fromkeys(keys) for launch in launches[key]])
            made |= {key._replace(phase=STEP): together for key in keys}
    return made


def _values(launches: Sequence[Launch]) -> Mapping[str, float | None]:
    """Counts added up, all else averaged by time, and the figures that follow from them."""
    metrics: Iterable[str] = dict.fromkeys(metric for launch in launches for metric in launch.counters)
    values = {metric: (total if metric.endswith(COUNTED) else mean)(launches, metric) for metric in metrics}
    return values | derived(values)
