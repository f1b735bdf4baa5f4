from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.errors import SpecError
from lamina.spec.grid import parse_grid
from lamina.spec.grid_filter import Filter

SETTINGS = {"batch_size": 16, "impl": "dense", "device.l2.bytes": 1024, "check": True, "x": 0.5}


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("batch_size * 3 < 1000", True),
        ("batch_size * 3 < 48", False),
        ("8 <= batch_size <= 16", True),
        ("impl == 'dense' and not batch_size > 16", True),
        ("impl in ['sparse', 'fused'] or batch_size // 3 == 5", True),
        ("impl not in ('dense',)", False),
        ("device.l2.bytes % 1000 == 24", True),
        ("-x < 0 and x / 2 == 0.25 and x + 1 - 1 == x", True),
        ("check", True),
    ],
)
def test_filters_compare_settings(text: str, accepted: bool) -> None:
    assert Filter(text).accepts(SETTINGS) is accepted


def test_a_dotted_name_is_one_setting() -> None:
    assert Filter("device.l2.bytes < batch_size * 2 or x in [1, y]").names == {*SETTINGS, "y"} - {"impl", "check"}


@pytest.mark.parametrize(
    "text",
    [
        *("", "batch_size =", "batch_size = 3", "f(1)", "__import__('os')", "x.__class__()", "[x for x in y]", "x[0]"),
        *("2 ** 99999", "1 << 9", "lambda: 1", "x if y else 1", "x is 1", "{1: 2}", "f'{x}'", "b'1'", "None", "1j"),
        *("...", "x := 1", "(1).real", "~1", "x @ 1", "'a' 'b', *x", "\0", "(" * 300, "x" * 501),
    ],
)
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        Filter(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [("impl < 3", "one type"), ("impl * 3 == ''", "one type"), ("check + 1", "one type"), ("1 / (x - x)", "zero")],
)
def test_values_that_do_not_fit_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Filter(text).accepts(SETTINGS)


@given(st.text(alphabet="ab.12 +-*/%<>=!()[],'\"andornotin_", max_size=40) | st.text(max_size=40))
def test_any_text_is_a_filter_or_refused(text: str) -> None:
    try:
        made = Filter(text)
        made.accepts(dict.fromkeys(made.names, 1))
    except ValueError:
        return


AXIS = st.lists(st.integers(-9, 9), min_size=1, max_size=4, unique=True)


@given(AXIS, AXIS, st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), max_size=4), st.integers(-9, 9))
def test_configurations_are_the_product_that_the_filters_accept(
    first: list[int], second: list[int], zipped: list[tuple[int, int]], limit: int
) -> None:
    columns = [list(column) for column in zip(*zipped, strict=True)] if zipped else []
    table = f"[[zip]]\nc = {columns[0]}\nd = {columns[1]}\n" if columns else ""
    text = f"filter = ['a + b < {limit}']\nseeds = [3, 4]\n[axes]\na = {first}\nb = {second}\n{table}"
    pairs = [{"c": c, "d": d} for c, d in zipped] or [{}]
    rows = [
        {"a": a, "b": b, **pair, "seed": seed}
        for a, b, pair, seed in product(first, second, pairs, (3, 4))
        if a + b < limit
    ]
    if not rows:
        with pytest.raises(SpecError, match="no configuration satisfies all filters"):
            parse_grid(text, "g")
        return
    grid = parse_grid(text, "g")
    assert list(grid.configurations()) == rows and len(grid) == len(rows)
    assert grid.first == {"a": first[0], "b": second[0], **pairs[0], "seed": 3}
    assert set(grid.swept) == set(rows[0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[axes]\na = [1]\n[[zip]]\nb = [1, 2]\nc = [1]", "zip: expected lists of one length, got .1, 2."),
        ("[axes]\na = [1]\n[zip]\nb = [1, 2]", "zip = .*expected tables"),
        ("[[zip]]\nb = 1", "expected lists of strings"),
        ("[[zip]]", "expected lists of one length, got none"),
        ("[axes]\na = [1]\n[[zip]]\na = [1, 2]", r"a: is in \[axes\] and in \[\[zip\]\]"),
        ("seeds = [1]\n[base]\nseed = 2", r"seed: is in \[base\] and in seeds"),
        ("seeds = [1, 1]", "seeds = .*different whole numbers"),
        ("seeds = [-1]", "seeds = .*different whole numbers"),
        ("seeds = [true]", "seeds = .*different whole numbers"),
        ("seeds = []\n[axes]\na = [1]", "seeds = .*different whole numbers"),
        ("filter = 3\n[axes]\na = [1]", "line 1: filter = 3: expected a list"),
        ("filter = ['a <']\n[axes]\na = [1]", "filter 'a <': expected a comparison"),
        ("filter = ['batch_sise < 2']\n[axes]\nbatch_size = [1]", "'batch_sise' is unknown: did you mean 'batch_size'"),
        ("filter = ['a < \"b\"']\n[axes]\na = [1]", "one type"),
        ("verb = 3\n[axes]\na = [1]", "verb = 3: expected a non-empty string"),
        ("verb = 'bench'\n[axes]\na = [1]\n[baseline]\na = 2", "only simulations have one"),
    ],
)
def test_faults_are_reported(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_grid(text, "g.toml")


def test_seeds_and_zips_alone_are_a_grid() -> None:
    assert list(parse_grid("seeds = [1, 2]", "g").configurations()) == [{"seed": 1}, {"seed": 2}]
    grid = parse_grid("verb = 'train'\n[[zip]]\nset.N = [1, 2]\nlr = [0.1, 0.2]\n", "g")
    assert grid.verb == "train" and list(grid.configurations())[1] == {"set.N": 2, "lr": 0.2}
