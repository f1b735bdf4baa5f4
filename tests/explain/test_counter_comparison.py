import pytest
from tests.explain.recorded import kernel, key, recorded, row

from lamina.explain import compare_counters, metrics
from lamina.record import Counter, KernelRun, LayerRun

OF = key("features.3")
Side = tuple[list[LayerRun], list[KernelRun], list[Counter]]


def side(hit: float | None, sectors: float | None, batch: int = 128, unit: str = "%") -> Side:
    of = OF._replace(batch=batch)
    kernels = [kernel(of, 30.0), kernel(of, 10.0, invocation=1)]
    counters = [Counter(of, it.invocation, metrics.L1_HIT, hit, unit) for it in kernels]
    counters += [Counter(of, it.invocation, metrics.DRAM_READS, sectors, "sector") for it in kernels]
    return [row(of, 40.0)], kernels, counters


def test_rates_are_averaged_and_counts_are_summed() -> None:
    sectors, hit = compare_counters(*side(20.0, 100.0), *side(30.0, 400.0))
    assert (hit.metric, hit.unit, hit.a, hit.b, hit.ratio) == (metrics.L1_HIT, "%", 20.0, 30.0, 1.5)
    assert (sectors.a, sectors.b, sectors.ratio) == (200.0, 800.0, 4.0)


def test_counts_per_item_and_rates_as_they_are() -> None:
    sectors, hit = compare_counters(*side(20.0, 64.0, 128), *side(20.0, 64.0, 16), per_item=True)
    assert (sectors.a, sectors.b, sectors.ratio) == (1.0, 8.0, 8.0)
    assert hit.ratio == 1.0


def test_a_counter_of_one_run_only_has_no_ratio() -> None:
    found = compare_counters(*side(20.0, None), *side(None, 100.0))
    assert [(it.metric, it.a, it.b, it.ratio) for it in found] == [
        (metrics.DRAM_READS, None, 200.0, None),
        (metrics.L1_HIT, 20.0, None, None),
    ]
    assert compare_counters(*side(None, None), *side(None, None)) == ()


def test_requested_metrics_in_the_requested_order() -> None:
    asked = [metrics.L1_HIT, metrics.DRAM_READS]
    found = compare_counters(*side(1.0, 1.0), *side(1.0, 1.0), metrics=asked)
    assert [it.metric for it in found] == asked


def test_a_run_against_itself_has_ratio_one() -> None:
    run = recorded()
    found = compare_counters(*run, *run)
    assert {it.layer for it in found} == {it.layer for it in run[0]}
    assert all(it.ratio == pytest.approx(1.0) for it in found if it.a)
