"""Configuration and results of ``deft``."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from lamina.accelerate.methods.elimination import Eliminated
from lamina.accelerate.methods.elimination.config import Recovery
from lamina.accelerate.methods.elimination.pareto import Point
from lamina.errors import UsageError, nearest
from lamina.pipeline.deft.weight_formats import CHOICES
from lamina.record import Timing
from lamina.spec import Precision

COMPARED = ("magnitude", "iterative-magnitude", "channels", "dense")

Objective = Literal["accuracy", "output error"]
"""What may be lost: accuracy, or where outputs hold no class scores, agreement with the dense network's outputs."""


@dataclass(frozen=True)
class DeftConfig:
    """Configuration of ``deft``.

    Args:
        keep_ratios: fractions of its input channels that a layer may keep, each in (0, 1); all are tried besides 1.
        alphas: correlation thresholds (DeftNN, equation 6), each in (0, 1]: a layer may also keep only the vectors
            that represent others at one of these.
        layers: patterns of the names of layers to prune, as in `matching_layers`; all by default.
        recovery: how the remaining weights compensate for pruned inputs.
        align: the number of kept inputs is rounded up to a multiple of this, or to all.
        max_accuracy_drop: percentage points of accuracy on the calibration samples that may be lost. Without class
            scores, the relative error of the outputs on them, in percent.
        target_speedup: the minimum speedup, at which the most accurate network is chosen; by default the fastest
            network within the accuracy budget is chosen.
        format: of the weights, one of `weight_formats.CHOICES`.
        tuning: epochs of fine-tuning after pruning.
        calibration: number of calibration samples.
        batch: batch size of the measured latency.
        precision: of the measured latency and the result.
        compare: other pruning methods to measure beside it, and ``dense``, the dense network tuned as long.

    Raises:
        UsageError: naming what was expected.
    """

    keep_ratios: tuple[float, ...] = (0.75, 0.5, 0.25)
    alphas: tuple[float, ...] = ()
    layers: tuple[str, ...] = ()
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
        self.elimination  # noqa: B018  (its own checks)
        if any(not 0 < alpha <= 1 for alpha in self.alphas):
            raise UsageError(f"alpha: expected numbers above 0 and up to 1, got {list(self.alphas)}")
        if not (self.keep_ratios or self.alphas) or any(not 0 < ratio < 1 for ratio in self.keep_ratios):
            raise UsageError(f"keep ratios: expected numbers above 0 and below 1, got {list(self.keep_ratios)}")
        if not 0 <= self.max_accuracy_drop <= 100:
            raise UsageError(f"max accuracy drop: expected points from 0 to 100, got {self.max_accuracy_drop}")
        if self.target_speedup is not None and not 1 <= self.target_speedup < float("inf"):
            raise UsageError(f"target speedup: expected at least 1, got {self.target_speedup}")
        if min(self.calibration, self.batch, self.tuning + 1) < 1:
            raise UsageError(
                "expected calibration and batch of at least 1 and epochs of at least 0, "
                f"got {self.calibration}, {self.batch} and {self.tuning}"
            )
        for option, value, known in (
            ("format", self.format, CHOICES),
            *(("compare", c, COMPARED) for c in self.compare),
        ):
            if value not in known:
                raise UsageError(f"{option} {value!r} is unknown: {nearest(value, known)}")

    @property
    def must_be_faster(self) -> bool:
        """Whether a result that is not faster than the dense network is rejected: no target and no format is given."""
        return self.target_speedup is None and self.format in ("auto", "none")

    @property
    def candidates(self) -> str:
        """Keep ratios and thresholds as text."""
        ratios, alphas = (", ".join(f"{each:g}" for each in row) for row in (self.keep_ratios, self.alphas))
        texts = [f"keep ratios of {ratios}"] if ratios else []
        return " and ".join([*texts, *([f"correlations of at least {alphas}"] if alphas else [])])

    @property
    def elimination(self) -> Eliminated:
        """The configuration that all variants share."""
        return Eliminated(recovery=self.recovery, align=self.align)


@dataclass(frozen=True)
class LayerResult:
    """The result for one layer.

    ``inputs`` and ``kept`` count synapse vectors, ``outputs`` and ``live`` all and the remaining output channels;
    ``alpha`` is the correlation threshold. ``error`` is the relative RMS error of the layer's outputs over the
    calibration inputs, ``format_error`` that of the dequantized weights. ``reason`` and ``format_reason`` say why.
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
    """A whole network: accuracies in percent, latency and size.

    With the objective ``output error``, accuracies are 100 less the relative error of the outputs in percent.
    ``parameters`` counts nonzero parameters, ``multiplications`` those of linear layers and convolutions for one
    sample, zero factors included; ``bytes`` is the size of the state dict.
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
    """The result of ``deft``.

    ``objective`` is what was limited; ``failure`` says why a requested ONNX file could not be written. ``front`` has
    accuracies before fine-tuning, ``tuned`` those of the points that were fine-tuned, in order; both are on the
    calibration samples, and latencies are relative to the dense network's.
    """

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
    objective: Objective = "accuracy"
    tuned: tuple[Point, ...] = ()

    @property
    def speedup(self) -> float:
        """Dense median latency over the result's."""
        return self.dense.latency.median_us / self.result.latency.median_us

    @property
    def drop(self) -> float:
        """Percentage points of accuracy lost on the test samples, or the relative error of the outputs in percent."""
        return self.dense.test_accuracy - self.result.test_accuracy

    def document(self) -> dict[str, Any]:
        """As a JSON-able dictionary."""
        return asdict(self) | {"speedup": self.speedup, "accuracy_drop": self.drop}


def worded(objective: Objective, value: float) -> str:
    """An accuracy of `Measured` as text."""
    return f"accuracy {value:.2f} %" if objective == "accuracy" else f"output error {100 - value:.2f} %"
