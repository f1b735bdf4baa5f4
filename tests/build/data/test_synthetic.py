import pytest
import torch

from lamina.build.data import load, synthetic
from lamina.errors import UsageError


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 5, 9), (20, 6)])
def test_values_are_normally_distributed(shape: tuple[int, ...]) -> None:
    data = synthetic(shape, classes=7, items=400)
    assert data.x.shape == (400, *shape)
    assert data.x.dtype == torch.float32
    assert abs(float(data.x.mean())) < 0.02
    assert float(data.x.std()) == pytest.approx(1, abs=0.02)
    assert set(data.y.tolist()) == set(range(7))
    assert len(data.mean) == len(data.std) == (shape[0] if len(shape) == 3 else shape[1])


def test_each_token_s_label_is_the_next_token() -> None:
    data = synthetic((9,), classes=50, items=30)
    assert (data.x.dtype, data.x.shape, data.y.shape) == (torch.int64, (30, 9), (30, 9))
    assert torch.equal(data.x[:, 1:], data.y[:, :-1])
    assert 0 <= int(data.x.min()) < int(data.x.max()) < 50


def test_the_seed_and_the_split_decide() -> None:
    assert torch.equal(synthetic(seed=3).x, synthetic(seed=3).x)
    assert not torch.equal(synthetic(seed=3).x, synthetic(seed=4).x)
    assert not torch.equal(load("synthetic", "train").x, load("synthetic", "test").x)


@pytest.mark.parametrize(
    "wrong", [{"shape": (1, 0, 3, 4)}, {"shape": (3, 4), "indices": True}, {"classes": 0}, {"items": 0}]
)
def test_all_shapes_are_supported(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="expected"):
        synthetic(**wrong)
