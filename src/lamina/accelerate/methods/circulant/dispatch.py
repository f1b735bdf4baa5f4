"""The implementation that was measured to be fastest, remembered: dense wherever dense wins.

This room has no clock: the timer is a function that is passed in, from a callable to its time in microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lamina.accelerate.methods.circulant.config import Impl
from lamina.accelerate.methods.circulant.nn import LAYERS
from lamina.errors import MissingError, UnsupportedError, UsageError

Timer = Callable[[Callable[[], object]], float]
"""Runs a callable as often as it likes and returns its time in microseconds."""

CANDIDATES: tuple[Impl, ...] = ("kernel", "expand", "dense")
MARGIN = 0.02
"""Share by which another implementation must beat dense: below it, the gain is in the spread of the measurement."""


@dataclass(frozen=True)
class Choice:
    """An implementation, why it was chosen, and what was measured in microseconds."""

    impl: str
    reason: str
    times_us: Mapping[str, float]
    refusals: Mapping[str, str]


def decide(times_us: Mapping[str, float], refusals: Mapping[str, str] | None = None, margin: float = MARGIN) -> Choice:
    """The fastest of ``times_us``, or ``dense`` where nothing is faster than it by more than ``margin``.

    >>> decide({"dense": 25.0, "kernel": 9.5}).reason
    'kernel: 9.5 us < dense 25 us'

    Raises:
        UsageError: nothing was measured, or a time is not positive.
    """
    if not times_us or not all(0 < time < float("inf") for time in times_us.values()):
        raise UsageError(f"times: expected at least one, all positive, got {dict(times_us)}")
    best = min(times_us, key=lambda name: times_us[name])
    dense = times_us.get("dense")
    if dense is not None and times_us[best] > dense * (1 - margin):
        best = "dense"
    others = sorted((time, name) for name, time in times_us.items() if name != best)
    rest = ", ".join(f"{name} {time:.3g} us" for time, name in others)
    near = "" if not others or times_us[best] < others[0][0] else f", less than {margin:.0%} faster"
    relation = "" if not others else f" < {rest}" if not near else f"; {rest}{near}"
    return Choice(best, f"{best}: {times_us[best]:.3g} us{relation}", dict(times_us), dict(refusals or {}))


class Dispatcher:
    """Measures each question once and keeps the answers in a file.

    Args:
        folder: where ``circulant_choices.json`` is kept; made if need be.
        timer: measures a callable.
        provenance: what the times depend on: device, driver, library versions. Answers from another provenance are
            measured again.
    """

    def __init__(self, folder: Path, timer: Timer, provenance: Mapping[str, str]) -> None:
        self.path = Path(folder) / "circulant_choices.json"
        self.timer, self.provenance = timer, dict(provenance)
        self._choices = self._read()

    def choose(self, question: str, candidates: Mapping[str, Callable[[], object]]) -> Choice:
        """The fastest of ``candidates``, from the file or by measuring.

        A candidate that raises UnsupportedError or MissingError is left out, and its reason kept.

        Raises:
            UsageError: no candidate ran.
        """
        known = self._choices.get(question)
        if known is not None and known["provenance"] == self.provenance:
            return Choice(**{name: known[name] for name in ("impl", "reason", "times_us", "refusals")})
        times, refusals = {}, {}
        for name, run in candidates.items():
            try:
                run()  # once unmeasured: compiles kernels, and fails here if it must
                times[name] = self.timer(run)
            except (UnsupportedError, MissingError) as error:
                refusals[name] = str(error)
        if not times:
            raise UsageError(f"{question}: expected one candidate that runs, got {refusals}")
        choice = decide(times, refusals)
        self._choices[question] = asdict(choice) | {"provenance": self.provenance}
        self._write()
        return choice

    def _read(self) -> dict[str, Any]:
        if not self.path.exists():
            return {}
        try:
            choices = json.loads(self.path.read_text(encoding="utf-8"))["choices"]
            if not all({"impl", "reason", "times_us", "refusals", "provenance"} <= {*c} for c in choices.values()):
                raise KeyError("choices")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{self.path}: expected a file of choices, got {error!r}; delete it") from error
        return dict(choices)

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".new")  # renamed over the old file, which a reader never sees half written
        fresh.write_text(json.dumps({"choices": self._choices}, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        fresh.replace(self.path)


def calibrate(layer: Any, x: Tensor, dispatcher: Dispatcher) -> Choice:
    """Set a circulant layer's ``impl`` to what is fastest for inputs like ``x``, over a whole step.

    A step is the forward pass and, where anything needs a gradient, the backward pass from random numbers.
    """
    parameters = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    x = x.detach().requires_grad_(bool(parameters))
    gradients: dict[tuple[int, ...], Tensor] = {}

    def gradient(y: Tensor) -> Tensor:
        if y.stride() not in gradients:
            own = torch.Generator(y.device).manual_seed(0)  # not to take numbers from the caller's
            gradients[y.stride()] = torch.empty_like(y).normal_(generator=own)
        return gradients[y.stride()]

    def step(impl: Impl) -> Callable[[], object]:
        def run() -> object:
            layer.impl = impl
            y = layer(x)
            y = y[0] if isinstance(y, tuple) else y
            return torch.autograd.grad(y, [x, *parameters], gradient(y)) if parameters else y

        return run

    before: Any = layer.impl
    try:
        choice = dispatcher.choose(question(layer, x), {impl: step(impl) for impl in CANDIDATES})
    except BaseException:
        layer.impl = before
        raise
    layer.impl = choice.impl
    return choice


def calibrate_model(model: nn.Module, x: Tensor, dispatcher: Dispatcher) -> dict[str, Choice]:
    """Calibrate every circulant layer of a model for what reaches it when ``x`` goes in; choices by layer."""
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, LAYERS)}
    reached: dict[str, Tensor] = {}
    hooks = [
        layer.register_forward_pre_hook(lambda _, inputs, name=name: reached.__setitem__(name, inputs[0].detach()))
        for name, layer in layers.items()
    ]
    try:
        with torch.no_grad():
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: calibrate(layers[name], seen, dispatcher) for name, seen in reached.items()}


def question(layer: Any, x: Tensor) -> str:
    """What a choice depends on, as a key: the layer's sizes, the input's shape, layout, type and device."""
    how = layer.extra_repr().partition(", impl=")[0]
    autocast = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
    steps = "step" if any(p.requires_grad for p in layer.parameters()) else "forward"
    tf32 = torch.backends.cuda.matmul.fp32_precision
    shape = f"{tuple(x.shape)} strides {x.stride()}"
    return f"{type(layer).__name__}({how}) {shape} {autocast} fp32={tf32} {x.device.type} {steps}"
