from dataclasses import replace

from lamina.report.layers import LONGEST, by_layer, label, short
from lamina.report.layers import failed as failures

from .records import bench, failed, timed, whole_step


def test_layers_come_in_order_of_execution_without_the_whole_step() -> None:
    rows = bench()
    layers = by_layer([whole_step(rows, 1e4), *reversed(rows)])
    assert list(layers) == list(dict.fromkeys(row.layer for row in rows))
    assert set(layers["conv1"]) == {"forward", "backward_data", "backward_weight"}


def test_a_bar_s_label_is_its_sum_and_what_it_lacks() -> None:
    forward, back, weight = bench()[:3]
    phases = {
        "forward": timed(forward, 40.0),
        "backward_data": timed(back, 2.5),
        "backward_weight": failed(weight),
    }
    assert label(phases) == "42.5 µs, no backward_weight"
    assert failures(phases) == ["backward_weight"]
    assert label({"forward": failed(forward)}) == "no forward"
    skipped = replace(failed(weight), outcome="skipped")
    assert label({"forward": timed(forward, 40.0), "backward_weight": skipped}) == "40.0 µs"


def test_long_names_keep_their_end() -> None:
    name = "features.denseblock4.denselayer16.conv2"
    assert len(short(name)) == LONGEST
    assert name.endswith(short(name)[1:])
    assert short("conv1") == "conv1"
