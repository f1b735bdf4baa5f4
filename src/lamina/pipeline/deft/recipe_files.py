"""A converted network as a folder: weights as safetensors, and a recipe in JSON with the configuration of each layer.

The folder holds no code: layers are built from the network's name or description and the recipe, and the weights are
loaded into them. A loaded network computes the same as the saved one, bit for bit.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lamina import build, run
from lamina.accelerate.common.batchnorm import fold_batchnorm
from lamina.accelerate.methods.circulant.activation_fusion import fuse_activations
from lamina.accelerate.methods.circulant.nn import allow_fallback
from lamina.build.models import ZOO
from lamina.errors import UnsupportedError, UsageError
from lamina.pipeline.deft.layer_recipes import LayerRecipe, Methods, describe, rebuild
from lamina.spec import Network, Precision
from lamina.spec.toml import read_toml, write_toml
from lamina.spec.validated import Validated

FORMAT: Literal["lamina-deft"] = "lamina-deft"
VERSION: Literal[1] = 1
RECIPE, WEIGHTS = "recipe.json", "weights.safetensors"
FREE, RATIO = 256 << 20, 4096
"""Bytes of parameters that a description may have, or times the size of the weights file."""


class NetworkRecipe(Validated):
    """The dense network: a name of the zoo, a description in TOML, or passed by the caller.

    ``folded`` says that each BatchNorm is folded into the layer before it, before layers change.
    """

    source: str
    classes: Annotated[int, Field(ge=1)] | None = None
    description: str | None = None
    folded: bool = False


class Recipe(Validated):
    """The contents of ``recipe.json``."""

    format: Literal["lamina-deft"] = FORMAT
    version: Literal[1] = VERSION
    network: NetworkRecipe
    precision: Precision
    layers: dict[str, LayerRecipe]
    facts: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class Origin:
    """The source of a dense network, and whether each BatchNorm was folded into the layer before it."""

    source: str
    classes: int | None
    network: Network | None
    folded: bool = False


def save(
    folder: Path,
    model: nn.Module,
    dense: nn.Module,
    origin: Origin,
    precision: Precision,
    facts: Mapping[str, Any],
    methods: Methods = MappingProxyType({}),
) -> None:
    """Save a network that was converted from a dense one. Each file is replaced atomically.

    Args:
        folder: created if it does not exist.
        model: the network to save.
        dense: the network that it was converted from, with the same structure.
        origin: the source of the dense network.
        precision: of the model.
        facts: additional entries of the recipe, JSON-able.
        methods: as `describe` takes them.

    Raises:
        UsageError: recipes do not support the type of a layer.
    """
    description = write_toml(origin.network) if origin.network else None
    recipe = Recipe(
        network=NetworkRecipe(
            source=origin.source, classes=origin.classes, description=description, folded=origin.folded
        ),
        precision=precision,
        layers=describe(model, dense, methods),
        facts=dict(facts),
    )
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().contiguous().cpu().clone() for name, tensor in run.saved_weights(model).items()}
    drafts = {name: folder / f".{name}.{os.getpid()}" for name in (WEIGHTS, RECIPE)}
    try:
        save_file(tensors, drafts[WEIGHTS], {"format": "pt"})
        text = json.dumps(recipe.model_dump(mode="json"), indent=1, allow_nan=False)
        drafts[RECIPE].write_text(text + "\n", encoding="utf-8")
        for name, draft in drafts.items():
            draft.replace(folder / name)
    finally:
        for draft in drafts.values():
            draft.unlink(missing_ok=True)


def path_of(name: str, given: object, expected: str = "a path") -> Path:
    """A path that may be given as text.

    Raises:
        UsageError: it is neither; with the ``name`` of the argument and what was ``expected``.
    """
    if not isinstance(given, str | os.PathLike):
        raise UsageError(f"{name}: expected {expected}, got {given!r}")
    return Path(given)


def load(
    path: str | os.PathLike[str], network: nn.Module | None = None, device: torch.device | str = "cpu"
) -> nn.Module:
    """The network that :func:`save` wrote, in evaluation mode.

    Args:
        path: the folder, or the recipe in it.
        network: the dense network, if it is not in the zoo and has no description; changed in place.
        device: of the result.

    Raises:
        UsageError: the files are missing, damaged, of an unknown version, or do not fit each other.
    """
    folder = path_of("path", path)
    folder = folder.parent if folder.name == RECIPE else folder
    recipe = read_recipe(folder)
    tensors = _weights(folder / WEIGHTS)
    dense = _dense(recipe, folder, network)
    if recipe.network.folded:
        _fold(dense, folder)
    model = rebuild(dense, recipe.layers, tensors, str(folder / WEIGHTS))
    model = build.to_precision(model, recipe.precision, torch.device("cpu"), "nchw")
    _fill(model, tensors, folder / WEIGHTS)
    fuse_activations(model)
    allow_fallback(model)
    return model.to(device).eval()


def how_to_load(folder: Path) -> str:
    """How Python gets a saved network back: the dense one of a file or a package must be passed to it."""
    network = read_recipe(folder).network
    if network.description is not None or network.source in ZOO:
        return f"lamina.load({str(folder)!r}) gives the network back"
    return f"lamina.load({str(folder)!r}, network) gives it back, of the dense network that your code builds"


def read_recipe(folder: Path) -> Recipe:
    """The recipe of a folder.

    Raises:
        UsageError: there is none, or it has another version.
    """
    path = folder / RECIPE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{path}: expected a recipe as 'lamina deft' writes it, got {type(error).__name__}: {error}"
        ) from error
    got = document.get("format") if isinstance(document, dict) else None
    if got != FORMAT:
        raise UsageError(f"{path}: expected the format {FORMAT!r}, got {got!r}; name a folder that 'lamina deft' wrote")
    if document.get("version") != VERSION:
        raise UsageError(
            f"{path}: expected version {VERSION}, got {document.get('version')!r}; "
            "load it with the lamina that wrote it, or make it again"
        )
    try:
        return Recipe.model_validate(document)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise UsageError(f"{path}: {faults}") from error


def digest(model: nn.Module) -> str:
    """A name for the values of a network's parameters and buffers: equal for equal values."""
    total = hashlib.sha256()
    for name, tensor in sorted(run.saved_weights(model).items()):
        total.update(name.encode())
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:16]


def _dense(recipe: Recipe, folder: Path, network: nn.Module | None) -> nn.Module:
    """The dense network, built or passed by the caller."""
    if network is not None:
        return network
    if recipe.network.description is not None:
        described, _ = read_toml(recipe.network.description, f"{folder / RECIPE}: network.description")
        _require_plausible(described, folder)
        return build.from_network(described).make(None)
    source = recipe.network.source
    if source in ZOO:
        return build.from_zoo(ZOO[source]).make(recipe.network.classes)
    # A name from a file is not imported, since that would run arbitrary code.
    raise UsageError(
        f"{folder / RECIPE}: expected a network of the zoo or a description, got {source!r}; "
        "build the dense network and pass it: lamina.load(path, network)"
    )


def _fold(network: nn.Module, folder: Path) -> None:
    try:
        fold_batchnorm(network)
    except UnsupportedError as error:
        raise UsageError(f"{folder / RECIPE}: expected a network whose BatchNorm can be folded: {error}") from error


def _require_plausible(network: Network, folder: Path) -> None:
    """Refuse a description of far more parameters than any method compresses into the weights beside it."""
    size, stored = 4 * sum(layer.parameters for layer in network.resolve()), (folder / WEIGHTS).stat().st_size
    if size > max(FREE, RATIO * stored):
        raise UsageError(
            f"{folder / RECIPE}: network.description has {size >> 20:,} MiB of parameters, expected at most {RATIO:,} "
            f"times the {stored >> 10:,} KiB of {WEIGHTS}"
        )


def _weights(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{path}: expected a safetensors file, got {type(error).__name__}: {error}") from error


def _fill(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Load all tensors, or none."""
    expected = run.saved_weights(model)
    missing, extra = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    if missing or extra:
        faults = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"has unknown {', '.join(extra)}"] * bool(extra)
        raise UsageError(f"{path}: expected the tensors of its recipe; it {' and '.join(faults)}")
    for name, tensor in tensors.items():
        like = expected[name]
        if is_lazy(like):  # it gets the shape of the tensor
            continue
        if like.shape != tensor.shape or like.dtype != tensor.dtype:
            raise UsageError(
                f"{path}: {name}: expected {like.dtype} {tuple(like.shape)} by its recipe, "
                f"got {tensor.dtype} {tuple(tensor.shape)}"
            )
    run.load_weights(model, tensors)
