"""What a name on the command line stands for, and its layers: without PyTorch, unless it is another package's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lamina import recipes
from lamina.errors import UsageError, nearest
from lamina.spec import Input, ResolvedLayer, Workload
from lamina.spec.files import SUFFIXES, read
from lamina.spec.zoo import DEFAULT_BATCH, ZOO, Entry


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
        UsageError: none of them; with the nearest known name.
    """
    if text in ZOO:
        if variables:
            raise UsageError(f"--set changes files; the zoo's {text} has no variables, got {', '.join(variables)}")
        return ZOO[text]
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
