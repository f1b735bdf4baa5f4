"""What tests of kernels need: a device that runs them, interpreted where there is no GPU."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lamina.accelerate.runtime import launch_cache
from lamina.accelerate.runtime.replay import extension, wait_for_extension
from lamina.run import precision_mode

from .bounds import hold
from .precisions import TYPES

# Triton 3.6 turns a run-time loop bound, which NumPy holds as an array of one element, into a number this way.
INTERPRETER = "ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning"
FORWARD_MODE = "ignore:`torch.jit.script` is deprecated:DeprecationWarning"
"""What PyTorch's own forward mode gives rise to when it is first used."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(INTERPRETER))
            if "transforms" in item.name:
                item.add_marker(pytest.mark.filterwarnings(FORWARD_MODE))


@pytest.fixture
def where_kernels_run() -> Iterator[None]:
    """New tensors are on the GPU if there is one."""
    if not torch.cuda.is_available():
        yield
        return
    with torch.device("cuda"):
        yield


@pytest.fixture(params=TYPES)
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each in turn, set for the library too."""
    with precision_mode(request.param, autotune=False):
        yield request.param


@pytest.fixture(autouse=True)
def no_launch_plans() -> None:
    """Plans that one test recorded with replaced functions are not replayed in another."""
    launch_cache.clear()


@pytest.fixture(autouse=True)
def within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold interpreted kernels to the memory that they are given."""
    if not torch.cuda.is_available():
        hold(monkeypatch)


@pytest.fixture
def own_binaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled binaries are kept in a folder of the test's own."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))


@pytest.fixture(scope="session")
def extension_module() -> Any:
    """The C++ extension that replays launch plans; without a GPU it is in use by `native` alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without a compiler there is one, in another thread
        if not wait_for_extension():
            pytest.skip("no C++ compiler")
    extension.use_extension(torch.cuda.is_available())
    return extension.loaded.module


@pytest.fixture
def native(extension_module: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The C++ extension, in use."""
    monkeypatch.setattr(extension.loaded, "wanted", True)
    launch_cache.clear()
    return extension_module


@pytest.fixture
def in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launch plans are replayed in Python."""
    monkeypatch.setattr(extension.loaded, "wanted", False)
