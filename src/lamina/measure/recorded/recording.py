"""The run that an imported trace becomes; unknown fields stay empty."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from hashlib import sha256
from typing import Any

from lamina.record import Counter, Coverage, Environment, KernelRun, Key, LayerRun, Run, Timing

UNKNOWN = "unknown"
"""Precision and layout of a recorded kernel: traces do not contain them."""

NO_BATCH = 0
"""Batch size of a recorded kernel: traces do not contain it."""

_PHASE = re.compile(r"(.+)/(forward|backward_data|backward_weight)")
_KINDS = {
    r"conv": "convolution",
    r"linear|addmm|matmul|gemm|::b?mm\b|\bfc\d*\b": "linear",
    r"adaptive\w*pool": "adaptive_pooling",
    r"pool": "pooling",
    r"batch_?norm": "batch_norm",
    r"layer_?norm": "layer_norm",
    r"dropout": "dropout",
    r"softmax": "softmax",
    r"embedding": "embedding",
    r"attention": "attention",
    r"lstm": "lstm",
    r"relu|sigmoid|tanh|silu|swish|act\b": "activation",
}


@dataclass(frozen=True)
class Recording:
    """Everything that the trace database stores of an imported trace."""

    run: Run
    rows: tuple[LayerRun, ...]
    kernels: tuple[KernelRun, ...]
    counters: tuple[Counter, ...]
    coverage: Coverage


def key_of(layer: str, phase: str) -> Key:
    """The key of a recorded row."""
    return Key(layer, phase, "dense", UNKNOWN, UNKNOWN, NO_BATCH)


def layer_and_phase(name: str) -> tuple[str, str]:
    """Layer and phase from the name of a range.

    >>> layer_and_phase("conv1/backward_weight"), layer_and_phase("encoder/attention")
    (('conv1', 'backward_weight'), ('encoder/attention', 'forward'))
    """
    match = _PHASE.fullmatch(name)
    return (match[1], match[2]) if match else (name, "forward")


def row_of(key: Key, index: int, device: str, timing: Timing) -> LayerRun:
    """The row of a recorded layer; its shapes are unknown."""
    return LayerRun(
        **key._asdict(),
        kind=kind_of(key.layer),
        place=index,
        device=device,
        inputs=(),
        output=(),
        parameters=0,
        flops=None,
        bytes=None,
        outcome="ok",
        timing=timing,
    )


def kind_of(layer: str) -> str:
    """The layer kind that a name suggests.

    >>> kind_of("Conv2d_0"), kind_of("aten::addmm"), kind_of("stem")
    ('convolution', 'linear', 'unknown')
    """
    return next((kind for hint, kind in _KINDS.items() if re.search(hint, layer, re.IGNORECASE)), UNKNOWN)


def layer_indices(keys: Iterable[Key]) -> dict[str, int]:
    """The index of each layer, in order of appearance."""
    return {layer: index for index, layer in enumerate(dict.fromkeys(key.layer for key in keys))}


def run_of(
    content: bytes, name: str, date: str, known: Mapping[str, Any], config: Mapping[str, Any], notes: Sequence[str]
) -> Run:
    """The run of a file. Its id is a hash of the content, so that a file is imported only once."""
    digest = sha256(content).hexdigest()
    return Run(
        id=digest[:12],
        verb="import",
        target=name,
        command=f"lamina runs import {name}",
        started=date,
        fingerprint=digest[:16],
        config=config,
        environment={**{field.name: None for field in fields(Environment)}, "date": date, **known},
        status="done",
        finished=date,
        remarks=tuple(notes),
    )
