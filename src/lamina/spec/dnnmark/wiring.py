"""The input of each layer, by DNNMark's run modes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lamina.errors import nearest
from lamina.spec.dnnmark.grammar import Section, Warnings
from lamina.spec.dnnmark.sections import DIMENSIONS, Settings
from lamina.spec.faults import Faults
from lamina.spec.network import Input
from lamina.spec.validated import LONGEST, short

NO_LAYER = "null"
"""``previous_layer`` of a layer that reads an input of its own."""


@dataclass(frozen=True)
class ParsedLayer:
    """A layer's section with its parsed settings; ``faulty`` if some of them are invalid."""

    section: Section
    name: str
    settings: Settings
    faulty: bool

    @property
    def line(self) -> int:
        """The line of the section."""
        return self.section.line

    @property
    def previous(self) -> str:
        """The layer whose output this one reads."""
        return str(self.settings["previous_layer"])

    @property
    def absent(self) -> str:
        """Dimensions missing in the section."""
        return ", ".join(axis for axis in DIMENSIONS if not self.settings[axis])


@dataclass(frozen=True)
class RunMode:
    """The run mode, and its name in the file."""

    mode: Literal["composed", "standalone"]
    word: str

    @classmethod
    def of(cls, general: Section, faults: Faults, warnings: Warnings) -> RunMode:
        """Parse the general section. DNNMark's ``none`` is ``standalone`` with uninitialized memory."""
        word = "none"
        for key, value, line, _ in general.entries:
            if key != "run_mode":
                hint = nearest(key[:LONGEST], ["run_mode"])
                faults.add(f"key {short(key)} is unknown in [{general.name}]: {hint}", line)
            elif value in ("none", "standalone", "composed"):
                word = value
            else:
                warnings.add(f"run_mode: {short(value)} is unknown and ignored", line)
        if word == "none":
            warnings.add("run_mode=none is read as standalone", general.line)
        return cls("composed" if word == "composed" else "standalone", word)

    def sources(self, layers: Sequence[ParsedLayer], faults: Faults, warnings: Warnings) -> list[ParsedLayer]:
        """The layers with an input of their own. Missing settings are faults."""
        if self.mode == "standalone":
            return [each for each in layers if self._standalone(each, faults, warnings)]
        return [each for index, each in enumerate(layers) if self._starts(index == 0, each, faults, warnings)]

    def _standalone(self, each: ParsedLayer, faults: Faults, warnings: Warnings) -> bool:
        if each.previous not in ("", NO_LAYER):
            warnings.add(f"previous_layer has no effect with run_mode={self.word}", each.line)
        if each.absent and not each.faulty:
            need = f"needs n, c, h and w with run_mode={self.word}; missing: {each.absent}"
            faults.add(f"[{each.section.name}] {need}", each.line)
        return True

    def _starts(self, first: bool, each: ParsedLayer, faults: Faults, warnings: Warnings) -> bool:
        if not first and each.previous != NO_LAYER and each.absent:
            if not each.previous:
                faults.add(f"[{each.section.name}] needs previous_layer: the layer it reads", each.line)
            if any(each.settings[axis] for axis in DIMENSIONS):
                warnings.add("n, c, h and w have no effect on a layer that reads another", each.line)
            return False
        if each.previous != NO_LAYER:
            what = "the first layer" if first else "a layer with n, c, h and w"
            got = short(each.previous)
            faults.add(f"{what} of a composed model needs previous_layer={NO_LAYER}, got {got}", each.line)
        if each.absent and not each.faulty:
            what = f"a layer with previous_layer={NO_LAYER} needs n, c, h and w"
            faults.add(f"{what}; missing: {each.absent}", each.line)
        return True


def one_batch(sources: Sequence[ParsedLayer], faults: Faults) -> int:
    """The batch size of the file; a fault if its sources differ."""
    sized = [each for each in sources if each.settings["n"]]
    for each in sized[1:]:
        n, first = each.settings["n"], sized[0]
        if n != first.settings["n"]:
            other = f"n={first.settings['n']} of line {first.line}"
            advice = "a file has one batch size; put the layers into separate files"
            faults.add(f"n={n} differs from {other}: {advice}", each.line)
    return int(sized[0].settings["n"]) if sized else 1


def inputs_of(sources: Sequence[ParsedLayer], layers: Sequence[ParsedLayer], mode: str) -> dict[str, Input]:
    """The input of each source, by its name. DNNMark computes its gradient unless propagation=false."""
    whole = [each for each in sources if not each.absent]
    alone = mode == "composed" and len(whole) == 1 and all(each.name != "input" for each in layers)
    return {
        each.name: Input(
            name="input" if alone else f"{each.name}.input",
            shape=tuple(each.settings[axis] for axis in "chw"),
            gradient=each.settings.get("propagation") != "false",
        )
        for each in whole
    }


def warn_dead_branches(layers: Sequence[ParsedLayer], warnings: Warnings) -> None:
    """Warn about layers of a composed model, other than the last, that no layer reads."""
    read = {each.previous for each in layers}
    for each in layers[:-1]:
        if each.name not in read:
            warnings.add(f"no layer reads {short(each.name)}: a dead branch, which is still computed", each.line)
