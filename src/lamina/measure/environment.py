"""The provenance of a run: hardware and software versions, without the host name."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from lamina import __version__
from lamina.measure import nvml
from lamina.measure.device import cpu_model, name_of, resolve
from lamina.record.environment import Environment

_TIMEOUT_S = 20


def environment(device: torch.device | str) -> Environment:
    """The provenance of measurements on `device`. Errors: UsageError, MissingError."""
    device = resolve(device)
    ncu = shutil.which("ncu")
    common = Environment(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        lamina=__version__,
        commit=_own_commit(),
        device=name_of(device),
        device_kind=device.type,
        os=_operating_system(),
        cpu=cpu_model(),
        cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        python=platform.python_version(),
        torch=str(torch.__version__),
        numpy=_version("numpy"),
        triton=_version("triton"),
        cuda=torch.version.cuda,
        cudnn=_cudnn(),
        ncu=None if ncu is None else _ncu_version(ncu),
        ncu_path=ncu,
    )
    return common if device.type == "cpu" else _with_card(common, device)


@cache
def _own_commit() -> str | None:
    """The commit of this package, asked once: a process goes on with the files that it began with."""
    return commit(Path(__file__).resolve().parents[1])


def commit(package: Path) -> str | None:
    """The commit of the checkout of the package, with '+dirty' if tracked files differ from it, or of its archive.

    None for an installed copy: a repository around a virtual environment is not that of the package.
    """
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return archived(package)
    head = _git(package, "rev-parse", "HEAD")
    changes = _git(package, "status", "--porcelain", "--untracked-files=no")
    return f"{head}+dirty" if head and changes else head


def archived(package: Path) -> str | None:
    """The commit of a package in an archive by ``git archive``, which writes it to a file."""
    try:
        exported = (package / "COMMIT").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return exported if re.fullmatch("[0-9a-f]{40}", exported) else None


def _git(folder: Path, *arguments: str) -> str | None:
    return _output("git", "-C", str(folder), *arguments)


def _output(*command: str) -> str | None:
    """The output of a command; None if it is not installed or fails."""
    path = shutil.which(command[0])
    if path is None:
        return None
    try:
        done = subprocess.run([path, *command[1:]], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (subprocess.SubprocessError, OSError):
        return None
    return done.stdout.strip()


def _with_card(common: Environment, device: torch.device) -> Environment:
    card = torch.cuda.get_device_properties(device)
    found = nvml.settings(device)
    gpu = replace(
        common,
        compute_capability=f"{card.major}.{card.minor}",
        sm_count=card.multi_processor_count,
        l2_bytes=card.L2_cache_size,
        memory_bytes=card.total_memory,
    )
    if found is None:
        return gpu
    return replace(
        gpu,
        driver=found.driver,
        mig=found.mig,
        ecc=found.ecc,
        persistence=found.persistence,
        power_limit_w=found.power_limit_w,
    )


def _operating_system() -> str:
    try:
        distribution = platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        distribution = platform.system()
    return f"{distribution}, {platform.system()} {platform.release()} {platform.machine()}"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cudnn() -> str | None:
    number = torch.backends.cudnn.version()
    return None if number is None else str(number)


def _ncu_version(path: str) -> str | None:
    match = re.search(r"Version\s+([\d.]+)", _output(path, "--version") or "")
    return match[1] if match else None
