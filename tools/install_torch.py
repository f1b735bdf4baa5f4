"""Install torch into this interpreter's environment, then write matching constraints.

Run with the environment's own Python; standard library only. The first source that works is taken:

1. torch is there already (a system or container installation): kept, whatever its version.
2. A wheel in one of pip's own find-links folders.
3. The wheel index named by TORCH_INDEX, as the only index. A CPU or a CUDA index, as you like.
4. With TORCH_FROM_PYPI=1, pip's usual index: the CUDA build, several gigabytes.

torch comes without its dependencies: the project's own installation, right after, takes those from the usual
index, so that no name is looked up in two places.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "constraints.txt"
PIN = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^\s;]+)", re.MULTILINE)


def main() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 - reports an unsupported Python
        have = sys.version.split()[0]
        sys.exit(f"lamina needs Python 3.11 or newer, got {have}: rm -r .venv, then make PYTHON=python3.12")
    lock = LOCK.read_text(encoding="utf-8")
    if installed("torch") is None:
        install(dict(PIN.findall(lock))["torch"])
    out = Path(sys.prefix) / "constraints.txt"
    out.write_text(constraints(lock, kept()), encoding="utf-8")
    print(f"torch {installed('torch')}; constraints for the rest: {out}")


def install(version: str) -> None:
    """Install this version of torch, without dependencies, from the first source that has it."""
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--no-compile", f"torch=={version}"]
    for source in sources(os.environ):
        if subprocess.run([*pip, *source], check=False).returncode == 0:
            return
    sys.exit(
        f"torch {version} is not here and no source offers it. Name a PyTorch wheel index for this machine, "
        "CPU or CUDA, in TORCH_INDEX, or set TORCH_FROM_PYPI=1 for the CUDA build (several gigabytes)."
    )


def sources(environ: Mapping[str, str]) -> Iterator[list[str]]:
    """pip options of each package source, in order."""
    yield ["--no-index", "-q"]  # quiet: not finding it here is not an error
    if index := environ.get("TORCH_INDEX"):
        yield ["--index-url", index, "--retries", "0", "--timeout", "30"]
    if environ.get("TORCH_FROM_PYPI") == "1":
        yield []


def kept() -> dict[str, str | None]:
    """Packages that the lock must not change: name -> installed version, or None if torch's own pin applies.

    A CUDA build of torch pins its triton and nvidia packages; a system's torch was built against its numpy.
    """
    keep: dict[str, str | None] = {"torch": installed("torch")}
    for requirement in metadata.requires("torch") or []:
        if pinned := re.match(r"([\w.-]+)(\[[^]]*])?\s*\(?==", requirement):
            keep[normal(pinned[1])] = None
    for name in ("numpy", "triton"):
        if (version := installed(name)) and not inside(name):
            keep[name] = version
    return keep


def constraints(lock: str, keep: Mapping[str, str | None]) -> str:
    """The lock with the lines of the kept packages replaced by their versions, or removed if there is none.

    >>> constraints("rich==15.0.0\\ntorch==2.13.0\\ntriton==3.6.0", {"torch": "2.11.0+cu130", "triton": None})
    'rich==15.0.0\\ntorch==2.11.0+cu130\\n'
    """
    pins = ((line, PIN.match(line)) for line in lock.splitlines())
    lines = [line for line, pin in pins if not (pin and normal(pin["name"]) in keep)]
    lines += [f"{name}=={version}" for name, version in sorted(keep.items()) if version]
    return "\n".join(lines) + "\n"


def installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def inside(name: str) -> bool:
    """Whether the package is in this environment and not in the system installation below it."""
    return Path(str(metadata.distribution(name).locate_file(""))).is_relative_to(sys.prefix)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main()
