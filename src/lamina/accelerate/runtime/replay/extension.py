"""The C++ extension that replays launch plans: built once in the background, kept on disk, optional.

Until it is built, and where it cannot be, plans are replayed in Python: the results are the same, launch overhead is
larger. Triton needs a C compiler anyway; this needs the C++ compiler of the same package.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sysconfig
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from importlib.machinery import ExtensionFileLoader
from importlib.resources import files
from os import getpid
from pathlib import Path
from typing import Any

import torch

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

from lamina.accelerate.runtime.launch_cache import caches, on_plan
from lamina.accelerate.runtime.private_apis import supported

COMPILERS = ("g++", "c++", "clang++")

BUILD_TIMEOUT_S = 600


class Slot(int):
    """A tensor of a plan by its number, among the arguments of an operator."""


class _Loaded:
    def __init__(self) -> None:
        self.module: Any = None
        self.thread: threading.Thread | None = None
        self.wanted: bool | None = None
        self.pending: list[Callable[[Any], None]] = []


loaded = _Loaded()
_lock = threading.Lock()


def extension() -> Any | None:
    """The extension's module, or None while it is not there. Starts its build on the first call with a GPU."""
    if loaded.wanted is None:
        with _lock:
            if loaded.wanted is None:
                wanted = torch.cuda.is_available() and supported()
                if wanted:
                    _start()
                loaded.wanted = wanted
    return loaded.module if loaded.wanted else None


on_plan.append(extension)  # the operators of compiled models are not called through `ReplayedOperator`


def use_extension(enabled: bool) -> None:
    """Whether to build and use the extension from now on, for comparisons; by default it is used with a GPU."""
    loaded.wanted = enabled
    if enabled and loaded.thread is None and supported():
        _start()


def when_loaded(callback: Callable[[Any], None]) -> None:
    """Call a function with the extension's module, as soon as it is there."""
    with _lock:
        module = loaded.module
        if module is None:
            loaded.pending.append(callback)
    if module is not None:
        callback(module)


def wait_for_extension(timeout_s: float = BUILD_TIMEOUT_S) -> bool:
    """Wait until the extension is built and loaded, also without a GPU; whether it is."""
    with _lock:
        if loaded.thread is None and supported():
            loaded.wanted = True
            _start()
    if loaded.thread is not None:
        loaded.thread.join(timeout_s)
    return loaded.module is not None


def _start() -> None:
    loaded.thread = threading.Thread(target=_load, name="lamina-replay", daemon=True)
    loaded.thread.start()


def _load() -> None:
    try:
        module = _import(_built())
    except (OSError, ImportError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", None) or error
        warnings.warn(
            f"launch plans are replayed in Python, with a larger launch overhead: {str(detail).strip()[-500:]}",
            stacklevel=2,
        )
        return
    raw_stream = torch._C._cuda_getCurrentRawStream if torch.cuda.is_available() else lambda index: 0
    getter = getattr(torch._C, "_get_fp32_precision_getter", None)
    precision = partial(getter, "cuda", "matmul") if getter else lambda: torch.backends.cuda.matmul.fp32_precision
    module.setup(torch.nn.Parameter, Slot, precision, raw_stream)
    caches.append(module)
    with _lock:
        loaded.module = module
        pending, loaded.pending = loaded.pending, []
    for each in pending:
        each(module)


def _built() -> Path:
    """The shared library, from disk or built."""
    source = files(__package__).joinpath("replay.cpp").read_text(encoding="utf-8")
    words = source, torch.__version__, sysconfig.get_config_var("EXT_SUFFIX") or ""
    name = sha256(chr(0).join(words).encode()).hexdigest()[:16]
    path = Path(torch.hub.get_dir()).parent / "lamina" / name / "lamina_replay.so"
    if path.exists():
        return path
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise OSError(f"expected a C++ compiler ({', '.join(COMPILERS)}), found none")
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.with_suffix(".lock")):
        if not path.exists():  # another process has built it meanwhile
            _build(compiler, source, path)
    return path


def _build(compiler: str, source: str, path: Path) -> None:
    code, part = path.with_suffix(f".{getpid()}.cpp"), path.with_suffix(f".{getpid()}.so")
    code.write_text(source, encoding="utf-8")
    root = Path(torch.__file__).parent
    includes = root / "include", root / "include" / "torch" / "csrc" / "api" / "include"
    subprocess.run(
        [
            compiler, "-O2", "-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden", "-w",
            *(f"-I{each}" for each in (*includes, sysconfig.get_paths()["include"])),
            str(code), "-o", str(part), f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python",
        ],
        check=True, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S,
    )  # fmt: skip
    code.unlink()
    part.replace(path)  # atomic: whoever finds it finds it whole


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time: the ranks of a job would all build at once."""
    with path.open("w") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)  # released with the file, also when the process is killed
        yield


def _import(path: Path) -> Any:
    loader = ExtensionFileLoader("lamina_replay", str(path))
    spec = importlib.util.spec_from_file_location("lamina_replay", path, loader=loader)
    if spec is None:
        raise ImportError(f"expected a loadable extension, got {path}")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
