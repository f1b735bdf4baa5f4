"""``sweep``: simulates all layers of a grid of configurations and compares each design with the baseline."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.errors import Fault, SpecError, UsageError
from lamina.pipeline.simulate import DEFAULTS, OWN, Planner, Simulated, Watch, simulate
from lamina.simulate.design_space import Design, DesignPoint, Workload, designs
from lamina.simulate.engines import Engine
from lamina.simulate.jobs import DEVICE, Job, Result, Settings, Value
from lamina.spec.grid import Grid
from lamina.store import Store

WORK = ("network", "layer", "batch")
"""Settings of the workload; the others belong to the design."""
SHOWN = 20
Group = tuple[Workload, tuple[tuple[str, Value], ...]]
"""A workload and its swept settings: a design."""


@dataclass(frozen=True)
class SweepPlan:
    """The jobs of a grid by design, and those of each design's baseline."""

    grid: Grid
    jobs: dict[Group, list[Job]]
    baselines: dict[Group, list[Job]]

    @property
    def all(self) -> list[Job]:
        """All jobs without duplicates, those of the baselines first."""
        return _once([job for group in (*self.baselines.values(), *self.jobs.values()) for job in group])


@dataclass(frozen=True)
class Swept:
    """A finished sweep: all results, and the designs with their Pareto fronts."""

    simulated: Simulated
    designs: tuple[Design, ...]

    @property
    def front(self) -> tuple[Design, ...]:
        """The Pareto-optimal designs of each workload, sorted by SRAM."""
        return tuple(sorted((one for one in self.designs if one.front), key=lambda one: one.sram_bytes))


def plan(grid: Grid, source: str = "grid") -> SweepPlan:
    """The jobs of a grid: those of each design and of its baseline.

    ``[baseline]`` overrides settings of each design; without it, the first value of every swept setting does.

    Raises:
        SpecError: the faults of all configurations, without duplicates.
    """
    planner, faults = Planner(), dict[str, None]()
    jobs: dict[Group, list[Job]] = {}
    baselines: dict[Group, list[Job]] = {}
    for settings in grid.configurations():
        try:
            planned = planner.jobs(settings, source)
            compared = planner.jobs(_baseline(grid, settings), source)
        except SpecError as error:
            faults |= dict.fromkeys(fault.message for fault in error.faults)
        except UsageError as error:
            faults[str(error)] = None
        else:
            swept = tuple((key, settings[key]) for key in grid.swept if key not in WORK)
            group = (planned[0].network, planned[0].batch), swept
            jobs.setdefault(group, []).extend(planned)
            baselines.setdefault(group, []).extend(compared)
    if faults:
        more = [Fault(f"and {len(faults) - SHOWN} more faults")] if len(faults) > SHOWN else []
        raise SpecError(source, [*(Fault(message) for message in [*faults][:SHOWN]), *more])
    return SweepPlan(
        grid,
        {group: _once(each) for group, each in jobs.items()},
        {group: _once(each) for group, each in baselines.items()},
    )


def sweep(
    planned: SweepPlan,
    store: Store,
    engine: Engine,
    *,
    command: str = "",
    resume: bool = False,
    fresh: bool = False,
    watch: Watch | None = None,
) -> Swept:
    """Simulate the jobs of a plan that have no stored result, and compare the designs.

    Arguments are those of :func:`lamina.pipeline.simulate.simulate`.
    """
    grid = planned.grid
    done = simulate(
        planned.all,
        store,
        engine,
        target=grid.name,
        config=grid.to_dict() | {"jobs": len(planned.all)},
        verb="sweep",
        command=command,
        resume=resume,
        fresh=fresh,
        watch=watch,
    )
    by_key = {result.job.key: result for result in done.results}

    def results(jobs: list[Job]) -> tuple[Result, ...]:
        return tuple(by_key[job.key] for job in jobs)

    points = [
        DesignPoint(dict(swept), results(jobs), results(planned.baselines[workload, swept]))
        for (workload, swept), jobs in planned.jobs.items()
    ]
    return Swept(done, designs(points))


def _baseline(grid: Grid, settings: Settings) -> Settings:
    """The baseline of a configuration, on the same workload."""
    if grid.baseline is None:
        return {**settings, **{key: value for key, value in grid.first.items() if key not in WORK}}
    unit = settings.get("unit", DEFAULTS["unit"])
    if grid.baseline.get("unit", unit) != unit:  # options are specific to a unit
        settings = {key: value for key, value in settings.items() if key in OWN or key.startswith(DEVICE)}
    return {**settings, **grid.baseline}


def _once(jobs: list[Job]) -> list[Job]:
    return list({job.key: job for job in jobs}.values())
