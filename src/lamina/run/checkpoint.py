"""Crash-safe checkpoints: one safetensors file, replaced atomically."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from lamina.errors import LaminaError, UnsupportedError, UsageError


def save(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write tensors and JSON-serializable ``facts``. The file is replaced atomically.

    Raises:
        LaminaError: it cannot be written, for instance on a full disk; the former file is kept.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save_file(_separate(tensors), temporary, {"lamina": json.dumps(facts)})
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        raise LaminaError(f"{path}: the checkpoint cannot be written ({error}); the former one is kept") from error
    finally:
        temporary.unlink(missing_ok=True)


def require_strided(tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors that a safetensors file cannot hold.

    Raises:
        UnsupportedError: one is sparse or nested.
    """
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided:
            layout = str(tensor.layout).removeprefix("torch.")
            raise UnsupportedError(f"{name}: safetensors files hold strided tensors, got a {layout} one")


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors in host memory; those that share memory, as tied weights do, are written once for each name."""
    require_strided(tensors)
    written: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        host = tensor.detach().contiguous().cpu()
        storage = host.untyped_storage().data_ptr()
        written[name] = host.clone() if storage in storages else host
        storages.add(storage)
    return written


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a checkpoint written by :func:`save`.

    Raises:
        UsageError: the file is missing, damaged, or not a checkpoint.
    """
    try:
        with safe_open(path, framework="pt") as file:
            facts = (file.metadata() or {}).get("lamina")
            if facts is None:
                raise UsageError(
                    f"{path}: expected a lamina checkpoint, got a safetensors file without lamina metadata"
                )
            return {name: file.get_tensor(name) for name in file.keys()}, json.loads(facts)  # noqa: SIM118
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise UsageError(f"{path}: expected a lamina checkpoint, got: {error}") from error
