from collections import Counter
from dataclasses import replace

import pytest

from lamina.errors import UsageError
from lamina.explain import compare, overall, per_item, regressions

from ..report.records import bench, changed, failed, pick, timed, whole_step

CONV = pick(bench(), "conv1")


@pytest.mark.parametrize(
    ("us", "verdict"),
    [(80.0, "faster"), (125.0, "slower"), (101.0, "same"), (98.0, "same")],
)
def test_verdicts_follow_the_quartiles(us: float, verdict: str) -> None:
    (it,) = compare([timed(CONV, 100.0, spread=0.04)], [timed(CONV, us, spread=0.04)])
    assert it.verdict == verdict
    assert it.speedup == pytest.approx(100.0 / us)
    assert it.differs == {}


def test_a_wide_spread_hides_a_difference() -> None:
    a, b = timed(CONV, 100.0, spread=0.5), timed(CONV, 80.0, spread=0.5)
    assert compare([a], [b])[0].verdict == "same"


def test_a_phase_without_device_time_is_not_divided_by() -> None:
    none = timed(CONV, 0.0)
    assert [it.verdict for it in compare([none], [none])] == ["same"]
    (gone,) = compare([timed(CONV, 1.0)], [none])
    assert gone.speedup is None and gone.verdict == "faster"


def test_too_few_samples_give_no_verdict() -> None:
    (it,) = compare([timed(CONV, 100.0, n=1)], [timed(CONV, 50.0)])
    assert it.verdict == "unclear"
    assert "samples" in it.reason
    assert it.speedup == pytest.approx(2)


def test_axes_fixed_in_each_run_are_compared() -> None:
    b = [replace(row, device="Other GPU") for row in bench("bf16", layout="nhwc")]
    pairs = compare(bench(), b)
    assert Counter(it.verdict for it in pairs)["unmatched"] == 0
    assert len(pairs) == 44
    assert pairs[0].differs == {
        "precision": ("fp32", "bf16"),
        "layout": ("nchw", "nhwc"),
        "device": ("Example GPU 80GB", "Other GPU"),
    }


def test_rows_of_a_grid_pair_by_setting() -> None:
    a, b = [*bench("fp32"), *bench("bf16")], [*bench("bf16", "nhwc"), *bench("fp32", "nhwc")]
    pairs = compare(a, b)
    assert len(pairs) == 88
    assert all(it.a and it.b and it.a.precision == it.b.precision for it in pairs)
    assert all(it.differs == {"layout": ("nchw", "nhwc")} for it in pairs)


def test_extra_points_of_one_grid_are_unmatched() -> None:
    pairs = compare(bench("fp32"), [*bench("fp32"), *bench("bf16")])
    lonely = [it for it in pairs if it.verdict == "unmatched"]
    assert len(lonely) == 44
    assert {it.b.precision for it in lonely if it.b} == {"bf16"}
    assert lonely[0].reason == "not in the first run with precision bf16"


def test_a_row_that_ran_dense_is_no_speedup_of_its_implementation() -> None:
    fallback = {"impl": "sparse", "executed_impl": "dense", "selection_reason": "too few zeros"}
    b = [replace(row, **fallback) if row.layer == "conv2" else row for row in bench()]
    pairs = compare(bench(), b)
    mine = [it for it in pairs if it.layer == "conv2"]
    assert {(it.speedup, it.verdict) for it in mine} == {(None, "unmatched")}
    assert mine[0].reason == "sparse ran dense in the second run: too few zeros"
    kept = [it for it in pairs if it.layer != "conv2"]
    assert overall(pairs) == overall(kept) and all(it.speedup for it in kept)
    assert all(it.speedup for it in compare(b, b)), "dense beside dense is one"


def test_a_converted_layer_is_compared_with_its_dense_layer() -> None:
    changes = {"impl": "eliminated", "executed_impl": "eliminated"}
    b = [replace(row, **changes) if row.layer == "conv2" else row for row in bench()]
    (it,) = (it for it in compare(bench(), b) if (it.layer, it.phase) == ("conv2", "forward"))
    assert it.differs == {"impl": ("dense", "eliminated")}
    assert it.speedup == pytest.approx(1)


def test_unmatched_rows_of_both_sides_are_listed() -> None:
    rows = bench()
    a = [row for row in rows if row.layer != "fc8"]
    b = [row for row in rows if row.layer != "conv1"]
    lonely = [(it.layer, it.reason) for it in compare(a, b) if it.verdict == "unmatched"]
    assert lonely == [("conv1", "not in the second run")] * 3 + [("fc8", "not in the first run")] * 3


def test_a_failed_row_is_paired_and_has_a_reason() -> None:
    rows = bench()
    b = changed(rows, pick(rows, "conv1"), failed(CONV, "out of memory"))
    (it,) = (it for it in compare(rows, b) if it.verdict == "unmatched")
    assert (it.layer, it.speedup, it.reason) == ("conv1", None, "failed in the second run: out of memory")
    assert it.a == CONV


def test_a_failed_row_pairs_although_no_clock_timed_it() -> None:
    a = [*bench(clock="cupti"), *bench(clock="events")]
    b = [failed(row) if row.layer == "conv1" else row for row in bench(clock="cupti")]
    verdicts = [it for it in compare(a, b) if it.layer == "conv1" and it.phase == "forward"]
    assert [bool(it.a and it.b) for it in verdicts] == [True, False]


def test_duplicate_rows_are_rejected() -> None:
    with pytest.raises(UsageError, match="second run has 1 duplicate rows \\(conv1 forward\\)"):
        compare([CONV], [CONV, timed(CONV, 7.0)])


def test_sides_swap() -> None:
    there, back = compare(bench(), bench("bf16")), compare(bench("bf16"), bench())
    swapped = {"faster": "slower", "slower": "faster", "same": "same"}
    assert [swapped[it.verdict] for it in there] == [it.verdict for it in back]
    assert [it.speedup for it in there] == pytest.approx([1 / it.speedup for it in back if it.speedup])


def test_batches_compare_by_the_time_of_one_item() -> None:
    small, large = replace(timed(CONV, 40.0), batch=16), replace(timed(CONV, 100.0), batch=128)
    (it,) = compare([small], [large])
    assert (it.verdict, it.speedup) == ("slower", pytest.approx(0.4))
    (it,) = compare(per_item([small]), per_item([large]))
    assert (it.verdict, it.speedup) == ("faster", pytest.approx((40 / 16) / (100 / 128)))
    assert it.differs["batch"] == ("16", "128")
    assert per_item([failed(CONV)])[0].timing is None
    (one,) = per_item([large])
    assert one.timing and large.timing
    for field in ("median_us", "q1_us", "q3_us"):
        assert getattr(one.timing, field) == pytest.approx(getattr(large.timing, field) / 128)


def test_overall_excludes_the_step_and_unmatched_rows() -> None:
    a = [timed(row, 10.0) for row in bench()]
    b = [timed(row, 5.0) for row in a[:-1]] + [failed(a[-1])]
    pairs = compare([*a, whole_step(a, 1e6)], [*b, whole_step(b, 1.0)])
    assert overall(pairs) == pytest.approx(2.0)
    assert overall(compare(a, [])) is None


def test_a_regression_is_longer_than_allowed_beyond_the_spread() -> None:
    a, longer = timed(CONV, 100.0, spread=0.04), ("conv1 forward: 25.0 % longer",)
    for us, percent, found in ((125.0, 5, longer), (125.0, 25, ()), (80.0, 0, ()), (101.0, 0, ())):
        assert regressions(compare([a], [timed(CONV, us, spread=0.04)]), percent) == found
    assert regressions(compare([a], [timed(CONV, 125.0, spread=0.5)]), 5) == ()


def test_a_phase_that_lost_its_time_is_a_regression() -> None:
    fallen = replace(CONV, impl="circulant", executed_impl="dense", selection_reason="dense is faster")
    kept = replace(CONV, impl="circulant", executed_impl="circulant")
    assert regressions(compare([CONV], [failed(CONV, "out of memory")]), 5) == (
        "conv1 forward: failed in the second run: out of memory",
    )
    assert regressions(compare([CONV], []), 5) == ("conv1 forward: not in the second run",)
    assert regressions(compare([kept], [fallen]), 5) == (
        "conv1 forward: circulant ran dense in the second run: dense is faster",
    )
    for a in (fallen, failed(CONV)):  # what the first run did not have is not lost
        assert regressions([*compare([CONV], [CONV]), *compare([a], [kept])], 5) == ()


def test_the_slowest_comes_first() -> None:
    fc = pick(bench(), "fc6")
    a, b = [timed(CONV, 100.0), timed(fc, 100.0)], [timed(CONV, 150.0), timed(fc, 200.0)]
    assert [text.split()[0] for text in regressions(compare(a, b), 5)] == ["fc6", "conv1"]


def test_regressions_are_judged_by_enough_samples_only() -> None:
    for a, b in ((CONV, timed(CONV, 100.0, n=2)), (timed(CONV, 100.0, n=2), CONV), (failed(CONV), CONV)):
        with pytest.raises(UsageError, match="at least 4 samples"):
            regressions(compare([a], [b]), 5)
