"""The counting pass, by kernel and by PyTorch, beside counts made element by element in NumPy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lamina.accelerate.training.sparsity_monitor import Observation, kernels, observation, ops
from lamina.accelerate.training.sparsity_monitor.ops import CountedMap, CountPlan
from lamina.accelerate.training.sparsity_monitor.reference import as_matrices, count
from lamina.errors import UnsupportedError, UsageError
from lamina.spec import Cost

pytestmark = pytest.mark.usefixtures("where_kernels_run")


@pytest.fixture(autouse=True)
def however_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small maps are read as large ones are."""
    monkeypatch.setattr(ops, "MAX_GROUPED_ELEMENTS", 0)


def by_hand(x: Tensor, channels: int = 1) -> list[int]:
    """Counts of a map from its definition, column by column."""
    array = np.moveaxis(x.detach().cpu().double().numpy(), channels, 0) if x.ndim > 1 else x.cpu().numpy()[None]
    matrix = array.reshape(array.shape[0], -1) != 0
    rows, columns = matrix.shape
    unions = []
    for width in observation.WIDTHS:
        groups = [matrix[:, first : first + width] for first in range(0, columns, width)]
        unions.append(sum(int(group[row].any()) for group in groups for row in range(rows)))
    per_column = [int(matrix[:, column].sum()) for column in range(columns)]
    living = sum(int(matrix[row].any()) for row in range(rows))
    return [int(matrix.sum()), living, max(per_column, default=0), *unions]


def uses_kernel(x: Tensor, channels: int = 1, times: int = 1) -> list[int]:
    found, plan = planned(x, channels)
    for _ in range(times):
        plan.launch()
    return [int(word) for word in found.words[0]]


def counted(x: Tensor, channels: int = 1, relu_to: Tensor | None = None) -> CountedMap:
    """A map and memory for its counts, which holds other numbers."""
    matrices = as_matrices(x, channels)
    words = torch.full((1, observation.WORDS), -1, dtype=torch.int64, device=x.device)
    return CountedMap(matrices, words, relu_to)


def planned(x: Tensor, channels: int = 1) -> tuple[CountedMap, CountPlan]:
    found = counted(x, channels)
    return found, CountPlan([found])


def sparse(*shape: int, density: float = 0.3, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).mul(torch.rand(shape) < density).to(dtype)


MAPS = {
    "image": lambda: sparse(2, 5, 7, 9),
    "more rows than a tile": lambda: sparse(2, 40, 6, 6),
    "one column": lambda: sparse(1, 33, 1, 1),
    "vectors": lambda: sparse(19, 37),
    "sequence": lambda: sparse(3, 4, 50),
    "volume": lambda: sparse(2, 3, 4, 5, 6),
    "all zero": lambda: torch.zeros(2, 3, 9, 9),
    "all set": lambda: torch.ones(2, 3, 9, 9),
    "dead channels": lambda: sparse(2, 6, 8, 8) * torch.tensor([1.0, 0, 0, 1, 0, 1])[:, None, None],
    "channels last": lambda: sparse(2, 5, 7, 9).to(memory_format=torch.channels_last),
    "a slice": lambda: sparse(4, 9, 14, 9)[::2, 1:8:2, ::2, 1:],
    "expanded": lambda: sparse(1, 4, 1, 30).expand(3, 4, 5, 30),
    "half": lambda: sparse(2, 5, 7, 9, dtype=torch.float16),
    "bfloat16": lambda: sparse(2, 5, 7, 9, dtype=torch.bfloat16),
    "double, tiny": lambda: sparse(2, 5, 7, 9, dtype=torch.float64) * 1e-300,
    "one axis": lambda: sparse(21),
}


@pytest.mark.parametrize("make", MAPS.values(), ids=MAPS)
def test_both_passes_count_as_by_hand(make: object) -> None:
    x = make()  # type: ignore[operator]
    expected = by_hand(x)
    assert count(as_matrices(x)).tolist() == expected
    assert uses_kernel(x) == expected


def test_nan_and_infinity_are_set_and_negative_zero_is_not() -> None:
    x = torch.zeros(1, 4, 2, 70)
    x[0, 0, 0, 3], x[0, 1, 1, 4], x[0, 2, 0, 5], x[0, 3, 0, 0] = float("nan"), float("inf"), -0.0, 1e-45
    for words in (count(as_matrices(x)).tolist(), uses_kernel(x)):
        assert words[:3] == [3, 3, 1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_relu_is_written_as_it_is_counted(dtype: torch.dtype) -> None:
    x = torch.randn(2, 5, 4, 9).to(dtype)
    x[0, 0, 0, 0] = float("nan")
    x[0, 0, 0, 1], x[0, 0, 0, 2] = float("inf"), float("-inf")
    matrices = as_matrices(x)
    for y in (torch.empty_like(matrices), torch.empty(5, 2, 36, dtype=dtype).transpose(0, 1), matrices):
        expected = matrices.relu()
        CountPlan([found := counted(matrices, relu_to=y)]).launch()
        assert torch.equal(y.nan_to_num(7.0), expected.nan_to_num(7.0))
        assert found.words[0].tolist() == by_hand(expected)


def test_channels_may_be_the_last_axis() -> None:
    x = sparse(2, 11, 5)
    assert count(as_matrices(x, -1)).tolist() == uses_kernel(x, -1) == by_hand(x, -1) != by_hand(x)


def test_a_pass_forgets_what_it_counted_before() -> None:
    x = torch.ones(2, 6, 8, 8)
    found, plan = planned(x)
    plan.launch()
    x[:, 2:] = 0
    plan.launch()
    assert found.words[0].tolist() == by_hand(x)


@pytest.mark.parametrize("few", [0, ops.MAX_GROUPED_ELEMENTS])
def test_maps_of_all_kinds_are_counted_together(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "MAX_GROUPED_ELEMENTS", few)
    maps = [make() for make in MAPS.values()]  # type: ignore[operator]
    maps.append(torch.relu(torch.randn(2, 300, 5, 30)))  # rows of several programs, columns of two
    found = [counted(x) for x in maps]
    written = torch.empty_like(found[0].matrices)
    found.append(counted(found[0].matrices, relu_to=written))
    plan = CountPlan(found)
    for _ in range(3):  # each begins with what the one before left behind
        for each in found:
            each.words.fill_(-1)
        plan.launch()
    for x, each in zip([*maps, found[0].matrices.relu()], found, strict=True):
        assert each.words[0].tolist() == by_hand(x)
    assert torch.equal(written, found[0].matrices.relu())


def test_each_turn_has_words_of_its_own() -> None:
    maps = [sparse(2, 5, 7, 9), sparse(19, 37)]
    words = torch.full((3, 4, observation.WORDS), -1, dtype=torch.int64)
    plan = CountPlan([CountedMap(as_matrices(x), words[:, row]) for row, x in enumerate(maps)])
    expected = words.clone()
    for turn in (0, 2, 1, 2):
        maps[0][:, turn] = 0
        plan.launch(turn)
        expected[turn, :2] = torch.tensor([by_hand(x) for x in maps])
        assert torch.equal(words, expected)


def test_costs_are_as_counted_by_hand() -> None:
    assert kernels.count_cost(128 * 10, 4, 128, 10) == Cost(1280, 5120, 0)
    assert kernels.count_cost(129 * 10, 2, 129, 10) == Cost(1290, 2580 + 40, 40)


@settings(max_examples=15)
@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 150), st.sampled_from([0.0, 0.05, 0.5, 1.0]))
def test_any_size(images: int, rows: int, pixels: int, density: float) -> None:
    x = sparse(images, rows, pixels, density=density)
    assert count(as_matrices(x)).tolist() == uses_kernel(x) == by_hand(x)


@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (2, 0, 4, 4), (2, 3, 0, 4), (0,)])
def test_of_nothing_nothing_is_set(shape: tuple[int, ...]) -> None:
    matrices = as_matrices(torch.empty(shape))
    found = Observation.from_words("a", 0, matrices.shape[1], 0, count(matrices).tolist())
    assert (found.density, found.clustering, found.union_density[16]) == (0.0, 0.0, 0.0)


def test_other_types_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="complex64"):
        uses_kernel(torch.zeros(1, 2, 3, dtype=torch.complex64))
    with pytest.raises(UsageError, match="axis 4"):
        as_matrices(torch.zeros(1, 2, 3), 4)
    with pytest.raises(UsageError, match="after the first"):
        as_matrices(torch.zeros(1, 2, 3), 0)
