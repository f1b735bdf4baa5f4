"""The published sizes, and what no engine can be."""

from typing import Any

import pytest

from lamina.errors import LaminaError, SpecError
from lamina.simulate.compaction_engine.config import Engine, engine_timing, entry_format
from lamina.simulate.hierarchy import preset

FORMATS = {
    # rows: (entry, mask, mapping), entries in 512 KB
    27: (32, 1, 25, 16384),
    147: (32, 2, 24, 16384),
    576: (32, 5, 21, 16384),
    1024: (32, 8, 18, 16384),
    1152: (64, 9, 49, 8192),
    1728: (64, 14, 44, 8192),
    2304: (128, 18, 104, 4096),
    4608: (256, 36, 214, 2048),
}


@pytest.mark.parametrize("rows", FORMATS)
def test_entries_have_the_published_sizes(rows: int) -> None:
    *form, entries = FORMATS[rows]
    assert tuple(entry_format(rows)) == tuple(form)
    timing = engine_timing(Engine(), rows)
    assert timing.sets * timing.ways == entries
    assert timing.mapping == form[2]


def test_defaults_are_the_published_engine() -> None:
    engine = Engine()
    assert engine.sram_bytes == 2**20
    assert (engine.units, engine.lanes, engine.entries_per_line) == (32, 16, 16)
    assert engine.remaining(preset("mi6")).l2.bytes == 2**20


@pytest.mark.parametrize(
    ("settings", "entries"),
    [
        ({}, 16),
        ({"narrow": False}, 8),
        ({"compaction": False}, 32),
        ({"compaction": False, "narrow": False}, 16),
        ({"block": 4}, 24),
        ({"block": 16}, 16),
    ],
)
def test_values_of_a_line(settings: dict[str, Any], entries: int) -> None:
    assert Engine(**settings).entries_per_line == entries


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sib_kb": 0}, "sib_kb = 0: expected at least 1"),
        ({"sib_kb": 2.5}, "sib_kb = 2.5: expected a whole number"),
        ({"lanes": 32}, "lanes"),
        ({"unit_cycles": float("nan")}, "unit_cycles = nan: expected a finite number"),
        ({"search": "lazy"}, "search"),
        ({"l2_share": 1.0}, "l2_share"),
        ({"sibkb": 1}, "did you mean 'sib_kb'?"),
        ({"block": 3}, "block"),
        ({"block": 16, "narrow": False}, "at most 8 fp32 values"),
        ({"prefetch": "perhaps"}, "prefetch"),
    ],
)
def test_impossible_engines_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match="--set") as caught:
        Engine.parse(settings)
    assert message in str(caught.value)


@pytest.mark.parametrize("rows", [0, 32001, 70000])
def test_columns_that_no_entry_describes_are_rejected(rows: int) -> None:
    with pytest.raises(SpecError, match="expected 1 to 31872; split the product along k"):
        entry_format(rows)


def test_what_is_left_must_be_a_cache_and_the_block_hold_entries() -> None:
    with pytest.raises(SpecError, match=r"l2_share: .*l2\.bytes = 1468006"):
        Engine(l2_share=0.3).remaining(preset("mi6"))
    with pytest.raises(SpecError, match="raise sib_kb or lower sib_ways"):
        engine_timing(Engine(sib_kb=1), 4608)
    with pytest.raises(LaminaError):
        Engine.parse({"units": -1})
