"""What tests get: kernels interpreted where there is no GPU, few threads, fixed seeds, poisoned memory."""

import gc
import os
import random
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# Read once by OpenBLAS when NumPy is imported: its threads and torch's fight over the same cores.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait by spinning take cores that others need
if "PYTEST_XDIST_WORKER" in os.environ:  # each worker has a core; what tests start inherits this
    os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import pytest
import torch
from hypothesis import settings
from torch.utils._device import _device_constructors

CUDA = torch.cuda.is_available()
if not CUDA:
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is decorated, so before lamina is imported

if not CUDA and find_spec("triton"):
    from .interpreter import speed_up

    speed_up()

if not CUDA:  # a seed for such devices is kept for their first use, each with the text of its call stack
    for device in (torch.cuda, torch.mtia, torch.xpu):
        device.manual_seed_all = lambda seed: None

_device_constructors()  # kept from its first use, which must not see what tests replace

# What is imported and collected stays: looking for garbage in it takes a tenth of the time of all tests.
gc.set_threshold(10_000, 20, 50)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


# No deadline: no test depends on wall time. Derandomized: the same commit gives the same result.
settings.register_profile("lamina", deadline=None, derandomize=True)
settings.load_profile("lamina")


@pytest.hookimpl(tryfirst=True)  # before -m selects by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a CUDA device `gpu` and `counters` tests are deselected, whatever -m asks for.

    With one, tests of what runs in either place are tests of the GPU.
    """
    items.sort(key=lambda item: "compile" not in item.name)  # the longest first: no worker has one left at the end
    if CUDA:
        for item in items:
            if "where_kernels_run" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.gpu)
    needs_gpu = {i for i in items if i.get_closest_marker("gpu") or i.get_closest_marker("counters")}
    if CUDA:
        for item in needs_gpu:  # what torch says once in a process, whichever test is first there
            item.add_marker(pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"))
            item.add_marker(pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"))
            item.add_marker(pytest.mark.filterwarnings("ignore:RNN module weights are not part"))  # made anew for it
            item.add_marker(pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"))
            if item.get_closest_marker("alone") and os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1") != "1":
                item.add_marker(pytest.mark.skip(reason="other workers use the GPU: run it by itself with -m alone"))
        return
    if needs_gpu:
        config.hook.pytest_deselected(items=[*needs_gpu])
        items[:] = [item for item in items if item not in needs_gpu]


def seed() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


seed()  # what modules draw when they are imported
seeded = pytest.fixture(autouse=True, name="seeded")(seed)


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    """Where a test's own trace database goes; nothing is there yet."""
    return tmp_path / "lamina.db"


@pytest.fixture(autouse=True)
def schema_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """New SQLite databases are copies of the first; Alembic takes long to make one. Not where migrations are tested."""
    migrate = sys.modules.get("lamina.store.migrate")
    if migrate is not None and request.path.stem != "test_migrate":
        monkeypatch.setattr(migrate, "_upgrade", upgraded_once(migrate, migrate._upgrade))


SCHEMA: list[str] = []
"""The statements of a new database, from the first that was made."""


def upgraded_once(migrate: Any, upgrade: Callable[..., None]) -> Callable[..., None]:
    def run(connection: Any, scripts: Path, head: str) -> None:
        raw = connection.connection.driver_connection
        new = (connection.dialect.name, scripts, head) == ("sqlite", migrate.SCRIPTS, migrate.HEAD) and not [
            *raw.execute("SELECT name FROM sqlite_master")
        ]
        for statement in SCHEMA if new else ():
            raw.execute(statement)
        if new and SCHEMA:
            return
        upgrade(connection, scripts, head)
        if new:
            SCHEMA.extend(line for line in raw.iterdump() if line not in ("BEGIN TRANSACTION;", "COMMIT;"))

    return run


@pytest.fixture
def few_repetitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two calls are timed where nobody says how many, and the fewest that a repetition allows where one is given.

    A device's peaks are measured once, with small operands.
    """
    from lamina import measure

    few = measure.Repeat(2, 2, min_time_s=0, warmup=1)
    monkeypatch.setattr(measure, "time_each", partial(measure.time_each, repeat=few))
    monkeypatch.setattr(measure.Repeat, "enough", lambda repeat, samples, _: len(samples) >= repeat.min_samples)
    monkeypatch.setattr("lamina.measure.clocks.cpu._SAMPLE_S", 0.0)  # a sample is a call
    roofs = import_module("lamina.measure.roofs")  # the package's name is its function
    monkeypatch.setattr(roofs, "_REPEAT", few)
    monkeypatch.setattr(roofs, "_buffer_bytes", lambda _: 1 << 24)
    monkeypatch.setattr(roofs, "_GEMM_US", 0.0)
    monkeypatch.setattr(roofs, "measure_roofs", measured_once(roofs.measure_roofs))


PEAKS: dict[tuple[str, int], Any] = {}
"""The peaks of each device, with a number of threads."""


def measured_once(measure_roofs: Callable[[torch.device], Any]) -> Callable[[torch.device], Any]:
    def run(device: torch.device) -> Any:
        key = str(device), torch.get_num_threads()
        if key not in PEAKS:
            PEAKS[key] = measure_roofs(device)
        return PEAKS[key]

    return run


@pytest.fixture
def poisoned_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill with NaN what lamina allocates uninitialised, so that an element nobody wrote is seen."""

    def poisoned(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def wrapper(*args: object, **kwargs: object) -> torch.Tensor:
            tensor = allocate(*args, **kwargs)
            by_lamina = sys._getframe(1).f_globals.get("__name__", "").startswith("lamina.")
            if by_lamina and (tensor.is_floating_point() or tensor.is_complex()):
                with torch.no_grad():
                    tensor.fill_(float("nan"))
            return tensor

        return wrapper

    for owner, name in (
        (torch, "empty"),
        (torch, "empty_like"),
        (torch, "empty_strided"),
        (torch.Tensor, "new_empty"),
        (torch.Tensor, "new_empty_strided"),
    ):
        monkeypatch.setattr(owner, name, poisoned(getattr(owner, name)))
