"""The extension is optional: without a compiler, launch plans are replayed in Python, with one warning."""

import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from lamina.accelerate.runtime import launch_cache
from lamina.accelerate.runtime.replay import extension


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is loaded, and nothing built."""
    monkeypatch.setattr(extension, "loaded", type(extension.loaded)())
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))


@pytest.mark.usefixtures("fresh")
def test_without_a_compiler_there_is_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    said: list[str] = []
    monkeypatch.setattr(warnings, "warn", lambda message, stacklevel: said.append(message))
    assert not extension.wait_for_extension() and not extension.wait_for_extension()
    assert extension.extension() is None
    (message,) = said
    assert "replayed in Python" in message and "clang++" in message


@pytest.mark.usefixtures("fresh")
def test_a_failed_build_names_the_compilers_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise subprocess.CalledProcessError(1, "g++", stderr="replay.cpp:1: fatal error: Python.h: no such file")

    monkeypatch.setattr(subprocess, "run", fail)
    monkeypatch.setattr(shutil, "which", lambda name: name)
    said: list[str] = []
    monkeypatch.setattr(warnings, "warn", lambda message, stacklevel: said.append(message))
    assert not extension.wait_for_extension()
    assert "Python.h" in said[0]


@pytest.mark.usefixtures("fresh")
def test_without_a_gpu_nothing_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert extension.extension() is None and extension.loaded.thread is None


@pytest.mark.usefixtures("fresh")
def test_it_is_built_when_launches_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled models call operators only through the dispatcher."""
    started: list[bool] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(extension, "_start", lambda: started.append(True))

    @launch_cache.cached_launches
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x + x

    doubled(torch.ones(2))
    assert not started
    for _ in range(2):
        doubled(torch.ones(2))
    assert started == [True]


@pytest.mark.gpu
def test_it_is_built_for_a_model_that_runs_only_compiled() -> None:
    """In a process of its own: this one has called operators before."""
    code = """if True:
        import torch, lamina
        from lamina.accelerate.runtime.replay import extension
        model, _ = lamina.convert(torch.nn.Linear(256, 256), lamina.Circulant(64))
        model, x = torch.compile(model.cuda()), torch.randn(32, 256, device="cuda")
        for _ in range(3):
            model(x).sum().backward()
        assert extension.loaded.thread is not None
        assert extension.wait_for_extension()
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_it_can_be_switched_off(native: Any) -> None:
    assert extension.extension() is native
    extension.use_extension(False)
    assert extension.extension() is None
    extension.use_extension(True)
    assert extension.extension() is native


def test_callbacks_run_once_the_extension_is_there(native: Any) -> None:
    found: list[Any] = []
    extension.when_loaded(found.append)
    assert found == [native]
