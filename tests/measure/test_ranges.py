"""Marks: wall time on any machine, memory and names on a GPU."""

import pytest
import torch

from lamina.measure.ranges import HostTimes, MemoryUse, nvtx_range, profiler_capture


def test_host_times_keep_every_sample_by_key() -> None:
    times: HostTimes[str] = HostTimes()
    for key in ("a", "b", "a"):
        with times.range(key):
            torch.ones(10).sum()
    assert {key: len(samples) for key, samples in times.samples_us.items()} == {"a": 2, "b": 1}
    assert all(sample > 0 for samples in times.samples_us.values() for sample in samples)


def test_a_range_that_failed_has_no_sample() -> None:
    times: HostTimes[str] = HostTimes()
    with pytest.raises(RuntimeError, match="broken"), times.range("a"):
        raise RuntimeError("broken")
    assert times.samples_us == {}


@pytest.mark.gpu
def test_memory_use_has_peak_and_live_bytes() -> None:
    device = torch.device("cuda", 0)
    use: MemoryUse[str] = MemoryUse(device)
    before = torch.cuda.memory_allocated(device)
    with use.range("grow"):
        kept = torch.empty(1 << 20, device=device)
        torch.empty(1 << 22, device=device)
    with use.range("still"):
        pass
    assert kept.numel() == 1 << 20
    assert use.live_bytes["grow"] == before + (4 << 20)
    assert use.peak_bytes["grow"] == before + (4 << 20) + (16 << 20)
    assert use.peak_bytes["still"] == use.live_bytes["still"] == use.live_bytes["grow"]


@pytest.mark.gpu
def test_ranges_and_capture_are_harmless_without_a_profiler() -> None:
    device = torch.device("cuda", 0)
    with profiler_capture(device), nvtx_range("lamina/0/forward"):
        x = torch.ones(4, device=device) + 1
    assert x.tolist() == [2, 2, 2, 2]
