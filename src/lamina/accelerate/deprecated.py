"""Names of version 0.1 that keep working for one version, each import with a DeprecationWarning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_PACKAGE = __name__.rpartition(".")[0]

RENAMED = {
    "choices": "common.choices",
    "circulant": "methods.circulant",
    "circulant.expanded": "methods.circulant.materialized",
    "circulant.halo.compiled": "methods.circulant.halo.cuda",
    "circulant.layer": "methods.circulant.layer_ops",
    "circulant.lstm": "methods.circulant.lstm.nn",
    "circulant.recurrent": "methods.circulant.lstm",
    "circulant.scaled": "methods.circulant.scaled_fp16",
    "circulant.transform": "methods.circulant.spectral",
    "cuda": "runtime.nvrtc",
    "device": "runtime.target_info",
    "direct": "runtime.eager_op",
    "driver": "runtime.driver",
    "elimination": "methods.elimination",
    "fission": "methods.weight_only",
    "fission.choice": "methods.weight_only.cost",
    "fission.simt": "papers.on_chip_fission.simt",
    "fission.simt_cost": "papers.on_chip_fission.cost",
    "fusion": "methods.fusion",
    "fusion.window": "common.geometry",
    "halves": "common.split_fp16",
    "kernels": "runtime.triton_utils",
    "launches": "runtime.launch",
    "operands": "common.operands",
    "ops": "runtime.triton_ops",
    "sparsity": "methods.activation_sparsity",
    "sparsity.dispatch": "methods.activation_sparsity.cost",
    "sparsity.compiled": "methods.activation_sparsity.ellpack.cuda",
    "sparsity.format": "methods.activation_sparsity.ellpack.format",
    "sparsity.halves": "methods.activation_sparsity.row_union.split_fp16",
    "sparsity.living": "methods.activation_sparsity.row_union.channels",
    "sparsity.monitor": "training.sparsity_monitor",
    "sparsity.monitor.chosen": "training.sparsity_monitor.modules",
    "sparsity.saved": "training.compressed_activations",
    "sparsity.saved.forms": "training.compressed_activations.formats",
    "sparsity.window": "common.geometry",
    "tapes": "runtime.launch_cache",
    "tiling": "common.tiling",
}
"""Old names of modules and packages below this one, and where they are now."""

ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "common.geometry": {
        "PoolWindow": "common.geometry.Pool2dGeometry",
        "Window": "common.geometry.Conv2dGeometry",
    },
    "common.tiling": {
        "SHARED": "common.tiling.SHARED_MEMORY",
        "between": "common.tiling.clamp",
        "power": "common.tiling.next_power_of_2",
    },
    "methods.activation_sparsity": {
        "Monitor": "training.sparsity_monitor.Monitor",
        "Pace": "training.sparsity_monitor.Pace",
        "Parameters": "training.sparsity_monitor.Parameters",
    },
    "methods.activation_sparsity.cost": {
        "Choice": "methods.activation_sparsity.cost.PhaseSelection",
        "Full": "methods.activation_sparsity.cost.Observed",
        "Plan": "methods.activation_sparsity.cost.PhaseImpls",
        "union_share": "methods.activation_sparsity.cost.union_density",
    },
    "methods.circulant.functional": {"chosen": "methods.circulant.functional.resolve_impl"},
    "methods.circulant.reference": {
        "cell": "methods.circulant.reference.lstm_cell",
        "signed": "methods.circulant.reference.flip_signs",
    },
    "papers.on_chip_fission.simt": {"convolution": "papers.on_chip_fission.simt.conv2d"},
    "runtime.launch_cache": {
        "Tape": "runtime.launch_cache.LaunchPlan",
        "forget": "runtime.launch_cache.clear",
        "taped": "runtime.launch_cache.cached_launches",
    },
    "runtime.nvrtc": {
        "KINDS": "runtime.nvrtc.DTYPE_CODES",
        "goes_on": "runtime.nvrtc.with_common_header",
    },
    "runtime.triton_ops": {"check_device": "runtime.triton_ops.check_kernel_operand"},
    "methods.weight_only.cost": {"Choice": "methods.weight_only.cost.FormatSelection"},
    "training.compressed_activations": {
        "Held": "training.compressed_activations.CompressionStatistics",
        "SavedActivations": "training.compressed_activations.CompressedActivations",
        "Saving": "training.compressed_activations.CompressedForward",
        "saved_activations": "training.compressed_activations.compressed_activations",
    },
    "methods.weight_only": {"Fission": "methods.weight_only.WeightOnly"},
    "methods.weight_only.config": {"Fission": "methods.weight_only.WeightOnly"},
    "methods.weight_only.nn": {
        "FissionedLinear": "methods.weight_only.nn.WeightOnlyLinear",
        "FissionedConv": "methods.weight_only.nn.WeightOnlyConv",
    },
}
"""Old names of classes in the modules of today that are reached by an old name, and where they are now."""


def current(name: str) -> str | None:
    """Where a module of an old name is now; nothing if the name is not an old one."""
    if not name.startswith(f"{_PACKAGE}."):
        return None
    parts = name.removeprefix(f"{_PACKAGE}.").split(".")
    for length in range(len(parts), 0, -1):
        if new := RENAMED.get(".".join(parts[:length])):
            return ".".join([_PACKAGE, new, *parts[length:]])
    return None


class Renamed(MetaPathFinder, Loader):
    """Finds modules by their old names: the very modules, so that classes and pickles are the same."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """A spec for an old name."""
        return ModuleSpec(name, self) if current(name) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module that the old name stands for."""
        new = current(spec.name)
        assert new is not None
        warnings.warn(f"{spec.name} has moved to {new}", DeprecationWarning, stacklevel=2)
        module = import_module(new)
        self._spec = module.__spec__
        if renamed := ATTRIBUTES.get(new.removeprefix(f"{_PACKAGE}.")):
            module.__getattr__ = partial(_attribute, new, renamed)  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: it has run under its own name, which it keeps."""
        module.__spec__ = self._spec


def _attribute(module: str, renamed: Mapping[str, str], name: str) -> Any:
    if name not in renamed:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    owner, _, last = renamed[name].rpartition(".")
    warnings.warn(f"{module}.{name} is now {_PACKAGE}.{renamed[name]}", DeprecationWarning, stacklevel=3)
    return getattr(import_module(f"{_PACKAGE}.{owner}"), last)


def install() -> None:
    """Let imports find the old names."""
    if not any(isinstance(finder, Renamed) for finder in sys.meta_path):
        sys.meta_path.insert(0, Renamed())  # before what would load a module again through its package's path
