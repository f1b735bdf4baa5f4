"""Analytical model of the kernel: busy cycles of each component of the device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from lamina.simulate.fission_unit.config import Kernel
from lamina.simulate.fission_unit.kernel import one_pass, tiled_gemm
from lamina.simulate.hierarchy import Device, Phase, occupancy
from lamina.simulate.hierarchy.config import LINE
from lamina.simulate.hierarchy.program import LDS, LOAD, STORE, VALU
from lamina.simulate.hierarchy.timing import TICKS, dram_timing_of


@dataclass(frozen=True)
class Parts:
    """Busy cycles of each component of a device for a product.

    ``vector``: issue slots of the busiest SIMD. ``shared``: words through the shared memory of the busiest compute
    unit. ``l1``, ``l2``: lines through their ports. ``dram``: A, B and C once. ``waves``: latency-bound time of the
    wavefronts of the busiest compute unit, as many in parallel as are resident.
    """

    vector: float
    shared: float
    l1: float
    l2: float
    dram: float
    waves: float


@dataclass(frozen=True)
class Prediction:
    """The slowest component determines the time; ``cycles`` includes the launch."""

    parts: Parts
    launch: float

    @property
    def limit(self) -> str:
        """The slowest component."""
        busy: dict[str, float] = asdict(self.parts)
        return max(busy, key=lambda name: busy[name])

    @property
    def cycles(self) -> float:
        return self.launch + float(max(asdict(self.parts).values()))


def predict(m: int, n: int, k: int, kernel: Kernel, device: Device) -> Prediction:
    """Lower bound of the time of C[m, n] = A[m, k] B[k, n]; sizes are rounded up to whole tiles.

    Raises:
        UsageError: not even one wavefront fits on the device.
    """
    m, n, k = kernel.padded(m, n, k)
    program = tiled_gemm(m, n, k, kernel, device)
    cu, trips, waves = device.cu, int(program.trips[0]), program.workgroups
    once = (*program.before, *program.after)
    slots = _counts(once, VALU) + trips * _counts(program.loop, VALU)
    words = _counts(once, LDS) + trips * _counts(program.loop, LDS)
    lines = _lines(once) + trips * _lines(program.loop)
    scalars = sum(phase.scalar for phase in once) + trips * sum(phase.scalar for phase in program.loop)
    requests = _requests(once) + trips * _requests(program.loop)

    per_unit = -(-waves // cu.count)
    at_once = min(occupancy(program, device), per_unit)
    round_trip = cu.vmem_path + device.l1.to_l2 + device.l2.hit
    products = one_pass(kernel).fma * cu.valu_cycles
    wait = max(0.0, round_trip - products) if kernel.double_buffer else round_trip
    alone = (
        slots * cu.valu_cycles
        + words * cu.lds_cycles
        + scalars * cu.scalar_cycles
        + requests * cu.vmem_issue
        + trips * wait
        + 2 * round_trip  # arguments, and the last stores
    )
    timing = dram_timing_of(device)
    compulsory = 4 * (k * (m + n) // kernel.in_memory + m * n) / LINE
    return Prediction(
        Parts(
            vector=-(-waves // (cu.count * cu.simds)) * slots * cu.valu_busy,
            shared=per_unit * words * cu.lds_busy,
            l1=per_unit * lines / device.l1.lines_per_cycle,
            l2=waves * lines / (device.l2.banks * device.l2.lines_per_cycle),
            dram=compulsory * timing.interval / TICKS / timing.channels,
            waves=per_unit / at_once * alone,
        ),
        device.launch_cycles,
    )


def _counts(phases: Iterable[Phase], kind: int) -> int:
    return sum(phase.count for phase in phases if phase.kind == kind)


def _requests(phases: Iterable[Phase]) -> int:
    return sum(phase.kind in (LOAD, STORE) for phase in phases)


def _lines(phases: Iterable[Phase]) -> int:
    return sum(phase.rows * phase.lines for phase in phases if phase.kind in (LOAD, STORE))
