"""Steps are compared with the better dense layout."""

from benchmarks.circulant_training.timing import gains


def test_gains_compare_with_the_better_dense_layout() -> None:
    common = {"workload": "net", "precision": "bf16", "timing": "graph", "peak_bytes": 2**20}
    rows = [common | {"impl": "dense", "median_us": us} for us in (9.0, 6.0)]
    rows += [common | {"impl": "circulant[block_size=64]", "median_us": 4.0, "peak_bytes": 3 * 2**20}]
    assert gains(rows) == {"net bf16:": "1.50x, peak 1 -> 3 MiB"}
    assert gains(rows[:2]) == {}
