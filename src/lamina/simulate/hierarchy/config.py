"""Configuration of a simulated GPU, from a device file or a shipped preset."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from lamina.errors import Fault, SpecError, UsageError, nearest
from lamina.spec.faults import plain, short

LINE_SHIFT = 6
LINE = 1 << LINE_SHIFT
"""Bytes of a cache line and of a memory request."""


def _power_of_two(value: int) -> int:
    if value & (value - 1):
        raise ValueError(f"expected a power of two, got {value}")
    return value


Count = Annotated[int, Field(ge=1, le=2**31, strict=True)]
PowerOfTwo = Annotated[Count, AfterValidator(_power_of_two)]
Cycles = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
Nanoseconds = Cycles


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ComputeUnits(_Section):
    """Compute units: SIMDs that issue vector instructions, one LDS and one vector memory unit each."""

    count: Count
    simds: Count = 4
    waves_per_simd: Count = 10
    vector_registers: Count = 256  # per lane and SIMD
    register_granule: Count = 4
    lds_bytes: Count = 65536
    valu_busy: Rate = 4.0  # cycles that a vector instruction occupies its SIMD
    valu_cycles: Rate = 5.0  # until the next one of the same wavefront
    lds_busy: Rate = 12.0  # cycles that an LDS instruction occupies the unit
    lds_cycles: Rate = 17.0  # until the next one of the same wavefront
    scalar_cycles: Cycles = 5.0  # scalar instructions, branches, waits: private to the wavefront
    vmem_issue: Cycles = 8.0  # until the wavefront continues
    vmem_path: Cycles = 18.0  # to the L1 cache and back
    in_order_return: bool = True  # reorder buffer before L1


class L1(_Section):
    """The vector cache of one compute unit; stores bypass it."""

    bytes: Count
    ways: Count
    hit: Cycles
    write: Cycles
    to_l2: Cycles  # round trip
    fill: Cycles  # a line stays locked for this time after its data has arrived
    mshrs: Count
    lines_per_cycle: Rate = 1.0


class Translation(_Section):
    """Two TLB levels, and page walkers behind an interconnect."""

    enabled: bool = True
    page_bytes: PowerOfTwo = 4096
    l1_entries: Count = 256
    l1_ways: Count = 4
    l2_entries: Count = 2**20
    l2_ways: Count = 64
    l2_hit: Cycles = 10.0
    walkers: Count = 16
    walk_cycles: Cycles = 100.0  # occupancy of a walker
    walk_distance: Cycles = 600.0  # round trip to the walkers


class L2(_Section):
    """The shared cache: banked by address, write-back, full lines are written without a fetch."""

    bytes: Count
    ways: Count
    banks: Count
    interleave: PowerOfTwo
    hit: Cycles
    write: Cycles
    miss: Cycles  # in addition to the memory latency
    mshrs: Count  # per bank
    lines_per_cycle: Rate  # per bank


class Dram(_Section):
    """DRAM behind L2: ``ideal`` (latency and bandwidth) or ``banked`` (open rows and activation limits)."""

    mode: Literal["ideal", "banked"] = "ideal"
    bytes: Annotated[int, Field(ge=1, le=2**45, strict=True)] = 4 * 2**30
    channels: Count
    interleave: PowerOfTwo
    latency: Cycles = 100.0  # ideal
    cycles_per_line: Rate = 1.0  # ideal
    banks: Count = 16  # banked, per channel
    row_bytes: PowerOfTwo = 2048
    burst_ns: Rate = 2.29  # one line on one channel
    t_rcd_ns: Nanoseconds = 12.0
    t_rp_ns: Nanoseconds = 12.0
    t_cl_ns: Nanoseconds = 12.0
    t_ras_ns: Nanoseconds = 28.0
    t_rrd_ns: Nanoseconds = 6.0
    t_faw_ns: Nanoseconds = 23.0
    controller_ns: Nanoseconds = 30.0
    refresh: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.0  # fraction of time lost


class Device(_Section):
    """A simulated GPU. Times are cycles of ``clock_ghz`` unless their names end in ``_ns``."""

    name: Annotated[str, Field(min_length=1)]
    clock_ghz: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)]
    launch_cycles: Cycles  # cold code, arguments and drain: once per kernel
    dispatch_cycles: Cycles = 1.0  # between workgroups
    cu: ComputeUnits
    l1: L1
    translation: Translation = Translation()
    l2: L2
    dram: Dram

    @classmethod
    def parse(cls, document: Mapping[str, Any], source: str) -> Self:
        """The device of a document.

        Raises:
            SpecError: all faults of the document, unknown keys with the closest match.
        """
        faults = [Fault(message) for message in _faults(cls, document, "")]
        if not faults:
            device = cls.model_validate(document)
            faults = [Fault(message) for message in device._inconsistent()]
        if faults:
            raise SpecError(source, faults)
        return device

    def changed(self, settings: Mapping[str, Any], source: str = "--set") -> Self:
        """A copy with other settings, by dotted keys: ``{"l2.bytes": 2**20}``.

        Raises:
            SpecError: a key is unknown or the device would be invalid.
        """
        document = self.model_dump()
        faults = []
        for key, value in settings.items():
            section, dot, field = key.partition(".")
            inside = document.get(section)
            if dot and isinstance(inside, dict) and field in inside:
                inside[field] = value
            elif not dot and section in document and not isinstance(inside, dict):
                document[section] = value
            else:
                faults.append(Fault(f"key {short(key)} is unknown: {nearest(key, self.keys())}"))
        if faults:
            raise SpecError(source, faults)
        return type(self).parse(document, source)

    def keys(self) -> list[str]:
        """All settings by dotted name."""
        document = self.model_dump()
        return [
            name
            for section, inside in document.items()
            for name in ([f"{section}.{field}" for field in inside] if isinstance(inside, dict) else [section])
        ]

    def settings(self) -> dict[str, str | int | float | bool]:
        """All settings and their values, flat, as stored in records."""
        document = self.model_dump()
        return {
            key: document[section][field] if dot else document[section]
            for key in self.keys()
            for section, dot, field in [key.partition(".")]
        }

    def _inconsistent(self) -> Iterator[str]:
        """Faults that depend on several settings."""
        yield from _sets("l1.bytes", self.l1.bytes, f"l1.ways x {LINE} bytes", self.l1.ways * LINE)
        step = self.l2.banks * self.l2.ways * LINE
        yield from _sets("l2.bytes", self.l2.bytes, f"l2.banks x l2.ways x {LINE} bytes", step)
        for name, section in (("l2", self.l2), ("dram", self.dram)):
            if section.interleave < LINE:
                yield f"{name}.interleave = {section.interleave}: expected at least a line of {LINE} bytes"
        if self.dram.row_bytes < LINE:
            yield f"dram.row_bytes = {self.dram.row_bytes}: expected at least a line of {LINE} bytes"
        if self.translation.page_bytes < LINE:
            yield f"translation.page_bytes = {self.translation.page_bytes}: expected at least {LINE}"
        for level, entries, ways in (
            ("l1", self.translation.l1_entries, self.translation.l1_ways),
            ("l2", self.translation.l2_entries, self.translation.l2_ways),
        ):
            yield from _sets(f"translation.{level}_entries", entries, f"{ways} ways", ways)


def _sets(name: str, size: int, unit: str, step: int) -> Iterator[str]:
    sets, rest = divmod(size, step)
    if rest or sets < 1 or sets & (sets - 1):
        yield f"{name} = {size}: expected {unit} = {step} times a power of two"


def _faults(model: type[BaseModel], document: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """All validation errors of a document and its sections, with dotted keys."""
    sections = {
        name: field.annotation
        for name, field in model.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, _Section)
    }
    own = {key: value for key, value in document.items() if not isinstance(value, Mapping) or key not in sections}
    try:
        model.model_validate(document)
    except ValidationError as error:
        inner = {key for key in sections if isinstance(document.get(key), Mapping)}
        for (key, sentence), complaint in zip(
            plain(error, model.model_fields), error.errors(include_url=False), strict=True
        ):
            if key not in inner:
                reason = sentence if sentence.startswith(("key ", key)) else f"{key}: {sentence}"
                yield reason if not prefix else _dotted(reason, key, prefix)
            elif len(complaint["loc"]) < 2:
                yield sentence
    for key, section in sections.items():
        inside = document.get(key)
        if isinstance(inside, Mapping) and key not in own:
            yield from _faults(section, inside, f"{key}.")


def _dotted(reason: str, key: str, prefix: str) -> str:
    if reason.startswith("key "):
        return f"in [{prefix[:-1]}], {reason}"
    return f"{prefix}{reason}" if reason.startswith(key) else reason


def presets() -> list[str]:
    """Names of the shipped devices."""
    found = files("lamina.simulate").joinpath("devices").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in found if file.name.endswith(".toml"))


def preset(name: str) -> Device:
    """A shipped device by name.

    Raises:
        UsageError: there is none of that name.
    """
    known = presets()
    if name not in known:
        raise UsageError(f"device {short(name)} is unknown: {nearest(name, known)}")
    text = files("lamina.simulate").joinpath("devices", f"{name}.toml").read_text(encoding="utf-8")
    return Device.parse(tomllib.loads(text), f"{name}.toml")


def read_device(path: Path) -> Device:
    """The device of a file.

    Raises:
        UsageError: the file cannot be read.
        SpecError: all faults of the content.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file; shipped devices: {', '.join(presets())}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise SpecError(str(path), f"expected UTF-8 text, got byte 0x{error.object[error.start]:02x}") from None
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(str(path), f"expected TOML: {error}") from None
    return Device.parse(document, str(path))
