"""The cells of a sweep: command lines of a verb, keyed by their content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lamina import __version__
from lamina.errors import Fault, SpecError, nearest
from lamina.spec.grid import Grid, Settings, Value

OWNED = ("store", "resume", "format", "report", "output", "checkpoint", "dry_run", "help")
"""Options that a sweep sets itself, or that have no use in one."""
SHOWN = 20
Complaint = Callable[[tuple[str, ...]], str]
"""What is wrong with the words of a command line; empty for nothing."""


@dataclass(frozen=True)
class Option:
    """An option of a command, or its argument where ``flag`` is empty; ``off`` negates a flag without a value."""

    name: str
    flag: str = ""
    switch: bool = False
    off: str = ""

    def words(self, value: Value) -> tuple[str, ...]:
        """How the option is written with a value.

        Raises:
            ValueError: the value of a switch is not true or false.
        """
        if not self.switch:
            return (self.flag, spelled(value)) if self.flag else (spelled(value),)
        if not isinstance(value, bool):
            raise ValueError("expected true or false")
        word = self.flag if value else self.off
        return (word,) if word else ()


@dataclass(frozen=True)
class Command:
    """A verb, the words that it begins with, and its options by all of their names, with underscores."""

    verb: str
    words: tuple[str, ...]
    options: Mapping[str, Option]

    @property
    def saves(self) -> bool:
        """Whether the command writes an output folder beside its rows."""
        return "output" in self.options

    def option(self, key: str) -> Option | None:
        """The option of a setting; ``set.N`` is variable N of ``--set``."""
        name = key.replace("-", "_")
        if name.startswith("set.") and "set" in self.options:
            return Option(name, self.options["set"].flag)
        return None if name in OWNED else self.options.get(name)


@dataclass(frozen=True)
class Cell:
    """One command line of a sweep. ``settings`` are its options by their canonical names."""

    command: Command
    settings: Settings

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The command line after ``lamina``, without what the sweep adds."""
        options, argument = list[str](), list[str]()
        for key, value in self.settings.items():
            option = self.command.option(key)
            assert option is not None
            given = f"{key.removeprefix('set.')}={spelled(value)}" if key.startswith("set.") else value
            (options if option.flag else argument).extend(option.words(given))
        return (*self.command.words, *argument, *options)

    @cached_property
    def key(self) -> str:
        """Equal for cells with equal results: of the verb, the options, the files that they name, and lamina."""
        content = {key: _content(value) for key, value in self.settings.items()}
        text = json.dumps([self.command.verb, sorted(content.items()), __version__])
        return hashlib.sha256(text.encode()).hexdigest()[:20]


def cells(grid: Grid, command: Command, source: str, complaint: Complaint) -> tuple[Cell, ...]:
    """The different cells of a grid, in its order.

    Args:
        grid: the grid.
        command: its verb.
        source: the file of the grid, for messages.
        complaint: checks a command line; called until each value of each option was in one.

    Raises:
        SpecError: an option is unknown, or a command line is wrong; all faults without duplicates.
    """
    faults = dict.fromkeys(_unknown(grid, command))
    made: dict[str, Cell] = {}
    checked: set[tuple[str, str]] = set()
    for settings in grid.configurations() if not faults else ():
        options = {key: command.option(key) for key in settings}
        cell = Cell(command, {option.name: settings[key] for key, option in options.items() if option is not None})
        try:
            words = cell.words
        except ValueError as error:
            faults[f"{short_settings(settings)}: {error}"] = None
            continue
        pairs = {(key, spelled(value)) for key, value in cell.settings.items()}
        if not pairs <= checked and (fault := complaint(words)):
            faults[fault] = None
        checked |= pairs
        made.setdefault(cell.key, cell)
    if faults:
        more = [Fault(f"and {len(faults) - SHOWN} more faults")] if len(faults) > SHOWN else []
        raise SpecError(source, [*(Fault(message) for message in [*faults][:SHOWN]), *more])
    return tuple(made.values())


def spelled(value: Value) -> str:
    """A value as a command line has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def short_settings(settings: Settings) -> str:
    """Settings as ``batch_size=16 precision=fp32``."""
    return " ".join(f"{key}={spelled(value)}" for key, value in settings.items())


def _unknown(grid: Grid, command: Command) -> Iterator[str]:
    known = sorted(name for name in command.options if name not in OWNED)
    names: dict[str, str] = {}
    for key in (*grid.base, *grid.swept):
        option = command.option(key)
        if option is None and key.replace("-", "_") in OWNED:
            yield f"key {key!r}: a sweep sets this option itself: remove it"
        elif option is None:
            yield f"key {key!r} is no option of lamina {command.verb}: {nearest(key, known)}"
        elif option.name in names:
            yield f"keys {names[option.name]!r} and {key!r} are the same option: keep only one of them"
        else:
            names[option.name] = key


def _content(value: Value) -> str:
    """A value, and the digest of the file that it names: ``net.toml``, or ``net.py`` of ``net.py:build``."""
    text = spelled(value)
    for name in (text, text.rpartition(":")[0]):
        try:
            if Path(name).is_file():
                return f"{text} {hashlib.sha256(Path(name).read_bytes()).hexdigest()}"
        except (OSError, ValueError):
            continue
    return text
