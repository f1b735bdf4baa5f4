"""Compiling the kernels of candidates together in threads, before any of them is timed."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from lamina import accelerate, measure, run
from lamina.accelerate.runtime.compile_ahead import compile_ahead
from lamina.accelerate.select import Compiler
from lamina.pipeline.convert import selector
from lamina.record import Mode


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


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
                accelerate.tune(layer, x, later, dense=True)  # what compiles selects the dense layer


def compile_conversion(
    model: nn.Module, x: Any, config: Any, precision: str, training: bool, *, cast: bool, device: torch.device
) -> None:  # fmt: skip
    """Compile the kernels of all candidates for the layers of a network, which stays as it is.

    Args:
        model: dense.
        x: its input.
        config: the method, or several.
        precision: of the network.
        training: whether steps have a backward pass.
        cast: whether bf16 is autocast.
        device: of the network.
    """
    later = Compiler(selector(device, "eager", training))

    def convert() -> None:
        casts = autocast(precision if cast else "", device)
        with run.precision_mode(precision, autotune=False), casts, compile_ahead():
            accelerate.convert(model, config, example=x, selector=later)

    # cuDNN keeps what it chose for each thread: what this one chose beside others is not used again.
    with measure.beside(), ThreadPoolExecutor(1) as thread:
        thread.submit(convert).result()
