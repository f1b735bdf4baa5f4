"""Device names: parsing, availability and model names."""

from __future__ import annotations

import torch

from lamina.errors import MissingError, UsageError


def resolve(device: torch.device | str) -> torch.device:
    """The CPU, or one CUDA device with its index. Errors: UsageError, MissingError."""
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise UsageError(f"expected a device such as 'cpu' or 'cuda:0', got {device!r}") from error
    if found.type == "cpu":
        return torch.device("cpu")
    if found.type != "cuda":
        raise UsageError(f"expected a 'cpu' or 'cuda' device, got {str(device)!r}")
    if not torch.cuda.is_available():
        raise MissingError(
            f"expected a CUDA device for {str(device)!r}, found none: use device 'cpu', or check the driver "
            "and that torch is a CUDA build"
        )
    index = torch.cuda.current_device() if found.index is None else found.index
    if index >= torch.cuda.device_count():
        raise MissingError(f"expected a CUDA device {index}, found {torch.cuda.device_count()} device(s)")
    return torch.device("cuda", index)


def lost(device: torch.device) -> str | None:
    """The error that makes a CUDA device unusable for this process, such as an illegal address; None if it works.

    Such an error comes back at every synchronization. Others, such as out of memory, come once.
    """
    error: RuntimeError | None = None
    for _ in range(2):
        try:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            return None
        except RuntimeError as failure:
            error = failure
    return next(iter(str(error).splitlines()), "CUDA error")


def name_of(device: torch.device) -> str:
    """The product name of a GPU, or the model name of the CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model()


def cpu_model() -> str:
    """The CPU's model name as the kernel gives it, else the architecture."""
    import platform
    from pathlib import Path

    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
