"""Shipped workload files: primitives, models, and workloads of papers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lamina.errors import UsageError, nearest

KINDS = ("primitives", "models", "papers")


@dataclass(frozen=True)
class Recipe:
    """One shipped file. ``name`` is its category and file name, as in ``models/lenet5``."""

    name: str
    kind: str
    path: Path
    summary: str
    """The first line of the file, a comment."""


def ls() -> tuple[Recipe, ...]:
    """All recipes, by category."""
    here = Path(__file__).parent
    return tuple(
        Recipe(f"{kind}/{path.stem}", kind, path, _summary(path))
        for kind in KINDS
        for path in sorted((here / kind).iterdir())
        if path.is_file()
    )


def find(name: str) -> Recipe:
    """The recipe called ``name``; the category and the file suffix are optional.

    Raises:
        UsageError: there is none, or more than one; with the nearest names.
    """
    known = ls()
    found = [each for each in known if name in (each.name, f"{each.kind}/{each.path.name}")] or [
        each for each in known if name in (each.path.stem, each.path.name)
    ]
    if not found:
        names = [*(each.name for each in known), *(each.path.stem for each in known)]
        raise UsageError(f"there is no recipe {name!r}: {nearest(name, names)}")
    if len(found) > 1:
        raise UsageError(f"recipe {name!r} may be {' or '.join(each.name for each in found)}: say which")
    return found[0]


def show(name: str) -> str:
    """The text of a recipe.

    Raises:
        UsageError: there is no such recipe.
    """
    return find(name).path.read_text(encoding="utf-8")


def cp(name: str, folder: Path, force: bool = False) -> Path:
    """Copy a recipe to ``folder`` for editing, and return its path.

    Raises:
        UsageError: there is no such recipe or folder, or the file exists and ``force`` is not given.
    """
    recipe = find(name)
    if not folder.is_dir():
        raise UsageError(f"{folder}: expected a folder that exists")
    copy = folder / recipe.path.name
    if copy.exists() and not force:
        raise UsageError(f"{copy} exists already: choose another folder, or overwrite it with --force")
    try:
        copy.write_bytes(recipe.path.read_bytes())
    except OSError as error:
        raise UsageError(f"{copy}: cannot be written: {error.strerror or error}") from None
    return copy


def _summary(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.readline().lstrip("# ").rstrip()
