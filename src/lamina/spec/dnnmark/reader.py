"""Reads the text of a DNNMark file as a network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import count
from pathlib import PurePath

from pydantic import ValidationError

from lamina.errors import nearest
from lamina.spec.dnnmark.grammar import Section, Warnings, parse
from lamina.spec.dnnmark.sections import COMMON, DIMENSIONS, SECTIONS, Settings
from lamina.spec.dnnmark.template import Unset, expand, no_effect
from lamina.spec.dnnmark.values import UNCHANGED
from lamina.spec.dnnmark.wiring import NO_LAYER, ParsedLayer, RunMode, inputs_of, one_batch, warn_dead_branches
from lamina.spec.faults import MOST_LAYERS, Faults, Unreadable, check_network, placeholder
from lamina.spec.layers import Layer
from lamina.spec.network import Network
from lamina.spec.validated import LONGEST, plain, short


def read_dnnmark(text: str, source: str, variables: Mapping[str, str] = {}) -> Network:
    """The network of a ``.dnnmark`` or ``.dnntemplate`` file; ``source`` names the file in messages.

    Ignored keys and values that DNNMark interprets in its own way are warnings that the network keeps.

    A variable without a value is a warning in a key that has no effect.

    Raises:
        SpecError: all faults of the file: whatever DNNMark rejects, duplicate or unknown names, invalid sizes,
            variables without a value in keys that have an effect.
    """
    faults, warnings = Faults(source), Warnings()
    if "\0" in text:
        faults.add("expected text, got a NUL byte", text.count("\n", 0, text.index("\0")) + 1)
        faults.refuse()
    unset = Unset(faults)
    lines = expand(text, variables, faults)
    general, sections = parse(lines, SECTIONS, unset, faults, warnings)
    for section in (general, *sections):
        _require_variables(section, unset)
    if unset.needed:
        faults.refuse()
    if not sections:
        known = ", ".join(f"[{name}]" for name in SECTIONS)
        faults.add(f"there are no layers: expected sections such as {known}")
    if len(sections) > MOST_LAYERS:
        faults.add(f"expected at most {MOST_LAYERS} layers, got {len(sections)}")
    if not sections or len(sections) > MOST_LAYERS:
        faults.refuse()
    mode = RunMode.of(general, faults, warnings)
    layers = list(_parsed_layers(sections, faults, warnings))
    sources = mode.sources(layers, faults, warnings)
    inputs = inputs_of(sources, layers, mode.mode)
    reads = {each.name: (each.previous,) for each in layers if each.previous} | {
        each.name: (inputs[each.name].name,) if each.name in inputs else () for each in sources
    }
    if mode.mode == "composed":
        warn_dead_branches(layers, warnings)
    network = Network(
        name=PurePath(source).stem or source,
        batch=one_batch(sources, faults),
        layers=tuple(_build(each, reads.get(each.name, ()), faults, warnings) for each in layers),
        inputs=tuple(inputs.values()) or (placeholder(),),
        mode=mode.mode,
        remarks=tuple(warnings),
        lines={each.name: each.line for each in layers},
    )
    check_network(network, faults)
    faults.refuse()
    return network


def _parsed_layers(sections: list[Section], faults: Faults, warnings: Warnings) -> Iterator[ParsedLayer]:
    """Each section with its parsed settings, and a generated name if it has none."""
    read = [_settings(section, faults, warnings) for section in sections]
    taken = {settings["name"] for settings, _ in read}
    numbers = defaultdict[str, Iterator[int]](lambda: count(1))
    for section, (settings, faulty) in zip(sections, read, strict=True):
        stem = section.name.lower()
        made = (name for number in numbers[stem] if (name := f"{stem}{number}") not in taken)
        yield ParsedLayer(section, settings["name"] or next(made), settings, faulty)


def _settings(section: Section, faults: Faults, warnings: Warnings) -> tuple[Settings, bool]:
    """A section's settings under DNNMark's names: its lines, in order, over its defaults."""
    kind = SECTIONS.get(section.name)
    keys, defaults = (COMMON | kind.keys, kind.defaults) if kind else (COMMON, {})
    settings: Settings = {"name": "", "previous_layer": "", **dict.fromkeys(DIMENSIONS, 0), **defaults}
    faulty, seen = kind is None, set[str]()
    for key, text, line, unset in section.entries:
        if key not in keys:
            if kind:
                faults.add(partial(_unknown_key, section.name, key), line)
            continue
        if unset:
            warnings.add(no_effect(unset, key), line)
            continue
        if key in seen:
            warnings.add(f"{key} is given twice in one section: the last value is used", line)
        seen.add(key)
        try:
            value = keys[key].read(text, partial(_warn, warnings, key, line))
        except ValueError as error:
            faults.add(f"{key}: {error}", line)
            faulty = True
        else:
            if value is not UNCHANGED:
                settings.update(dict.fromkeys(keys[key].sets, value))
    if settings["name"] == NO_LAYER:
        faults.add(f"a layer cannot be called {NO_LAYER}: as previous_layer it means none", section.line)
    return settings, faulty


def _require_variables(section: Section, unset: Unset) -> None:
    """Report variables without a value, except in keys that have no effect in this section."""
    keys = SECTIONS[section.name].keys if section.name in SECTIONS else {}
    written = {each.key: each.value for each in section.entries}
    last = {each.key: each for each in section.entries}
    for each in section.entries:
        replaced = last[each.key] is not each
        unused = each.key in keys and (replaced or keys[each.key].unused(written))
        if not unused:
            unset.need(each.unset, each.line)


def _build(parsed: ParsedLayer, reads: tuple[str, ...], faults: Faults, warnings: Warnings) -> Layer:
    """The layer, or a placeholder if its settings are invalid."""
    if reads and not parsed.faulty:
        kind = SECTIONS[parsed.section.name]
        own = {name: parsed.settings[name] for name in kind.defaults}
        try:
            fields = kind.fields(own, lambda warning: warnings.add(warning, parsed.line))
            return kind.layer.model_validate({"name": parsed.name, "inputs": reads, **fields})
        except ValidationError as error:
            for _, message in plain(error):
                faults.add(f"layer {short(parsed.name)}: {message}", parsed.line)
        except ValueError as error:
            faults.add(f"layer {short(parsed.name)}: {error}", parsed.line)
    return Unreadable(name=parsed.name, inputs=reads)


def _unknown_key(section: str, key: str) -> str:
    known = [*COMMON, *SECTIONS[section].keys]
    return f"key {short(key)} is unknown in [{section}]: {nearest(key[:LONGEST], known)}"


def _warn(warnings: Warnings, key: str, line: int, warning: str) -> None:
    warnings.add(f"{key}: {warning}", line)
