"""Published results: each entry names a recipe that exists, and closed forms give the numbers printed."""

from pathlib import Path

import pytest

from lamina import recipes
from lamina.errors import SpecError, UsageError
from lamina.spec import Network, Phase, ResolvedLayer, read, show
from lamina.spec.published import Published, PublishedValue, entries, entry, read_entry

UNEXPLAINED = {("dnnmark-table-5.1", "softmax")}


def network(published: Published) -> Network:
    return read(recipes.find(published.recipe).path)[0]


def layers(published: Published) -> dict[str, ResolvedLayer]:
    batch = published.workload.batch or (None,)
    return {layer.name: layer for layer in network(published).resolve(batch[0])}


TABLES = [
    each
    for each in entries()
    if each.values and each.how in ("counted", "measured") and not (each.simulates or each.measures)
]


@pytest.mark.parametrize("published", TABLES, ids=lambda each: each.id)
def test_entries_are_about_layers_of_their_recipe(published: Published) -> None:
    assert {value.layer for value in published.values} == layers(published).keys()


def test_entries_are_found_by_id() -> None:
    assert [each.id for each in TABLES] == ["dnnmark-table-4.4", "dnnmark-table-5.1"]
    assert [each.id for each in entries()] == sorted(each.id for each in entries())
    assert entry("dnnmark-table-5.1").title.startswith("AlexNet")
    with pytest.raises(UsageError, match="did you mean 'dnnmark-table-5.1'"):
        entry("dnnmark-table-51")


@pytest.mark.parametrize("value", entry("dnnmark-table-4.4").values, ids=lambda value: value.layer)
def test_the_selected_benchmarks_have_the_inputs_printed(value: PublishedValue) -> None:
    layer = layers(entry("dnnmark-table-4.4"))[value.layer]
    assert [show(shape) for shape in layer.inputs] == [value.value]


def test_a_probable_misprint_is_kept_and_said() -> None:
    (wide,) = [value for value in entry("dnnmark-table-4.4").values if value.layer == "fully_connected"]
    assert "9162" in str(wide.value)
    assert "9216" in wide.note


@pytest.mark.parametrize("value", entry("dnnmark-table-5.1").values, ids=lambda value: value.layer)
def test_alexnet_s_operations_are_those_printed(value: PublishedValue) -> None:
    ours = layers(entry("dnnmark-table-5.1"))[value.layer].cost(Phase.FORWARD).flops
    assert value.agrees(ours) is not value.disputed
    assert value.disputed is (("dnnmark-table-5.1", value.layer) in UNEXPLAINED)
    assert not value.disputed or value.note


def test_alexnet_s_printed_total() -> None:
    """The printed figures add up to ours to within their digits: half a unit each."""
    published = entry("dnnmark-table-5.1")
    assert published.counts
    rows = [value for value in published.values if not value.disputed]
    printed = sum(value.value * {"K": 10**3, "M": 10**6}[value.unit] for value in rows)
    ours = sum(layers(published)[value.layer].cost(Phase.FORWARD).flops for value in rows)
    assert printed == pytest.approx(ours, rel=2e-3)


@pytest.mark.parametrize(
    ("value", "unit", "agree", "differ"),
    [
        (210, "M", [210.0e6, 210.8e6, 209.6e6], [211.1e6, 209.4e6, 210]),
        (63, "K", [62_500.5, 63_999], [62_400, 64_001]),
        (4.5, "", [4.5, 4.59, 4.46], [4.4, 4.61]),
        (1.29, "ms", [1.29, 1.288], [1.3, 1290]),
        ("8x8", "", [], [8, 64]),
    ],
)
def test_agreement_is_to_the_digits_printed(
    value: float | str, unit: str, agree: list[float], differ: list[float]
) -> None:
    published = PublishedValue(layer="x", quantity="y", value=value, unit=unit)
    assert [ours for ours in agree + differ if published.agrees(ours)] == agree


def test_an_entry_that_shows_nothing_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "a-1.toml"
    file.write_text('id = "a-1"\ntitle = "t"\npaper = "p"\nplace = "x"\nrecipe = "r"\n')
    with pytest.raises(SpecError, match="expected values, statements or figures"):
        read_entry(file)


def test_simulated_entries_name_their_recorded_rows(tmp_path: Path) -> None:
    file = tmp_path / "a-1.toml"
    file.write_text('id = "a-1"\ntitle = "t"\npaper = "p"\nplace = "x"\nrecipe = "r"\n'
                    'values = [{layer = "a", quantity = "q", value = 1}]\n'
                    '[simulates]\nworks = [{name = "a", settings = {}}]\n')  # fmt: skip
    with pytest.raises(SpecError, match="expected recorded, the shipped rows"):
        read_entry(file)


def test_quantities_of_version_01_are_read() -> None:
    assert PublishedValue(layer="a", quantity="training speed-up", value=2.0).quantity == "training speedup"


@pytest.mark.parametrize(
    ("given", "improves"),
    [({"unit": "x"}, "higher"), ({"unit": "%"}, "equal"), ({"unit": "%", "better": "lower"}, "lower")],
)
def test_speedups_improve_upwards_unless_the_entry_says_otherwise(given: dict[str, str], improves: str) -> None:
    assert PublishedValue(layer="a", quantity="q", value=2.0, **given).improves == improves  # type: ignore[arg-type]


def test_settings_keep_their_types(tmp_path: Path) -> None:
    file = tmp_path / "a-1.toml"
    file.write_text('id = "a-1"\ntitle = "t"\npaper = "p"\nplace = "x"\nrecipe = "r"\n'
                    'values = [{layer = "a", quantity = "q", value = 1}]\n'
                    'recorded = "r"\n[simulates]\nbase = {one = 1, half = 0.5, yes = true, word = "w"}\n'
                    'works = [{name = "a", settings = {layer = "conv1"}}]\n')  # fmt: skip
    published = read_entry(file)
    assert published.simulates is not None and published.how == "simulated"
    assert [(value, type(value)) for value in published.simulates.base.values()] == [
        (1, int), (0.5, float), (True, bool), ("w", str)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("dnnmark-table-5.1", "counted"), ("dnnmark-table-4.4", "measured"), ("icpe18-figure-5.7", "profiled"),
        ("icpe18-optimizations", "changed"), ("spartan-table-6.3", "counted"), ("spartan-table-6.6", "measured"),
        ("circulant-table-7.1", "not applicable"),
        ("spartan-figure-6.16", "simulated"),
    ],
)  # fmt: skip
def test_each_tells_what_has_to_be_done(name: str, how: str) -> None:
    assert entry(name).how == how


def test_a_faulty_entry_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "a-1.toml"
    file.write_text('id = "a-1"\ntitle = "t"\npaper = "p"\nrecpie = "r"\n[workload]\nbatch = 3\n')
    with pytest.raises(SpecError) as caught:
        read_entry(file)
    assert sorted(str(fault) for fault in caught.value.faults) == [
        "key 'recpie' is unknown: did you mean 'recipe'?",
        "place is missing",
        "recipe is missing",
        "workload.batch = 3: expected a list",
    ]
    file.write_text('id = "b"\ntitle = "t"\npaper = "p"\nplace = "x"\nrecipe = "r"\n'
                    'values = [{layer = "a", quantity = "q", value = 1}]\n')  # fmt: skip
    with pytest.raises(SpecError, match=r"expected a file called b\.toml"):
        read_entry(file)
    file.write_text("id =")
    with pytest.raises(SpecError, match="Invalid value"):
        read_entry(file)
