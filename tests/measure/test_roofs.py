"""Roofs: the file they are kept in, the cache, and the measurement at a size that takes no time."""

import json
import logging
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lamina.errors import UsageError
from lamina.measure.repeat import Repeat
from lamina.measure.roofs import fp32_products, launch_overhead_us, measure_roofs, roofs
from lamina.record.roofs import Roofs

room = import_module("lamina.measure.roofs")  # as a module: the room exports its function

rates = st.floats(min_value=1e-6, max_value=1e9)
SOME = Roofs("card", "2026-01-02T03:04:05+00:00", 4, {"torch": "2"}, 1.0, 2.0, {"fp32": 3.0}, 4.0, 5.0)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement of a few milliseconds."""
    monkeypatch.setattr(room, "_REPEAT", Repeat(min_samples=1, max_samples=1, min_time_s=0, warmup=0))
    monkeypatch.setattr(room, "_buffer_bytes", lambda _: 1 << 20)
    monkeypatch.setattr(room, "_MIN_SIZE", 16)
    monkeypatch.setattr(room, "_GEMM_US", 0.0)


@given(
    st.builds(
        Roofs,
        st.text(),
        st.text(),
        st.integers(1, 999),
        st.dictionaries(st.text(), st.text()),
        rates,
        rates,
        st.dictionaries(st.text(), rates),
        rates,
        rates,
    )
)
def test_json_round_trip(found: Roofs) -> None:
    assert Roofs.from_json(found.to_json()) == found


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_other_text_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="roofs: expected"):
        Roofs.from_json(text)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("copy_gbs", 0),
        ("copy_gbs", -1.0),
        ("read_gbs", float("nan")),
        ("launch_us", float("inf")),
        ("enqueue_us", True),
        ("enqueue_us", "1"),
        ("threads", 0),
        ("threads", 1.5),
        ("device", None),
        ("versions", {"torch": 2}),
        ("versions", []),
        ("gemm_gflops", {"fp32": 0.0}),
        ("gemm_gflops", None),
    ],
)
def test_a_wrong_value_is_named(field: str, value: object) -> None:
    raw = json.loads(SOME.to_json()) | {field: value}
    with pytest.raises(UsageError, match=field):
        Roofs.from_json(json.dumps(raw))


def test_a_missing_and_a_strange_field_are_named() -> None:
    raw = json.loads(SOME.to_json())
    raw["peak"] = raw.pop("copy_gbs")
    with pytest.raises(UsageError, match=r"'copy_gbs'.*'peak'"):
        Roofs.from_json(json.dumps(raw))


@pytest.mark.usefixtures("small")
def test_measured_on_the_cpu() -> None:
    found = measure_roofs("cpu")
    assert set(found.gemm_gflops) == {"fp64", "fp32", "bf16"}
    assert all(rate > 0 for rate in (*found.gemm_gflops.values(), found.copy_gbs, found.read_gbs))
    assert found.launch_us == found.enqueue_us > 0
    assert found.threads == torch.get_num_threads()
    assert found.versions == {"torch": str(torch.__version__)}
    assert Roofs.from_json(found.to_json()) == found


def test_rates_are_work_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that calls everything 8 ms: bytes and operations per 8 ms."""
    monkeypatch.setattr(room, "_buffer_bytes", lambda _: 1 << 20)
    monkeypatch.setattr(room, "_median_us", lambda ticker, fn: 8000.0)
    found = measure_roofs("cpu")
    assert found.copy_gbs == pytest.approx(2 * 2**20 / 8e-3 / 1e9)
    assert found.read_gbs == pytest.approx(2**20 / 8e-3 / 1e9)
    assert found.gemm_gflops["fp32"] == pytest.approx(2 * 512**3 / 8e-3 / 1e9)
    assert found.launch_us == 8000.0


def test_the_product_grows_until_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def median_us(ticker: object, fn: object) -> float:
        size = fn.args[0].shape[0]  # type: ignore[attr-defined]
        sizes.append(size)
        return 5000.0 if size >= 1024 else 10.0

    monkeypatch.setattr(room, "_median_us", median_us)
    rate = room._gemm_gflops(None, torch.device("cpu"), "fp32")  # type: ignore[arg-type]
    assert sizes == [512, 1024]
    assert rate == pytest.approx(2 * 1024**3 / 5e-3 / 1e9)


@pytest.mark.usefixtures("small")
def test_the_cache_is_used_unless_refreshed(tmp_path: Path) -> None:
    first = roofs("cpu", tmp_path / "cache")
    (path,) = (tmp_path / "cache").iterdir()
    marked = replace(first, copy_gbs=12345.0)
    path.write_text(marked.to_json(), encoding="utf-8")
    assert roofs("cpu", tmp_path / "cache") == marked
    assert roofs("cpu", tmp_path / "cache", refresh=True).copy_gbs != 12345.0
    assert Roofs.from_json(path.read_text(encoding="utf-8")).copy_gbs != 12345.0


def test_a_folder_that_cannot_be_made_is_found_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(room, "measure_roofs", lambda device: pytest.fail("measured"))
    with pytest.raises(NotADirectoryError):
        roofs("cpu", tmp_path / "file" / "cache")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "expected JSON"),
        (b"\xff\xfe", "utf-8"),
        (SOME.to_json().encode(), "expected the peaks of"),
    ],
)
def test_an_invalid_file_is_replaced_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes, reason: str
) -> None:
    path = tmp_path / room._file_name(torch.device("cpu"))
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        found = roofs("cpu", tmp_path)
    assert reason in caplog.text
    assert Roofs.from_json(path.read_text(encoding="utf-8")) == found
    assert [item.name for item in tmp_path.iterdir()] == [path.name]


def test_the_file_is_for_one_device_torch_and_thread_count(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    name = room._file_name(cpu)
    assert name.startswith("roofs-")
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert room._file_name(cpu) != name


def precisions() -> list[str]:
    return [torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision]


@pytest.mark.parametrize("mode", ["ieee", "tf32"])
def test_precision_is_set_inside_and_restored_after(mode: str) -> None:
    before = precisions()
    with fp32_products(mode):
        assert precisions() == [mode, mode]
    assert precisions() == before
    with pytest.raises(ZeroDivisionError), fp32_products(mode):
        1 / 0
    assert precisions() == before
    # The older switches refuse to answer while the newer ones disagree with them.
    assert torch.backends.cuda.matmul.allow_tf32 in (True, False)


def test_launch_overhead_is_that_of_one_operator() -> None:
    assert launch_overhead_us("cpu") > 0


@pytest.mark.gpu
@pytest.mark.alone
def test_roofs_of_a_gpu_are_plausible(tmp_path: Path) -> None:
    found = roofs("cuda", tmp_path)
    gemm = found.gemm_gflops
    assert gemm["bf16"] > gemm["tf32"] > gemm["fp32"]
    assert gemm["fp16"] > gemm["fp32"]
    assert found.read_gbs == pytest.approx(found.copy_gbs, rel=0.5)
    assert 0 < found.launch_us < 50
    assert 0 < found.enqueue_us < 200
    assert roofs("cuda", tmp_path) == found
