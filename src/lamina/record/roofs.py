"""The measured roofs of one machine: what its memory and arithmetic units really deliver."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from lamina.errors import UsageError

_NUMBERS = ("copy_gbs", "read_gbs", "launch_us", "enqueue_us")


@dataclass(frozen=True)
class Roofs:
    """Upper bounds measured on the machine itself, never quoted from a data sheet."""

    device: str
    date: str  # ISO 8601, UTC
    threads: int  # of torch
    versions: Mapping[str, str]  # 'torch' always; 'cuda' and 'driver' where there are any
    copy_gbs: float  # 1e9 bytes/s of a copy, bytes read plus bytes written
    read_gbs: float  # 1e9 bytes/s of a sum, bytes read
    gemm_gflops: Mapping[str, float]  # precision -> 1e9 FLOP/s of a large square matrix product
    launch_us: float  # device time of one tiny kernel, back to back
    enqueue_us: float  # host time to hand over one tiny kernel; equals launch_us where nothing is queued

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Roofs:
        """Read what `to_json` wrote; anything else is a UsageError that says what is wrong."""
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"roofs: expected JSON as lamina writes it, got {error}") from error
        names = {field.name for field in fields(cls)}
        if not isinstance(raw, dict) or set(raw) != names:
            got = sorted(raw) if isinstance(raw, dict) else type(raw).__name__
            raise UsageError(f"roofs: expected an object with {sorted(names)}, got {got}")
        for name in ("device", "date"):
            _expect(isinstance(raw[name], str), name, "text", raw[name])
        _expect(type(raw["threads"]) is int and raw["threads"] > 0, "threads", "a count", raw["threads"])
        for name in _NUMBERS:
            _expect(_is_rate(raw[name]), name, "a positive number", raw[name])
        for name, is_value, wanted in (
            ("versions", lambda value: isinstance(value, str), "names with text"),
            ("gemm_gflops", _is_rate, "names with positive numbers"),
        ):
            table = raw[name]
            _expect(isinstance(table, dict) and all(map(is_value, table.values())), name, wanted, table)
        return cls(**raw)


def _is_rate(value: object) -> bool:
    return isinstance(value, float | int) and type(value) is not bool and math.isfinite(value) and value > 0


def _expect(holds: bool, name: str, wanted: str, got: object) -> None:
    if not holds:
        raise UsageError(f"roofs: expected {wanted} in {name!r}, got {got!r}")
