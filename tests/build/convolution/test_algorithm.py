"""Laws of every algorithm that needs no particular device, against the definition in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.build.convolution import ALGORITHMS, Geometry, PhaseAlgorithms, phase
from lamina.errors import UnsupportedError, UsageError
from lamina.spec.cost import Phase

HOSTILE = {
    "odd sizes": ((2, 4, 9, 7), (6, 4, 3, 3), Geometry((1, 1), (1, 1), (1, 1))),
    "one pixel": ((1, 4, 1, 1), (6, 2, 3, 3), Geometry((1, 1), (1, 1), (1, 1), 2)),
    "kernel as large as the padded input": ((1, 3, 4, 3), (5, 3, 6, 3), Geometry((1, 1), (1, 0), (1, 1))),
    "kernel larger than the input": ((2, 2, 2, 3), (3, 2, 5, 5), Geometry((1, 1), (2, 2), (1, 1))),
    "pointwise, padded beyond the kernel": ((1, 3, 2, 2), (5, 3, 1, 1), Geometry((1, 1), (3, 3), (1, 1))),
    "stride 3, leftover columns": ((3, 4, 13, 12), (6, 2, 5, 3), Geometry((3, 3), (2, 0), (1, 1), 2)),
    "stride beyond the kernel": ((2, 3, 11, 11), (4, 3, 2, 2), Geometry((4, 3), (0, 1), (1, 1))),
    "dilation 2": ((2, 4, 12, 9), (6, 4, 3, 3), Geometry((1, 1), (2, 2), (2, 2))),
    "stride, dilation, padding differ by axis": (
        (2, 4, 13, 10),
        (6, 2, 5, 3),
        Geometry((3, 2), (2, 0), (2, 1), 2),
    ),
    "depthwise": ((2, 6, 8, 10), (6, 1, 3, 3), Geometry((1, 1), (1, 1), (1, 1), 6)),
    "no padding": ((2, 3, 10, 11), (4, 3, 3, 3), Geometry((1, 1), (0, 0), (1, 1))),
    "full padding on one axis": ((2, 3, 9, 13), (4, 3, 3, 3), Geometry((1, 1), (2, 0), (1, 1))),
    "sequence": ((3, 4, 17), (6, 2, 3), Geometry((1,), (1,), (1,), 2)),
    "short sequence": ((1, 2, 1), (3, 2, 3), Geometry((1,), (2,), (1,))),
    "strided, dilated sequence": ((2, 3, 17), (5, 3, 5), Geometry((2,), (4,), (3,))),
    "transposed": ((2, 4, 7, 6), (4, 3, 3, 3), Geometry((2, 2), (1, 1), (1, 1), 2, True, (1, 1))),
    "transposed sequence": ((2, 4, 5), (4, 2, 4), Geometry((3,), (2,), (2,), 1, True)),
}


def close(phases, exact):
    """Equal up to float64 rounding with the largest amplification among the algorithms."""
    for part, mine, truth in zip(exact._fields, phases, exact, strict=True):
        assert mine.shape == truth.shape, part
        scale = truth.abs().max().clamp(min=1)
        assert (mine - truth).abs().max() <= 2e-12 * scale, part


@pytest.mark.parametrize("case", HOSTILE.values(), ids=HOSTILE.keys())
def test_phases_follow_the_definition(anywhere, case, definition, by, sample):
    _, w_shape, g = case
    if reason := ALGORITHMS[anywhere].refusal(g, w_shape):
        with pytest.raises(UnsupportedError) as refused:
            PhaseAlgorithms(forward=anywhere).check(g, w_shape)
        assert reason in str(refused.value)
        return
    x, w, gy = sample(*case)
    close(by(anywhere, x, w, g, gy), definition(x, w, g, gy))


def test_each_algorithm_meets_enough_cases():
    done = {name: sum(ALGORITHMS[name].refusal(g, w) is None for _, w, g in HOSTILE.values()) for name in ALGORITHMS}
    assert done["direct"] == len(HOSTILE)
    assert done["gemm"] == done["fft"] == len(HOSTILE) - 2
    assert min(done.values()) >= 6


@st.composite
def convolutions(draw):
    """A legal convolution of any kind; half of them within reach of the Winograd algorithms."""
    rank, small = draw(st.integers(1, 2)), draw(st.booleans())
    ints = lambda low, high: tuple(draw(st.integers(low, high)) for _ in range(rank))  # noqa: E731
    kernel = (3,) * rank if small else ints(1, 5)
    dilation, stride = ((1,) * rank, (1,) * rank) if small else (ints(1, 3), ints(1, 3))
    padding = ints(0, 2) if small else ints(0, 4)
    least = (max(1, d * (k - 1) + 1 - 2 * p) for d, k, p in zip(dilation, kernel, padding, strict=True))
    size = tuple(low + draw(st.integers(0, 9)) for low in least)
    groups, batch = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    c, k = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    geometry = Geometry(stride, padding, dilation, groups)
    return (batch, c * groups, *size), (k * groups, c, *kernel), geometry


@settings(max_examples=40)
@given(case=convolutions(), seed=st.integers(0, 2**16))
def test_any_legal_shape(anywhere, case, seed, definition, by, sample):
    _, w_shape, g = case
    if ALGORITHMS[anywhere].refusal(g, w_shape) is None:
        x, w, gy = sample(*case, seed=seed)
        close(by(anywhere, x, w, g, gy), definition(x, w, g, gy))


def strided(t):
    """The same values, every second element of a larger tensor."""
    return t.repeat_interleave(2, dim=-1)[..., ::2]


def channels_last(t):
    return t.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("layout", [strided, channels_last, lambda t: t.transpose(2, 3).contiguous().transpose(2, 3)])
def test_values_do_not_depend_on_the_layout(anywhere, layout, definition, by, sample):
    grouped = ((2, 4, 9, 7), (6, 2, 3, 3), Geometry((1, 1), (1, 1), (1, 1), 2))
    plain = ((2, 4, 9, 7), (6, 4, 3, 3), Geometry((1, 1), (1, 1), (1, 1)))
    case = plain if ALGORITHMS[anywhere].refusal(grouped[2], grouped[1]) else grouped
    (x, w, gy), g = sample(*case), case[2]
    spread = [layout(t) for t in (x, w, gy)]
    assert not any(t.is_contiguous() for t in spread)
    close(by(anywhere, spread[0], spread[1], g, spread[2]), definition(x, w, g, gy))


def test_a_gradient_that_repeats_one_element(anywhere, definition, by, sample):
    g = Geometry((1,), (1,), (1,))
    x, w, gy = sample((2, 3, 9), (4, 3, 3), g)
    ones = torch.ones((), dtype=torch.float64).expand(gy.shape)
    close(by(anywhere, x, w, g, ones), definition(x, w, g, ones.contiguous()))


def test_inputs_are_not_modified(anywhere, by, sample):
    g = Geometry((1, 1), (1, 1), (1, 1))
    tensors = sample((2, 4, 9, 7), (6, 4, 3, 3), g)
    before = [t.clone() for t in tensors]
    by(anywhere, tensors[0], tensors[1], g, tensors[2])
    assert all(torch.equal(t, was) for t, was in zip(tensors, before, strict=True))


def test_the_names():
    assert {"direct", "gemm", "fft", "space_to_depth", "winograd", "winograd2", "winograd4"} <= set(ALGORITHMS)
    assert {f"cudnn:{note}" for note in ("fft", "winograd", "tensor_core", "implicit_gemm")} <= set(ALGORITHMS)


def test_unknown_names_come_with_the_closest_match():
    with pytest.raises(UsageError, match=r"'wingrad'.*did you mean 'winograd'"):
        phase("wingrad", "forward")
    with pytest.raises(UsageError, match="did you mean 'backward_data'"):
        phase("fft", "backward_dat")
    with pytest.raises(UsageError, match="did you mean 'gemm'"):
        PhaseAlgorithms(backward_weight="gem").check(Geometry((1,), (0,), (1,)), (1, 1, 1))


def test_phase_takes_the_phases_of_the_spec():
    for name in Phase:
        assert phase("gemm", name) is phase("gemm", str(name)) is getattr(ALGORITHMS["gemm"], name.value)


@pytest.mark.parametrize("part", ["forward", "backward_data", "backward_weight"])
def test_an_unsupported_shape_names_phase_algorithm_and_reason(part):
    with pytest.raises(UnsupportedError, match=f"{part} by 'winograd4': needs a kernel of 3 .* got 5x5"):
        PhaseAlgorithms(**{part: "winograd4"}).check(Geometry((1, 1), (0, 0), (1, 1)), (8, 8, 5, 5))


def test_the_definition_itself(definition):
    """One case by hand, so that the oracle is not trusted blindly."""
    x, w = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]]), torch.tensor([[[1.0, 10.0]]])
    y, gx, gw = definition(x, w, Geometry((2,), (1,), (1,)), torch.tensor([[[1.0, 2.0, 3.0]]]))
    assert y.flatten().tolist() == [10, 32, 4]
    assert gx.flatten().tolist() == [10, 2, 20, 3]
    assert gw.flatten().tolist() == [0 + 4 + 12, 1 + 6 + 0]
    assert math.prod(y.shape) == 3


def test_workload_files_accept_exactly_these_algorithms() -> None:
    from typing import get_args

    from lamina.spec.layers.convolution import Algorithm

    assert set(get_args(Algorithm)) == set(ALGORITHMS)
