"""The cost of fission on chip: what is halved, what is added, and what follows where each unit binds."""

from dataclasses import replace

import pytest

from lamina.accelerate.papers.on_chip_fission.config import TILES, Tile
from lamina.accelerate.papers.on_chip_fission.cost import Machine, instructions, predict

SIZES = (4096, 4096, 4096)


@pytest.mark.parametrize("tile", TILES)
def test_shared_memory_is_used_half_or_a_quarter_as_often(tile: Tile) -> None:
    plain = instructions(tile, "float")
    for format, part in (("half", 2), ("deft16", 2), ("deft16q", 2), ("e5m2", 4)):
        assert instructions(tile, format).shared == plain.shared / part  # type: ignore[arg-type]


def test_conversions_are_counted_by_value() -> None:
    for tile in TILES:
        assert instructions(tile, "half").half == 2 * tile
        cut, kept = instructions(tile, "deft16").alu, instructions(tile, "deft16q").alu
        assert cut - kept == tile  # one mask for every other value
        assert instructions(tile, "float").alu == 0 and instructions(tile, "float").fma == tile * tile
        assert instructions(tile, "e5m2").fma == tile * tile + tile  # one of the factors is lifted


def test_where_every_instruction_takes_a_slot_fission_costs() -> None:
    for tile in TILES:
        plain = predict(*SIZES, tile, "float")
        for format in ("half", "deft16", "deft16q", "e5m2"):
            assert predict(*SIZES, tile, format).us > plain.us  # type: ignore[arg-type]


def test_where_shared_memory_binds_fission_gains() -> None:
    """As on chips that issue conversions beside products, and with small tiles."""
    free = replace(Machine(), issue=100.0, alu=100.0, wavefronts=4.0)
    plain, packed = predict(*SIZES, 4, "float", free), predict(*SIZES, 4, "deft16q", free)
    assert plain.limit == "shared" and 1.5 < plain.us / packed.us <= 2.0


def test_time_follows_the_work() -> None:
    once, twice = predict(*SIZES, 8, "float"), predict(4096, 8192, 4096, 8, "float")
    assert twice.us == pytest.approx(2 * once.us, rel=0.1)
    assert predict(*SIZES, 8, "float", replace(Machine(), clock_ghz=0.99)).us == pytest.approx(2 * once.us, rel=0.01)
    assert predict(4096, 1, 64, 8, "float", replace(Machine(), read_gbs=1.0)).limit == "memory"
