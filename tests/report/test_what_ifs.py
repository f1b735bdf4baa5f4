"""A long list of what-ifs is short unless all is wanted, and loses nothing without saying so."""

from dataclasses import replace

from lamina.record import LayerRun, Timing, WhatIf
from lamina.report.what_ifs import shorten_what_ifs

from .records import bench


def time(us: float) -> Timing:
    return Timing("cpu", "-", us, us - 1, us + 1, 5)


def what_if(layer: str, us: float, change: str = "precision", after: bool = True, phase: str = "forward") -> WhatIf:
    measured = time(us / 2) if after else None
    reason = "" if after else "not supported"
    return WhatIf(change, "fp32 -> bf16", layer, phase, "fp32", 8, time(us), us / 4, "rule", measured, us / 1e6, reason)


def rows(*layers: str) -> list[LayerRun]:
    row = bench()[0]
    step = replace(row, layer="net", phase="step", kind="network")
    return [*(replace(row, layer=layer, place=place) for place, layer in enumerate(layers)), step]


def test_equal_layers_are_one_line_of_sums() -> None:
    found = [what_if("b.0.x", 10.0), what_if("b.1.x", 30.0), what_if("head", 5.0)]
    short = shorten_what_ifs(found, rows("b.0.x", "b.1.x", "head"))
    assert [one.layer for one in short.lines] == ["b.0-1.x", "head"]
    assert (short.folded, short.hidden) == (2, 0)
    blocks = short.lines[0]
    assert blocks.before == replace(time(40.0), q1_us=38.0, q3_us=42.0) and blocks.measured_gain == 1.0
    assert blocks.predicted_us == 10.0 and blocks.rel_error == 30e-6


def test_whole_steps_come_first_then_the_slowest_and_every_other_is_counted() -> None:
    found = [
        what_if("a", 1.0),
        what_if("b", 3.0),
        what_if("c", 2.0),
        what_if("b", 3.0, change="algorithm"),
        what_if("net", 9.0, phase="step"),
        what_if("a", 1.0, change="algorithm", after=False),
    ]
    short = shorten_what_ifs(found, rows("a", "b", "c"), most=2)
    assert [(one.layer, one.change) for one in short.lines] == [
        ("net", "precision"),
        ("b", "precision"),
        ("b", "algorithm"),
    ]
    assert short.refused == (found[-1],) and (short.folded, short.hidden) == (0, 2)


def test_without_rows_nothing_is_folded() -> None:
    found = [what_if("b.0.x", 10.0), what_if("b.1.x", 30.0)]
    assert [one.layer for one in shorten_what_ifs(found, []).lines] == ["b.1.x", "b.0.x"]
