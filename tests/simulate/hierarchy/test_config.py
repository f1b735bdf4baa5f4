from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.errors import SpecError, UsageError
from lamina.simulate.hierarchy import Device, preset, presets, read_device

GOOD = preset("mi6").model_dump()


def parsed(**settings: Any) -> Device:
    return preset("mi6").changed(settings)


def test_the_shipped_devices() -> None:
    assert presets() == ["h200-like", "mi6", "mi6-silicon", "r9nano", "titanx-pascal"]
    assert all(preset(name).name == name for name in presets())
    assert preset("mi6").cu.count == 36 and preset("r9nano").cu.count == 64
    silicon = preset("mi6-silicon")
    assert silicon.dram.channels * 64 / silicon.dram.burst_ns == pytest.approx(224, rel=1e-3)  # GB/s


def test_an_unknown_device_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="'mi7' is unknown: did you mean 'mi6'"):
        preset("mi7")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("l1.ways", 0, "l1.ways = 0: expected at least 1"),
        ("l1.ways", 3, r"l1.bytes = 16384: expected l1.ways x 64 bytes = 192 times a power of two"),
        ("l2.bytes", 3_000_000, "l2.bytes = 3000000: expected l2.banks x l2.ways x 64 bytes = 16384 times"),
        ("translation.page_bytes", 5000, "translation.page_bytes: expected a power of two, got 5000"),
        ("l2.interleave", 32, "l2.interleave = 32: expected at least a line of 64"),
        ("l2.hit", -1.0, "l2.hit = -1.0: expected at least 0"),
        ("dram.latency", float("nan"), "dram.latency = nan: expected a finite number"),
        ("dram.latency", float("inf"), "dram.latency = inf: expected"),
        ("clock_ghz", 0, "clock_ghz = 0: expected more than 0"),
        ("cu.count", 1.5, "cu.count = 1.5: expected a whole number"),
        ("dram.mode", "ideel", "dram.mode = 'ideel': did you mean 'ideal'"),
        ("cu.lds_byte", 1, "'cu.lds_byte' is unknown: did you mean 'cu.lds_bytes'"),
        ("l1", 1, "'l1' is unknown: did you mean 'l1.ways'|'l1' is unknown"),
    ],
)
def test_an_impossible_device_is_rejected(key: str, value: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parsed(**{key: value})


def test_every_fault_is_told_at_once() -> None:
    document = preset("mi6").model_dump()
    document["l1"] |= {"ways": 0, "hitt": 3}
    document["l2"]["hit"] = -1.0
    document["colour"] = "red"
    del document["clock_ghz"]
    with pytest.raises(SpecError) as caught:
        Device.parse(document, "x.toml")
    told = str(caught.value)
    assert len(caught.value.faults) == 5
    assert "in [l1], key 'hitt' is unknown: did you mean 'hit'?" in told
    for key in ("l1.ways", "l2.hit", "colour", "clock_ghz"):
        assert key in told


@given(st.sampled_from(preset("mi6").keys()), st.sampled_from([None, -1, 0, 1e99, "x", [], float("nan"), {}]))
def test_any_wrong_setting_is_accepted_or_refused_in_words(key: str, value: Any) -> None:
    with suppress(SpecError):
        assert parsed(**{key: value}).settings()[key] == value


def test_a_device_file_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    lines = [f"{key} = {value!r}".replace("'", '"') for key, value in GOOD.items() if not isinstance(value, dict)]
    for section, inside in GOOD.items():
        if isinstance(inside, dict):
            lines += [f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in inside.items())]
    path.write_text("\n".join(lines))
    assert read_device(path) == preset("mi6")


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\xff\xfe", "expected UTF-8"), (b"name = ", "expected TOML"), (b"", "cu is missing")],
)
def test_a_broken_file_is_rejected(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=message):
        read_device(path)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such file; shipped devices: h200-like, mi6"):
        read_device(tmp_path / "none.toml")
