"""What ``deft`` is asked, and what it answers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from lamina.accelerate.methods.elimination import Eliminated
from lamina.accelerate.methods.elimination.config import Recovery
from lamina.accelerate.methods.elimination.pareto import Point
from lamina.errors import UsageError, nearest
from lamina.pipeline.deft.weight_formats import WANTED
from lamina.record import Timing
from lamina.spec import Precision

COMPARED = ("magnitude", "channels")


@dataclass(frozen=True)
class Asked:
    """How far to go, and how.

    Args:
        shares: of its inputs that each layer may keep, besides all.
        recovery: how the inputs that stay make up for those that go.
        align: the number kept is rounded up to a multiple of this, or to all.
        max_accuracy_drop: points of accuracy on the calibration samples that may be lost.
        target_speedup: the least speed-up; without, the fastest that loses no more than allowed.
        format: of the weights, one of `weight_formats.WANTED`.
        tuning: epochs of training after the elimination.
        calibration: samples to choose by.
        batch: of the inputs whose latency counts.
        precision: that it counts in.
        compare: other ways to prune, to be measured beside it.

    Raises:
        UsageError: naming what was expected.
    """

    shares: tuple[float, ...] = (0.75, 0.5, 0.25)
    recovery: Recovery = "least_squares"
    align: int = 1
    max_accuracy_drop: float = 1.0
    target_speedup: float | None = None
    format: str = "auto"
    tuning: int = 0
    calibration: int = 1000
    batch: int = 1
    precision: Precision = "fp32"
    compare: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.config  # noqa: B018  (its own checks)
        if not self.shares or any(not 0 < share < 1 for share in self.shares):
            raise UsageError(f"shares: expected numbers above 0 and below 1, got {list(self.shares)}")
        if not 0 <= self.max_accuracy_drop <= 100:
            raise UsageError(f"max accuracy drop: expected points from 0 to 100, got {self.max_accuracy_drop}")
        if self.target_speedup is not None and not 1 <= self.target_speedup < float("inf"):
            raise UsageError(f"target speed-up: expected at least 1, got {self.target_speedup}")
        if min(self.calibration, self.batch, self.tuning + 1) < 1:
            raise UsageError(
                "expected calibration and batch of at least 1 and epochs of at least 0, "
                f"got {self.calibration}, {self.batch} and {self.tuning}"
            )
        for option, value, known in (
            ("format", self.format, WANTED),
            *(("compare", c, COMPARED) for c in self.compare),
        ):
            if value not in known:
                raise UsageError(f"{option} {value!r} is unknown: {nearest(value, known)}")

    @property
    def faster(self) -> bool:
        """Whether what is no faster than the dense network is of no use: no target and no format were asked for."""
        return self.target_speedup is None and self.format in ("auto", "none")

    @property
    def config(self) -> Eliminated:
        """What all variants have in common."""
        return Eliminated(recovery=self.recovery, align=self.align)


@dataclass(frozen=True)
class LayerResult:
    """One layer: what it keeps, how its weights are stored, what that costs, and why.

    ``inputs`` and ``kept`` count synapse vectors, ``outputs`` and ``live`` what the layer gives and what of it is still
    computed; ``alpha`` is the threshold of the correlation. ``error`` is of the layer's outputs over the calibration
    inputs, ``format_error`` of the weights as they are read; both are root mean squares in parts.
    """

    layer: str
    kind: str
    inputs: int
    kept: int
    outputs: int
    live: int
    alpha: float | None
    error: float | None
    format: str | None
    format_error: float | None
    reason: str
    format_reason: str


@dataclass(frozen=True)
class Measured:
    """A network as a whole: accuracies in percent, latency, size.

    ``parameters`` are those that are not zero, ``multiplications`` those of one sample in products and convolutions,
    whether a factor is zero or not; ``bytes`` are those of all that is stored.
    """

    name: str
    test_accuracy: float
    calibration_accuracy: float
    latency: Timing
    parameters: int
    multiplications: int
    bytes: int


@dataclass(frozen=True)
class Outcome:
    """Everything that ``deft`` found; ``failure`` says why there is no ONNX file where one was asked for."""

    run_id: str
    network: str
    layers: tuple[LayerResult, ...]
    dense: Measured
    result: Measured
    front: tuple[Point, ...]
    searched: Point
    compared: tuple[Measured, ...] = ()
    remarks: tuple[str, ...] = field(default=())
    failure: str = ""

    @property
    def speedup(self) -> float:
        """Of the medians."""
        return self.dense.latency.median_us / self.result.latency.median_us

    @property
    def drop(self) -> float:
        """Points of accuracy lost on the test samples."""
        return self.dense.test_accuracy - self.result.test_accuracy

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self) | {"speedup": self.speedup, "accuracy_drop": self.drop}
