from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console
from rich.table import Table

from lamina.explain import compare, rooflines, shares
from lamina.record import Timing
from lamina.record.beside import Beside
from lamina.report import (
    diff_table,
    epochs_table,
    layer_table,
    network_table,
    published_table,
    runs_table,
)
from lamina.spec import Phase
from lamina.spec.layers import Opaque
from lamina.spec.published import PublishedValue

from .records import ROOFS, alexnet, bench, changed, epochs, failed, pick, run, timed, whole_step


def text(table: Table, width: int = 200) -> str:
    """The table as a terminal of that width shows it."""
    stream = StringIO()
    Console(file=stream, width=width, color_system=None).print(table)
    return stream.getvalue()


def cells(table: Table, width: int = 200) -> list[list[str]]:
    """The words between two blanks or more, line by line; empty cells vanish."""
    lines = (line.strip().split("  ") for line in text(table, width).splitlines())
    return [[cell.strip() for cell in line if cell.strip()] for line in lines]


def line(table: Table, *start: str) -> list[str]:
    (found,) = (found for found in cells(table) if found[: len(start)] == list(start))
    return found


def test_a_layer_s_line_by_hand() -> None:
    row = replace(pick(bench(), "conv2"), flops=40_000_000, bytes=1_000_000, rel_error=3.21e-7)
    row = timed(row, 40.0, spread=0.1)
    roofs = replace(ROOFS, copy_gbs=100.0, gemm_gflops={"fp32": 2_000.0})
    table = layer_table([row], rooflines([row], roofs), {row: 0.625})
    values = ["40.0 µs", "38.4 – 42.4 µs", "62%", "1,000", "25.0", "50% compute", "3.2e-07"]
    assert line(table, "conv2") == ["conv2", "convolution", "forward", *values]


def test_layers_keep_their_order_and_are_summed() -> None:
    rows = [*bench(), whole_step(bench(), 44_000)]
    table = layer_table(rows, title="AlexNet, batch 128")
    layers = [found[0] for found in cells(table) if found and "e-0" in found[-1]]
    assert layers == [row.layer for row in rows]
    total = sum(row.timing.median_us for row in bench() if row.timing)
    assert f"44 phases, {total / 1e3:.1f} ms together" in text(table)
    assert text(table).startswith("AlexNet, batch 128")


def test_a_failed_row_shows_its_reason() -> None:
    rows = bench()
    for layer in ("fc6", "fc7"):
        rows = changed(rows, pick(rows, layer), failed(pick(rows, layer), "out of memory [2 GiB]"))
    table = layer_table(rows)
    assert line(table, "fc6", "linear", "forward") == ["fc6", "linear", "forward", "failed"]
    assert "fc6 forward, fc7 forward failed: out of memory [2 GiB]" in text(table)


def test_a_rate_from_the_flops_of_some_layers_is_a_lower_bound() -> None:
    row = replace(bench()[0], flops=2 * 10**9, timing=Timing("cpu", "-", 1e6, 1e6, 1e6, 3))
    assert ">=" not in text(layer_table([row]))
    assert ">= 2.0" in text(layer_table([replace(row, uncounted=3)]))


def test_totals_of_a_network_with_uncounted_layers_are_lower_bounds() -> None:
    layers = [alexnet().resolve(1)[0]]
    assert ">=" not in text(network_table(layers))
    opaque = replace(layers[0], layer=Opaque(name="j0", operation="bessel_j0", shape=layers[0].output))
    shown = network_table([*layers, opaque])
    assert ">= " in text(shown) and "1 layers have no formula for their FLOPs" in text(shown)


def test_only_axes_that_vary_have_a_column() -> None:
    assert not {"precision", "layout", "impl", "batch"} & set(cells(layer_table(bench()))[1])
    rows = [*bench(), *bench("bf16", impl="circulant[block_size=64]")]
    heading = next(found for found in cells(layer_table(rows)) if "layer" in found)
    assert [name for name in heading if name in ("impl", "precision", "layout", "batch")] == [
        "impl",
        "precision",
    ]
    assert "circulant[block_size=64]" in text(layer_table(rows))


def test_markup_in_names_is_text() -> None:
    rows = [replace(row, layer=f"[bold red]{row.layer}[/]") for row in bench()]
    assert "[bold red]conv1[/]" in text(layer_table(rows))


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_a_narrow_terminal_loses_columns_but_no_layer_or_time(width: int) -> None:
    rows = bench()
    shown = text(layer_table(rows, rooflines(rows, ROOFS), shares(rows), width=width), width)
    assert "…" not in shown
    for row in rows:
        assert f"{row.layer} " in shown
    assert "backward_weight" in shown
    assert max(map(len, shown.splitlines())) <= width


def test_a_wide_terminal_loses_nothing() -> None:
    rows = bench()
    everything = layer_table(rows, rooflines(rows, ROOFS), shares(rows))
    assert text(everything) == text(layer_table(rows, rooflines(rows, ROOFS), shares(rows), width=200))


def test_the_network_is_shown_with_shapes_and_costs() -> None:
    table = network_table(alexnet().resolve(128), title="AlexNet")
    conv1 = line(table, "conv1")
    assert conv1[1:5] == ["convolution", "128x3x227x227", "128x96x55x55", "34.9 K"]
    flops = 2 * 128 * 55 * 55 * 96 * 3 * 11 * 11
    moved = 4 * (128 * 3 * 227 * 227 + 96 * 363 + 96 + 128 * 96 * 55 * 55)
    assert conv1[5] == f"{flops / 1e9:.1f} G / {moved / 2**20:.0f} MiB"
    assert line(table, "flatten") == ["flatten", "flatten", "128x256x6x6", "128x9216"]
    assert line(table, "total")[1] == "62.4 M"
    total = sum(layer.cost(Phase.FORWARD).flops for layer in alexnet().resolve(128))
    assert line(table, "total")[2].startswith(f"{total / 1e9:.0f} G / ")


def test_half_the_precision_moves_half_the_bytes() -> None:
    wide, narrow = (line(network_table(alexnet().resolve(128), size), "relu1")[4] for size in (8, 4))
    assert (wide, narrow) == ("37.2 M / 567 MiB", "37.2 M / 284 MiB")


def test_runs_are_listed() -> None:
    table = runs_table([run(), replace(run("interrupted"), id="b")])
    first = [
        "20260115-090210-3f2a",
        "bench",
        "AlexNet",
        "Example GPU 80GB",
        "2026-01-15T09:02:10+00:00",
        "done",
    ]
    assert line(table, first[0]) == first
    assert line(table, "b")[-1] == "interrupted"


def test_a_comparison_names_both_sides_precision() -> None:
    a, b = timed(pick(bench(), "conv1"), 100.0), timed(pick(bench("bf16"), "conv1"), 25.0)
    table = diff_table(compare([a], [b]), "before", "after")
    assert line(table, "conv1") == ["conv1", "forward", "100 µs", "25.0 µs", "4.00x", "faster"]
    assert "after against before (fp32 → bf16): 1 faster" in text(table)
    assert "(fp32): 1 same" in text(diff_table(compare([a], [a])))


def test_what_ran_is_a_column_where_it_is_not_what_was_requested() -> None:
    fallback = {"impl": "sparse", "executed_impl": "dense", "selection_reason": "too few zeros"}
    rows = [replace(row, **fallback) if row.layer == "conv2" else row for row in bench()]
    assert "executed" in cells(layer_table(rows))[1] and "executed" not in cells(layer_table(bench()))[1]
    assert "dense" in line(layer_table(rows), "conv2", "convolution", "forward")
    assert "sparse ran dense: too few zeros" in text(layer_table(rows))


def test_a_disturbed_time_says_so_in_its_row_and_at_the_end() -> None:
    cause = "other processes use 1.4 of 2 cores"
    rows = [replace(row, note=cause) if row.layer == "conv2" else row for row in bench()]
    assert line(layer_table(rows, width=None), "conv2", "convolution", "forward")[-1] == cause
    assert "note" not in cells(layer_table(bench()))[1] and "unreliable" not in text(layer_table(bench()))
    narrow = text(layer_table(rows, width=60), 60)
    assert "times are unreliable, such as conv2" in " ".join(narrow.split())


def test_pairs_measured_differently_each_say_how() -> None:
    rows = bench()
    changes = {"impl": "eliminated", "executed_impl": "eliminated"}
    other = [replace(row, **changes) if row.layer == "conv2" else row for row in rows]
    table = diff_table(compare(rows, other))
    assert line(table, "conv2", "forward")[-1] == "fp32, dense → eliminated"
    assert line(table, "conv1", "forward")[-1] == "fp32"


def test_unmatched_pairs_say_why() -> None:
    rows = bench()
    table = diff_table(compare(rows, changed(rows, rows[0], failed(rows[0], "no algorithm"))))
    assert line(table, "conv1", "forward")[3:] == ["failed", "unmatched"]
    assert "conv1 forward failed in the second run: no algorithm" in text(table)


def test_epochs() -> None:
    table = epochs_table(epochs(3))
    assert line(table, "2")[:3] == ["2", "782", "0.100"]
    assert line(table, "2")[-1] == "32.0 s"


def test_published_values_beside_ours() -> None:
    conv = PublishedValue(layer="conv1", printed="Convolution", quantity="operations", value=210, unit="M")
    softmax = PublishedValue(layer="softmax", quantity="operations", value=1, unit="M", disputed=True, note="too many")
    wrong = PublishedValue(layer="fc", quantity="input", value="1x2")
    rows = [Beside(conv, "210.8", True), Beside(softmax, "0.005", False), Beside(wrong, "1x3", False)]
    table = published_table(rows, "Table 5.1", "for one image")
    assert line(table, "Convolution") == ["Convolution", "operations", "210 M", "210.8", "yes"]
    assert line(table, "softmax") == ["softmax", "operations", "1 M", "0.005", "disputed", "too many"]
    assert line(table, "fc")[-1] == "no"
    assert "for one image" in text(table)


@pytest.mark.parametrize("table", [layer_table([]), runs_table([]), diff_table([]), epochs_table([])])
def test_nothing_is_an_empty_table(table: Table) -> None:
    assert table.row_count == 0
    assert text(table)
