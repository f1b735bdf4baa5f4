"""Section 7.5.4: bytes of gradients, and their exchange, measured by two GPUs or recorded."""

import pytest
import torch

from lamina import measure
from lamina.pipeline.reproduce import recorded
from lamina.pipeline.reproduce.measured import gradients
from lamina.pipeline.reproduce.measured.judging import Scope, judge
from lamina.pipeline.reproduce.verdicts import of_entry
from lamina.record import Timing
from lamina.spec.published import entry

ENTRY = entry("circulant-section-7.5.4")


def test_bytes_are_counted_and_the_time_is_recorded() -> None:
    speedup, statement = judge(ENTRY, gradients.MEASUREMENT, gradients.rows(Scope("cpu")))
    assert speedup.measured is not None and speedup.measured > speedup.value.value
    assert ", recorded on NVIDIA H200, 20" in speedup.ours
    assert str(of_entry(ENTRY, (speedup, statement))) == "reproduced"


def test_without_two_gpus_and_a_recording_bytes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "names", lambda: ())
    speedup, statement = judge(ENTRY, gradients.MEASUREMENT, gradients.rows(Scope("cpu")))
    assert speedup.ours == "not applicable" and speedup.value.not_applicable.startswith("needs two GPUs")
    assert statement.agrees and statement.ours.startswith("64x fewer bytes at k = 64, of 134 MB")
    assert str(of_entry(ENTRY, (speedup, statement))) == "reproduced"


@pytest.mark.parametrize(("circulant_us", "verdict"), [(10.0, "exceeded"), (64.0, "not reproduced")])
def test_two_gpus_measure_the_exchange(monkeypatch: pytest.MonkeyPatch, circulant_us: float, verdict: str) -> None:
    def times(exchanges: list[list[int]], *_: object) -> list[Timing]:
        assert exchanges == [[8192 * 4096], [8192 * 4096 // 64]]
        return [Timing("wall", "warm", median, median, median, 5) for median in (128.0, circulant_us)]

    monkeypatch.setattr(measure, "allreduce_times", times)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    speedup, _ = judge(ENTRY, gradients.MEASUREMENT, gradients.rows(Scope("cuda")))
    assert speedup.measured == pytest.approx(128 / circulant_us)
    assert of_entry(ENTRY, (speedup,)).word == verdict
