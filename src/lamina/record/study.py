"""What a study tried, and what it found: everything that its page shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from lamina.record.timing import Timing

Outcome = Literal["selected", "slower", "inaccurate", "refused", "failed"]
"""What became of a candidate: in the plan; not faster than what won; faster, but beyond the accuracy budget; does not
apply to the layer; or it did not run."""

Metric = Literal["accuracy", "output error"]
"""What the accuracy budget limits: points of test accuracy, or the relative error of the outputs, both in percent."""


@dataclass(frozen=True)
class Settings:
    """How a whole network runs.

    Attributes:
        precision: ``fp32``, ``tf32``, ``bf16`` or ``fp16``.
        layout: ``nchw`` or ``nhwc`` (channels-last).
        mode: ``eager``, ``compiled``, ``reduce-overhead`` (``torch.compile`` with CUDA graphs) or ``graph``.
        method: of the whole network: ``dense``, or one such as ``torchao:int8-weight-only``; several with ``+`` between
            them, in the order in which they apply.
    """

    precision: str
    layout: str
    mode: str
    method: str = "dense"

    def __str__(self) -> str:
        method = [] if self.method == "dense" else [self.method]
        return ", ".join([*method, self.precision, *(["channels-last"] if self.layout == "nhwc" else []), self.mode])


@dataclass(frozen=True)
class Measured:
    """A whole network with its settings.

    Attributes:
        name: ``before`` (as the user runs it), ``uniform`` (one setting for all layers) or ``plan``.
        settings: how it ran.
        timing: of a step: a training step, or a forward pass.
        accuracy: in percent, or 100 less the relative error of the outputs in percent; ``None`` if it was not measured.
        parameters: number of trainable parameters.
        peak_bytes: of device memory in a step, with weights and the optimizer's state.
        energy_j: of a step, where the device has a counter.
        outcome: ``selected`` for the settings of the plan.
        reason: why it was rejected, or did not run.
    """

    name: str
    settings: Settings
    timing: Timing | None
    accuracy: float | None = None
    parameters: int | None = None
    peak_bytes: int | None = None
    energy_j: float | None = None
    outcome: Outcome = "slower"
    reason: str = ""

    @property
    def time_us(self) -> float:
        """The median of a step in microseconds; infinite if it was not timed."""
        return self.timing.median_us if self.timing else inf


@dataclass(frozen=True)
class Trial:
    """One candidate of one layer, timed in place.

    Attributes:
        layer: its name in the network.
        kind: its type with its sizes, such as ``Linear(in_features=784, out_features=512, bias=True)``.
        impl: the implementation, such as ``circulant[block_size=64]``; ``dense`` is the user's own layer.
        settings: of the network around it.
        timing: of the layer's step (forward, and in training backward); ``None`` if it did not run.
        dense_us: the median of what it replaces, timed in the same rounds.
        predicted_us: by the method's cost model, in microseconds.
        accuracy: of the network with this layer alone changed, in percent; ``None`` if it was not measured.
        outcome: what became of it.
        reason: one sentence.
    """

    layer: str
    kind: str
    impl: str
    settings: Settings
    timing: Timing | None = None
    dense_us: float | None = None
    predicted_us: float | None = None
    accuracy: float | None = None
    outcome: Outcome = "slower"
    reason: str = ""

    @property
    def saved_us(self) -> float:
        """The median of what it replaces less its own, in microseconds; 0 if it was not timed."""
        return self.dense_us - self.timing.median_us if self.timing and self.dense_us is not None else 0.0


@dataclass(frozen=True)
class FrontPoint:
    """One plan on the front of accuracy over time.

    Attributes:
        time_us: of a step; predicted from the layers unless ``measured``.
        accuracy: in percent, as in `Measured`.
        methods: the method of each layer that is not dense.
        measured: whether the whole network was timed.
    """

    time_us: float
    accuracy: float
    methods: Mapping[str, str]
    measured: bool = False


@dataclass(frozen=True)
class Study:
    """The result of a study.

    Attributes:
        network: as the user named it.
        goal: ``train`` or ``infer``.
        metric: what the budget limits.
        max_accuracy_drop: the budget, in points (or in percent of the outputs).
        data: the data set that accuracy was measured on.
        batch: size of a step.
        wholes: the network as the user runs it, at each uniform setting, and by the plan.
        trials: every candidate of every layer.
        front: accuracy over time.
        predicted_us: of the plan's step, from its layers' times, before it was measured.
        plan: the text of ``plan.toml``.
        unsupported: why layers have no candidates, by name.
        findings: headlines of what limits the network, most important first.
        seconds: by stage of the study.
        budget_s: the time budget; ``None`` for none.
        baseline: the fastest uniform settings within the accuracy budget, methods of other packages included.
    """

    network: str
    goal: str
    metric: Metric
    max_accuracy_drop: float
    data: str
    batch: int
    wholes: tuple[Measured, ...]
    trials: tuple[Trial, ...]
    front: tuple[FrontPoint, ...]
    predicted_us: float | None
    plan: str
    unsupported: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    budget_s: float | None = None
    baseline: Settings | None = None

    def __post_init__(self) -> None:
        names = [one.name for one in self.wholes]
        if not {"before", "plan"} <= set(names):
            raise ValueError(f"expected the network before and by the plan, got {', '.join(names) or 'none'}")
        known = [one.settings for one in self.wholes if one.name != "plan"]
        if self.baseline is not None and self.baseline not in known:
            raise ValueError(f"baseline: expected settings that were measured, got {self.baseline}")

    def whole(self, name: str) -> Measured:
        """The network ``before``, or by the ``plan``."""
        return next(one for one in self.wholes if one.name == name)

    @property
    def uniform(self) -> Measured:
        """The network at the baseline."""
        return next(one for one in self.wholes if one.name != "plan" and self.baseline in (None, one.settings))
