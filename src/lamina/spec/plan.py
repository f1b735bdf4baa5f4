"""Plans: how to run each layer of a network, as a study found it. A noun of TOML; no torch."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import ConfigDict, Field

from lamina.spec.validated import Validated

VERSION: Literal[1] = 1
NAME = "plan.toml"

PlanMode = Literal["eager", "compiled", "reduce-overhead", "graph", "compiled-graph"]
"""How the whole network runs; ``reduce-overhead`` is ``torch.compile`` with CUDA graphs of its own, ``graph`` one CUDA
graph of a step, and ``compiled-graph`` one of a step of the compiled network."""
MODES: tuple[PlanMode, ...] = get_args(PlanMode)
COMPILED = ("compiled", "reduce-overhead", "compiled-graph")
"""Modes by ``torch.compile``, which fuses what it can."""
CAPTURED = ("graph", "compiled-graph")
"""Modes in which one CUDA graph has a whole step."""
REPLAYED = (*CAPTURED, "reduce-overhead")
"""Modes that replay CUDA graphs."""


class Run(Validated):
    """How the whole network runs."""

    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    layout: Literal["nchw", "nhwc"] = "nchw"
    mode: PlanMode = "eager"
    method: str = "dense"
    """Of the whole network, such as ``torchao:int8-weight-only``; several with ``+`` between them. Layers have methods
    of their own only beside those of `lamina.spec.whole_method.MIXING`."""


class Step(Validated):
    """The whole network as it was measured: time of a step, accuracy in percent, memory and energy."""

    time_us: Annotated[float, Field(gt=0)] | None = None
    accuracy: float | None = None
    peak_bytes: Annotated[int, Field(ge=0)] | None = None
    energy_j: float | None = None


class PlannedLayer(Validated):
    """One layer.

    ``type`` is the class with its sizes as a module prints itself, to check a model against:
    ``Linear(in_features=784, out_features=512, bias=True)``. ``method`` is ``dense`` or what replaces the layer, such
    as ``circulant[block_size=64,impl=kernel]``. Layers that are replaced together carry the method at the first one,
    and ``with`` names the others. ``density`` is the fraction of the inputs that is not zero.
    """

    name: str
    type: str
    method: str
    with_: Annotated[tuple[str, ...], Field(alias="with")] = ()
    dense_us: float | None = None
    time_us: float | None = None
    predicted_us: float | None = None
    density: Annotated[float, Field(ge=0, le=1)] | None = None
    reason: str = ""

    model_config = ConfigDict(populate_by_name=True)


class Alternative(Validated):
    """A point of the front: the methods of the layers that are not dense."""

    time_us: float
    accuracy: float
    methods: dict[str, str] = Field(default_factory=dict)


class Plan(Validated):
    """The outcome of a study.

    Attributes:
        network: as the user named it; informative, since a plan applies to any model whose layers fit.
        goal: what steps were measured.
        batch: size of a step.
        run: how the whole network runs.
        before: as the user ran it; ``uniform``: the best single setting of all layers; ``after``: by this plan.
        weights: a digest of the weights of the dense network, in float32.
        environment: device, driver and versions that times depend on.
        layers: of every layer with weights, dense ones too.
        front: accuracy over time.
    """

    version: Literal[1] = VERSION
    network: str
    goal: Literal["train", "infer"]
    batch: Annotated[int, Field(ge=1)]
    max_accuracy_drop: float = 1.0
    metric: Literal["accuracy", "output error"] = "accuracy"
    run: Run = Run()
    before: Step = Step()
    uniform: Step = Step()
    after: Step = Step()
    environment: dict[str, str] = Field(default_factory=dict)
    weights: str = ""
    layers: tuple[PlannedLayer, ...] = ()
    front: tuple[Alternative, ...] = ()
