"""Times of a study by counted FLOPs: no test depends on the time of anything."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

import lamina.pipeline.convert
from lamina import measure
from lamina.pipeline.study import Studied
from lamina.record import Timing


class Counter(TorchDispatchMode):
    """Counts FLOPs, those of batch normalization too; torch's own counter does not allow calls of autograd.grad."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        self.total += formula(*args, **(kwargs or {}), out_val=out) if formula else 0
        self.total += out[0].numel() if "batch_norm" in str(func) and isinstance(out, tuple) else 0
        return out


def by_flops(steps: Mapping[str, Callable[[], object]]) -> dict[str, Timing | Exception]:
    """A microsecond for each thousand FLOPs that a step counts, and one for the step."""
    found: dict[str, Timing | Exception] = {}
    for name, step in steps.items():
        try:
            with Counter() as counter:
                step()
        except RuntimeError as error:
            found[name] = error
        else:
            time = 1.0 + counter.total / 1e3
            found[name] = Timing("cpu", "-", time, 0.999 * time, 1.001 * time, 9)
    return found


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[lamina.pipeline.convert.__module__]  # the package has the function under its name
    monkeypatch.setattr(module, "timer", lambda device, mode, rounds=9, limit_s=inf, ready=False, twice=False: by_flops)
    monkeypatch.setattr(measure, "peak_memory", NoMemory)


class NoMemory:
    bytes = 7

    def __init__(self, device: object) -> None: ...

    def __enter__(self) -> NoMemory:
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the study that the tests of a file share, with its database."""
    return tmp_path_factory.mktemp("study")


@pytest.fixture(scope="module")
def made() -> list[Studied]:
    """That study. The first test makes it, since times are counted only in tests."""
    return []
