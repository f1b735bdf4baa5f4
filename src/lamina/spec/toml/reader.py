"""Reads the text of a TOML file as a network and a workload."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from lamina.errors import nearest
from lamina.spec.cost import Phase
from lamina.spec.faults import MOST_LAYERS, Faults, Unreadable, check_network, placeholder
from lamina.spec.layers import KINDS, Layer
from lamina.spec.network import Input, Network
from lamina.spec.toml.lines import Lines
from lamina.spec.toml.overrides import HEAD, Table, override
from lamina.spec.toml.tdnn import TDNN, convolution_of
from lamina.spec.toml.wiring import default_inputs
from lamina.spec.validated import LONGEST, plain, short
from lamina.spec.workload import Workload

KNOWN = (*HEAD, "remarks", "input", "layer", "workload")
TYPES = (*KINDS, TDNN)
LISTS = tuple(key for key, field in Workload.model_fields.items() if "tuple" in str(field.annotation))
"""Workload keys with several values; a single value needs no brackets."""

Model = TypeVar("Model", bound=BaseModel)


def read_toml(text: str, source: str, variables: Mapping[str, str] = {}) -> tuple[Network, Workload]:
    """The network and workload of a ``.toml`` file; ``source`` names the file in messages.

    ``variables`` override settings of the file, by dotted name, such as ``conv1.out_channels``.

    Raises:
        SpecError: all faults of the file: its syntax; unknown, missing or invalid settings; duplicate or unknown
            names; incompatible shapes.
    """
    faults = Faults(source)
    document = _parse(text, faults)
    return _Reading(document, Lines(text), faults).read(PurePath(source).stem or source, variables)


def _parse(text: str, faults: Faults) -> Table:
    try:
        return tomllib.loads(text)
    except RecursionError:
        faults.add("brackets are nested too deeply")
    except tomllib.TOMLDecodeError as error:
        message, _, position = str(error).partition(" (at ")
        number = re.search(r"line (\d+)", position)
        line = int(number[1]) if number else text.count("\n") + 1
        faults.add(f"this is not TOML: {message[:1].lower()}{message[1:]}", line)
    except ValueError:  # Python refuses to convert numbers of thousands of digits
        faults.add("a number is too long")
    faults.refuse()
    raise AssertionError("unreachable")


class _Reading:
    """The state of reading one file: its tables, their lines and their faults."""

    def __init__(self, document: Table, lines: Lines, faults: Faults):
        self.document, self.lines, self.faults = document, lines, faults

    def read(self, stem: str, variables: Mapping[str, str]) -> tuple[Network, Workload]:
        """Read the whole file; ``stem`` is the default name of the network."""
        for key in self.document.keys() - set(KNOWN):
            hint = nearest(key[:LONGEST], KNOWN)
            self.faults.add(f"key {short(key)} is unknown: {hint}", self.lines.of(key))
        head = {key: self.document[key] for key in (*HEAD, "remarks") if key in self.document}
        inputs, layers = self._tables("input"), self._tables("layer")
        if len(layers) > MOST_LAYERS:
            self.faults.add(f"expected at most {MOST_LAYERS} layers, got {len(layers)}")
            self.faults.refuse()
        workload = self.document.get("workload", {})
        if not isinstance(workload, dict):
            self.faults.add("workload: expected a table [workload]", self.lines.of("workload"))
            workload = {}
        for table in inputs:
            table.setdefault("name", "input")
        _name(layers)
        override(head, workload, inputs, layers, variables, self.faults)
        network = self._network({"name": stem} | head, inputs, layers)
        read = self._validated(Workload, _workload(workload), "[workload]", "workload")
        if layers and inputs:
            check_network(network, self.faults)
        self.faults.refuse()
        return network, read or Workload()

    def _tables(self, key: str) -> list[Table]:
        """The tables of ``[[key]]``, or the one of ``[key]``."""
        value = self.document.get(key, [])
        header = f"[[{key}]]" if key == "layer" else f"[{key}]"
        if not value:
            self.faults.add(f"there is no {key}: expected a table {header}")
        tables = value if isinstance(value, list) else [value]
        for index, table in enumerate(tables):
            if not isinstance(table, dict):
                line = self.lines.of(key, index)
                self.faults.add(f"{key} = {short(table)}: expected a table {header}", line)
        return [table for table in tables if isinstance(table, dict)]

    def _network(self, head: Table, inputs: Sequence[Table], layers: Sequence[Table]) -> Network:
        sources, lost = self._inputs(inputs)
        names = [str(table["name"]) for table in inputs]
        before, built = "", list[Layer]()
        for index, table in enumerate(layers):
            name = str(table["name"])
            usual = default_inputs(name, before, names, head.get("mode"))
            built.append(self._layer(index, {"inputs": [*usual]} | table))
            before = name
        body = {
            "inputs": tuple(sources) or (placeholder(),),
            "layers": (*lost, *built) or (Unreadable(name="(none)"),),
            "lines": {layer.name: self.lines.of("layer", i) or 1 for i, layer in enumerate(built)},
        }
        try:
            return Network.model_validate(_tuples(head) | body, strict=True)
        except ValidationError as error:
            for key, message in plain(error):
                self.faults.add(message, self.lines.of(key))
                head.pop(key, None)
            return Network.model_validate({"name": "(unreadable)"} | _tuples(head) | body)

    def _inputs(self, tables: Sequence[Table]) -> tuple[list[Input], list[Unreadable]]:
        """The inputs, and a placeholder for each invalid one."""
        inputs, lost, names = list[Input](), list[Unreadable](), set[str]()
        single = isinstance(self.document["input"], dict) if tables else False
        for index, table in enumerate(tables):
            name = str(table["name"])
            where = ("input",) if single else ("input", index)
            source = self._validated(Input, table, f"input {short(name)}:", *where)
            if name in names:
                self.faults.add(f"input {short(name)}: this name is already taken", self.lines.of(*where))
            elif source:
                inputs.append(source)
            else:
                lost.append(Unreadable(name=name or "(unnamed)"))
            names.add(name)
        return inputs, lost

    def _layer(self, index: int, table: Table) -> Layer:
        """The layer, or a placeholder if its settings are invalid."""
        kind, label = table.get("type"), f"layer {short(table['name'])}:"
        settings = {key: value for key, value in table.items() if key != "type"}
        reads = table["inputs"] if isinstance(table["inputs"], list) else [table["inputs"]]
        if isinstance(table["inputs"], str):
            settings["inputs"] = reads
        if kind is None:
            self.faults.add(f"{label} type is missing", self.lines.of("layer", index))
        elif kind not in TYPES:
            hint = nearest(str(kind)[:LONGEST], TYPES)
            line = self.lines.of("layer", index, "type")
            self.faults.add(f"{label} type {short(kind)} is unknown: {hint}", line)
        else:
            try:
                settings = convolution_of(settings) if kind == TDNN else settings
            except ValueError as error:
                self.faults.add(f"{label} {error}", self.lines.of("layer", index, "context"))
            else:
                model = KINDS["convolution" if kind == TDNN else kind]
                if layer := self._validated(model, settings, label, "layer", index):
                    return layer
        named = str(table["name"]) or "(unnamed)"
        return Unreadable(name=named, inputs=tuple(each for each in reads if isinstance(each, str)))

    def _validated(self, model: type[Model], table: Table, label: str, *path: str | int) -> Model | None:
        try:
            return model.model_validate(_tuples(table), strict=True)
        except ValidationError as error:
            for key, message in plain(error, [*model.model_fields]):
                self.faults.add(f"{label} {message}", self.lines.of(*path, key))
        return None


def _name(layers: Sequence[Table]) -> None:
    """Name each unnamed layer by its type and a running number."""
    taken = {table["name"] for table in layers if isinstance(table.get("name"), str)}
    numbers: Counter[str] = Counter()
    for table in layers:
        if "name" not in table:
            stem = str(table.get("type", "layer"))[:LONGEST]
            numbers[stem] += 1
            while f"{stem}{numbers[stem]}" in taken:
                numbers[stem] += 1
            table["name"] = f"{stem}{numbers[stem]}"


def _workload(table: Table) -> Table:
    """Convert single values to lists, and phase names to phases."""
    listed = {key: [value] if key in LISTS and not isinstance(value, list) else value for key, value in table.items()}
    if "phases" in listed:
        phases = {str(phase): phase for phase in Phase}
        listed["phases"] = [phases.get(phase, phase) if isinstance(phase, str) else phase for phase in listed["phases"]]
    return listed


def _tuples(value: Any) -> Any:
    """Lists as tuples, which the models require."""
    if isinstance(value, dict):
        return {key: _tuples(each) for key, each in value.items()}
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value
