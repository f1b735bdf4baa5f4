"""The network of a study: its copies at whole-network settings, their steps, and the times of these."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from lamina import build, measure, run
from lamina.accelerate.common.batchnorm import fold_batchnorm
from lamina.accelerate.select import compiled, forgetting
from lamina.accelerate.training.compressed_activations import saving
from lamina.errors import UnsupportedError
from lamina.pipeline.deft.calibration import Material
from lamina.pipeline.graphed import graphed, graphed_step
from lamina.pipeline.study.rivals import apply_rival
from lamina.record import Mode, Timing
from lamina.record.study import Settings
from lamina.run.update import AUTOCAST
from lamina.spec.plan import CAPTURED, COMPILED, REPLAYED
from lamina.spec.whole_method import COMPRESSED, FOLD, compresses, folds, without

SLOW_S = 0.5
"""A step that takes longer warms up in one call."""

STATES = {"sgd": 1, "adam": 2, "adamw": 2}
"""Values that an optimizer keeps for each parameter."""

Step = Callable[[], object]


@dataclass(frozen=True)
class Subject:
    """A network with its data.

    Attributes:
        name: of the network.
        dense: the user's network in float32, on the device.
        device: to measure on.
        training: whether a step is forward, loss, backward and optimizer; otherwise it is a forward pass.
        batch: samples of a step.
        material: data.
        objective: the loss.
        optimizer: ``sgd``, ``adam`` or ``adamw``.
    """

    name: str
    dense: nn.Module
    device: torch.device
    training: bool
    batch: int
    material: Material
    objective: run.Objective
    optimizer: str = "sgd"

    @cached_property
    def folded(self) -> nn.Module:
        """The network with each BatchNorm folded into the layer before it, for inference.

        Raises:
            UnsupportedError: there is none to fold, or it cannot be traced.
        """
        network = build.copied(self.dense).eval()
        fold_batchnorm(network)
        return network

    def start(self, settings: Settings) -> nn.Module:
        """The float32 network that methods of layers begin with at the settings: the user's, or folded."""
        return self.folded if folds(settings.method) else self.dense

    def at(self, model: nn.Module, settings: Settings) -> nn.Module:
        """A copy of a float32 network at the settings: its weights, layout and mode of training or evaluation.

        Networks that train keep float32 weights and run under autocast.

        Args:
            model: that `start` gave, with or without layers by other methods.

        Raises:
            UnsupportedError: another package refuses the network.
        """
        stored = "fp32" if self.training else settings.precision
        twin = build.to_precision(build.copied(model), stored, self.device, settings.layout)
        twin = apply_rival(without(settings.method, FOLD, COMPRESSED), twin)
        return twin.train(self.training)

    def inputs(self, settings: Settings) -> run.Inputs:
        """A batch of calibration inputs at the settings."""
        precision = "fp32" if self.training else settings.precision
        x = run.moved(self.material.example(self.batch), self.device, build.DTYPES[precision])
        return tuple(laid(one, settings.layout) for one in x) if isinstance(x, tuple) else laid(x, settings.layout)

    @contextmanager
    def context(self, settings: Settings) -> Iterator[None]:
        """Library settings and autocast that a network at the settings runs under."""
        with self._library(settings), self._autocast(settings):
            yield

    def _library(self, settings: Settings) -> AbstractContextManager[object]:
        return run.precision_mode(settings.precision) if self.device.type == "cuda" else nullcontext()

    def _autocast(self, settings: Settings) -> AbstractContextManager[object]:
        dtype = AUTOCAST.get(settings.precision) if self.training else None
        return torch.autocast(self.device.type, dtype) if dtype else nullcontext()

    def step(self, model: nn.Module, settings: Settings) -> Step:
        """A step of a network that `at` made, in the mode of the settings, from float32 inputs that are NCHW.

        Raises:
            LaminaError: it cannot be captured as a CUDA graph.
            UnsupportedError: activations are to be compressed in another mode than eager.
        """
        if compresses(settings.method) and settings.mode != "eager":
            raise UnsupportedError(f"{COMPRESSED}: eager mode only, since compiled code saves activations itself")
        x = self.inputs(replace(settings, precision="fp32", layout="nchw"))
        step = self._training_step(model, x, settings) if self.training else self._pass(model, x, settings)
        return forgetting(step) if settings.mode == "reduce-overhead" else step

    def _pass(self, model: nn.Module, x: run.Inputs, settings: Settings) -> Step:
        forward = self._callable(model, settings)
        if settings.mode in CAPTURED:
            with self.context(settings), torch.no_grad():
                forward = graphed(forward, x if isinstance(x, tuple) else (x,))

        def step() -> object:
            with self.context(settings), torch.no_grad():
                return forward(*x) if isinstance(x, tuple) else forward(x)

        return step

    def _training_step(self, model: nn.Module, x: run.Inputs, settings: Settings) -> Step:
        labels = self._labels()
        optimizer = self.optimizer_of(model)
        scaler = torch.amp.GradScaler(self.device.type, enabled=settings.precision == "fp16")

        def loss(outputs: Any, y: Tensor) -> Tensor:
            return self.objective(outputs, y, 0.0)[0]

        forward = self._callable(model, settings)
        if settings.mode in CAPTURED:
            fast = graphed_step(forward, loss, optimizer, autocast=AUTOCAST.get(settings.precision))

            def replay() -> object:
                with run.precision_mode(settings.precision):
                    return fast(x, labels)

            return replay
        if compresses(settings.method):
            forward = saving(forward)

        def step() -> object:
            optimizer.zero_grad(set_to_none=True)
            with self._library(settings):
                with self._autocast(settings):
                    value = loss(forward(*x) if isinstance(x, tuple) else forward(x), labels)
                scaler.scale(value).backward()
            scaler.step(optimizer)
            scaler.update()
            return value

        return step

    def _callable(self, model: nn.Module, settings: Settings) -> Any:
        precision = "fp32" if self.training else settings.precision
        if (precision, settings.layout) != ("fp32", "nchw"):
            model = Placing(model, precision, settings.layout)
        return compiled(model, settings.mode) if settings.mode in COMPILED else model

    def _labels(self) -> Tensor:
        parts = [y for _, y in self.material.ordered(self.material.calibration, self.batch)]
        labels = parts[0]
        return labels[torch.arange(self.batch, device=labels.device) % len(labels)].to(self.device)

    def optimizer_of(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer of a network, with a rate that keeps the weights as they are: only its time counts."""
        parameters = [one for one in model.parameters() if one.requires_grad]
        fused = self.device.type == "cuda"
        if self.optimizer == "sgd":
            return torch.optim.SGD(parameters, lr=1e-8, momentum=0.9, fused=fused)
        kind = torch.optim.Adam if self.optimizer == "adam" else torch.optim.AdamW
        return kind(parameters, lr=1e-8, fused=fused)

    def times(
        self, steps: Mapping[str, Step], rounds: int, limit_s: float = inf, mode: Mode = "eager"
    ) -> dict[str, Timing | Exception]:
        """Times of steps by the wall clock, launch overhead included; the error of one that fails.

        They are interleaved but in ``mode="reduce-overhead"``, as in `lamina.pipeline.convert.timer`. There are fewer
        rounds, but at least three, where all of them would take longer than ``limit_s``.
        """
        from lamina.pipeline.convert import timer

        if mode in COMPILED:  # which that timer compiles itself
            return dict(timer(self.device, mode, rounds, limit_s, ready=True)(steps))
        ready: dict[str, Step] = {}
        found: dict[str, Timing | Exception] = {}
        for name, step in steps.items():
            try:
                with measure.beside():
                    step()  # compiles, captures, allocates the optimizer's state
                stopwatch = measure.Stopwatch()
                step()
                if stopwatch.seconds < SLOW_S:
                    step()
                ready[name] = step
            except Exception as error:  # a compiler's, a backend's or the network's own
                found[name] = error
        return found | (dict(timer(self.device, "eager", rounds, limit_s, ready=True)(ready)) if ready else {})

    def layer_mode(self, settings: Settings) -> Mode:
        """The mode to time single layers in: what compiled networks launch has little overhead, as a CUDA graph's."""
        return "graph" if self.device.type == "cuda" and settings.mode != "eager" else "eager"

    def facts(self, model: nn.Module, settings: Settings, step: Step) -> tuple[int, int | None, float | None]:
        """Trainable parameters, peak memory of a step in bytes, and its energy in joules.

        The memory includes weights, buffers and the optimizer's state, but nothing of the device's driver. CUDA graphs
        replay in memory that they have reserved, so theirs is the memory of the same step in eager mode.
        """
        trained = [one for one in model.parameters() if one.requires_grad]
        parameters = sum(one.numel() for one in trained)
        state = STATES[self.optimizer] * sum(one.nbytes for one in trained) if self.training else 0
        held = state + sum(one.nbytes for one in (*model.parameters(), *model.buffers()))
        peak = measure.Peak()
        with suppress(RuntimeError):  # such as too little memory for a copy
            eager = step
            if settings.mode in REPLAYED:
                eager = self.step(build.copied(model), replace(settings, mode="eager"))
                eager()  # allocates the optimizer's state
            with measure.peak_memory(self.device) as peak:
                eager()
        return parameters, None if peak.bytes is None else held + peak.bytes, measure.energy_j(self.device, step)


class Placing(nn.Module):
    """A network in a precision and layout that takes inputs as a user has them, as one by a plan does."""

    def __init__(self, model: nn.Module, precision: str, layout: str = "nchw") -> None:
        super().__init__()
        self.model, self.dtype, self.layout = model, build.DTYPES[precision], layout
        self.training = model.training  # and not of its modules, some of which may be frozen

    def forward(self, *inputs: Tensor) -> object:
        return self.model(*(laid(x.to(self.dtype) if x.is_floating_point() else x, self.layout) for x in inputs))


def laid(x: Tensor, layout: str) -> Tensor:
    """An input in a memory layout, which only images have."""
    return x.contiguous(memory_format=torch.channels_last) if layout == "nhwc" and x.dim() == 4 else x
