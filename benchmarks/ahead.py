"""Compiling the kernels of circulant layers' candidates together in threads, before any of them is timed."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from lamina import run
from lamina.accelerate import tune
from lamina.accelerate.runtime.compile_ahead import compile_ahead
from lamina.accelerate.select import Compiler
from lamina.pipeline.convert import selector
from lamina.record import Mode


def compile_candidates(layers: Iterable[tuple[str, nn.Module, Tensor]], device: torch.device, mode: Mode) -> None:
    """Compile the kernels of all candidates for steps of circulant layers in a mode.

    Args:
        layers: a precision, a layer whose ``impl`` is ``auto``, and its input.
        device: of the layers.
        mode: as `selector` takes it.
    """
    later = Compiler(selector(device, mode, training=True))
    with compile_ahead():
        for precision, layer, x in layers:
            with run.precision_mode(precision, autotune=False):
                tune(layer, x, later, dense=True)  # what compiles selects the dense layer
