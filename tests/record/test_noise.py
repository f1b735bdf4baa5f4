"""The sentence about times that something disturbed."""

from dataclasses import replace

from lamina.record import LayerRun, Timing
from lamina.record.noise import disturbed

ROW = LayerRun(
    "conv", "convolution", 0, "forward", "dense", "fp32", "nchw", 1, "cpu", (), (), 0, None, None, "ok",
    timing=Timing("cpu", "-", 5.0, 4.0, 6.0, 9),
)  # fmt: skip


def test_quiet_times_need_no_sentence() -> None:
    assert disturbed([ROW, replace(ROW, outcome="failed", timing=None)]) == disturbed([]) == ""


def test_the_slowest_disturbed_layer_is_the_example() -> None:
    slow = replace(ROW, layer="fc", timing=Timing("cpu", "-", 50.0, 4.0, 60.0, 9), note="other processes use 2 cores")
    whole = replace(slow, layer="net", phase="step", timing=Timing("cpu", "-", 500.0, 4.0, 600.0, 9))
    text = disturbed([ROW, replace(ROW, layer="relu", note="quartiles 30% apart"), slow, whole])
    assert text.startswith("3 of 4 times are unreliable, such as fc forward (other processes use 2 cores): ")
