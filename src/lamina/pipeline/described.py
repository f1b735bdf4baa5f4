"""What a name on the command line stands for, and its layers: without PyTorch, unless it is another package's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lamina import recipes
from lamina.errors import UsageError, nearest
from lamina.pipeline.candidates import candidates
from lamina.spec import Input, ResolvedLayer, Workload
from lamina.spec.files import SUFFIXES, read
from lamina.spec.zoo import DEFAULT_BATCH, ZOO, Entry

WEIGHTS = (".pt", ".pth", ".pt2", ".ckpt", ".bin", ".pkl", ".safetensors", ".onnx", ".h5", ".npz", ".gguf")
"""Endings of files of weights and of exported programs."""


@dataclass(frozen=True)
class Described:
    """The layers of a network at one batch size; ``workload`` is what its file asks for."""

    name: str
    batch: int
    layers: tuple[ResolvedLayer, ...]
    workload: Workload | None = None
    remarks: tuple[str, ...] = ()


def meaning(text: str, variables: Mapping[str, str] | None = None) -> Entry | Path | str:
    """What a name stands for: a network of the zoo, a file (a recipe's too), or ``package:name`` as it is.

    Raises:
        UsageError: none of them; with the nearest known name. Or a file of weights, or of Python without a name in it.
    """
    if text in ZOO:
        if variables:
            raise UsageError(f"--set changes files; the zoo's {text} has no variables, got {', '.join(variables)}")
        return ZOO[text]
    _require_description(text)
    path = Path(text)
    if path.exists() or (path.suffix in SUFFIXES and path.parent != Path()):
        return path
    if ":" in text:
        return text
    known = {name: recipe.path for recipe in recipes.ls() for name in (recipe.name, recipe.path.stem, recipe.path.name)}
    if text in known:
        return recipes.find(text).path
    if path.suffix in SUFFIXES:
        return path
    raise UsageError(
        f"{text!r} is no file, no network of the zoo and no recipe: {nearest(text, [*ZOO, *known])} "
        "(see 'lamina models' and 'lamina recipes ls')"
    )


def _require_description(text: str) -> None:
    """Refuse a file of weights, whatever name follows it, and one of Python that no name follows."""
    path, file = Path(text), Path(text.partition(":")[0])
    if file.suffix.lower() in WEIGHTS and file.is_file():
        raise UsageError(
            f"{file} is a file of weights or an exported program, not a network that lamina can take: give the "
            "function that builds it, as FILE.py:FUNCTION, which may load the weights itself"
        )
    if path.suffix == ".py" and path.is_file():
        modules, functions = candidates(path)
        hint = f"; {nearest('', known)}" if (known := [*modules, *functions]) else ""
        raise UsageError(f"{path}: name a function or class of it, as {path}:NAME{hint}")


def selectable(text: str, variables: Mapping[str, str] | None = None) -> bool:
    """Whether a network is a file that asks for implementations other than dense, of its workload or its layers."""
    if not isinstance(meaning(text, variables), Path):
        return False
    found = describe(text, variables)
    own = [*(found.workload.impl if found.workload else ()), *(one.layer.method for one in found.layers)]
    return any(method is not None and not method.dense for method in own)


def needs_torch(text: str, variables: Mapping[str, str] | None = None) -> bool:
    """Whether a network must be traced to know its layers: networks of other packages."""
    return isinstance(meaning(text, variables), str)


def describe(
    text: str,
    variables: Mapping[str, str] | None = None,
    input_size: Sequence[int] | Sequence[Input] | str | None = None,
    batch: int | None = None,
) -> Described:
    """The layers of a network with their shapes, computing nothing.

    Args:
        text: a network of the zoo, a file, a recipe, or ``package:name``, which is imported and traced.
        variables: of a file.
        input_size: one sample's shape, where the package does not tell.
        batch: batch size; by default that of the file's workload, or the network's own.

    Raises:
        UsageError: the name stands for nothing; with the nearest known name.
        SpecError: the file is wrong.
    """
    match meaning(text, variables):
        case Entry() as entry:
            size = batch or DEFAULT_BATCH
            return Described(entry.name, size, entry.resolve(size))
        case Path() as path:
            network, workload = read(path, variables or {})
            size = batch or next(iter(workload.batch), network.batch)
            return Described(network.name, size, network.resolve(size), workload, network.remarks)
        case _:
            from lamina.pipeline.targets import find

            target, workload_of_target = find(text, variables, input_size)
            size = batch or target.batch
            return Described(target.name, size, target.resolve(size), workload_of_target, target.remarks)
