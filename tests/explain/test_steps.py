import pytest

from lamina.explain import phase_totals, shares, steps

from ..report.records import bench, changed, failed, pick, timed, whole_step


def test_a_layer_s_step_is_the_sum_of_its_phases() -> None:
    rows = bench()
    for phase, us in (("forward", 100.0), ("backward_data", 220.0), ("backward_weight", 180.0)):
        rows = changed(rows, pick(rows, "conv3", phase), timed(pick(rows, "conv3", phase), us, spread=0.1))
    (network,) = steps(rows)
    (conv3,) = (layer for layer in network.layers if layer.layer == "conv3")
    assert conv3.step is not None
    assert conv3.step.median_us == pytest.approx(500)
    assert conv3.step.q1_us == pytest.approx(500 * 0.96)
    assert conv3.step.q3_us == pytest.approx(500 * 1.06)
    assert list(conv3.phases) == ["forward", "backward_data", "backward_weight"]


def test_the_network_is_the_sum_of_its_layers_in_order_of_execution() -> None:
    rows = bench()
    (network,) = steps(list(reversed(rows)))
    by_hand = sum(row.timing.median_us for row in rows if row.timing)
    assert network.step is not None
    assert network.step.median_us == pytest.approx(by_hand)
    assert network.measured_us == pytest.approx(by_hand)
    assert [layer.layer for layer in network.layers] == list(dict.fromkeys(row.layer for row in rows))


def test_a_missing_phase_gives_no_step_and_a_reason() -> None:
    rows = bench()
    lost = pick(rows, "fc6", "backward_weight")
    assert lost.timing is not None
    (network,) = steps(changed(rows, lost, failed(lost, "out of memory")))
    (fc6,) = (layer for layer in network.layers if layer.layer == "fc6")
    assert (fc6.step, network.step) == (None, None)
    assert fc6.reason == "backward_weight failed: out of memory"
    assert network.reason == f"fc6: {fc6.reason}"
    (complete,) = steps(rows)
    assert network.measured_us == pytest.approx(complete.measured_us - lost.timing.median_us)


def test_a_phase_measured_in_another_setting_only_is_missing() -> None:
    circulant = [row for row in bench(impl="circulant[block_size=64]") if row.kind == "convolution"]
    dense, converted = steps([*bench(), *circulant])
    assert dense.step is not None
    assert converted.step is None
    assert "relu1: forward was not measured in this setting" in converted.reason


def test_settings_are_summed_apart() -> None:
    fp32, bf16 = steps([*bench(), *bench("bf16")])
    assert fp32.setting == (("precision", "fp32"),)
    assert fp32.step == steps(bench())[0].step
    assert bf16.step == steps(bench("bf16"))[0].step


def test_the_whole_step_is_in_no_sum() -> None:
    rows = bench()
    whole = whole_step(rows, 50_000.0)
    (network,) = steps([*rows, whole])
    assert network.whole == whole
    assert network.step == steps(rows)[0].step
    assert "AlexNet" not in {layer.layer for layer in network.layers}


def test_phase_totals_add_up_to_the_step() -> None:
    (network,) = steps(bench())
    totals = phase_totals(network)
    assert list(totals) == ["forward", "backward_data", "backward_weight"]
    assert network.step is not None
    assert sum(total.median_us for total in totals.values()) == pytest.approx(network.step.median_us)
    backward_weight = [row for row in bench() if row.phase == "backward_weight" and row.timing]
    assert totals["backward_weight"].q3_us == pytest.approx(sum(r.timing.q3_us for r in backward_weight if r.timing))


def test_shares_are_of_the_row_s_own_setting() -> None:
    rows = [*bench(), *bench("bf16")]
    whole = whole_step(bench(), 50_000.0)
    parts = shares([*rows, whole])
    assert whole not in parts
    for precision in ("fp32", "bf16"):
        assert sum(part for row, part in parts.items() if row.precision == precision) == pytest.approx(1)


def test_nothing_gives_nothing() -> None:
    assert steps([]) == ()
    assert shares([]) == {}
