from collections import Counter

import pytest
import torch

from lamina.build.convolution import ALGORITHMS, Algorithm, Geometry, PhaseAlgorithms, convolve
from lamina.errors import UnsupportedError, UsageError

PLANE = Geometry((1, 1), (1, 1), (1, 1), 2)
SHAPES = ((2, 4, 9, 7), (6, 2, 3, 3), PLANE)


@pytest.fixture
def calls(monkeypatch) -> Counter:
    """Counts calls of the phases of an algorithm named ``counted``, which is ``direct`` otherwise."""
    counter: Counter = Counter()

    def counted(name):
        def function(*arguments):
            counter[name] += 1
            return getattr(ALGORITHMS["direct"], name)(*arguments)

        return function

    parts = ("forward", "backward_data", "backward_weight")
    algorithm = Algorithm(*(counted(name) for name in parts), ALGORITHMS["direct"].refusal)
    monkeypatch.setitem(ALGORITHMS, "counted", algorithm)
    return counter


@pytest.fixture
def problem(sample):
    x, w, gy = sample(*SHAPES)
    return x.requires_grad_(), w.requires_grad_(), gy


COUNTED = PhaseAlgorithms("counted", "counted", "counted")


def test_only_the_required_gradient_is_computed(calls, problem, definition):
    x, w, gy = problem
    exact = definition(x, w, PLANE, gy)
    y = convolve(x, w, PLANE, COUNTED)
    assert calls == {"forward": 1}
    (gx,) = torch.autograd.grad(y, [x], gy, retain_graph=True)
    assert calls == {"forward": 1, "backward_data": 1}
    (gw,) = torch.autograd.grad(y, [w], gy, retain_graph=True)
    assert calls == {"forward": 1, "backward_data": 1, "backward_weight": 1}
    for mine, truth in ((y, exact.y), (gx, exact.gx), (gw, exact.gw)):
        torch.testing.assert_close(mine.detach(), truth, rtol=0, atol=1e-12)
    y.backward(gy)
    assert calls == {"forward": 1, "backward_data": 2, "backward_weight": 2}
    assert torch.equal(x.grad, gx)
    assert torch.equal(w.grad, gw)


def test_a_frozen_weight_computes_no_weight_gradient(calls, problem):
    x, w, gy = problem
    convolve(x, w.detach(), PLANE, COUNTED).backward(gy)
    assert calls == {"forward": 1, "backward_data": 1}


def test_a_first_layer_computes_no_data_gradient(calls, problem):
    x, w, gy = problem
    convolve(x.detach(), w, PLANE, COUNTED).backward(gy)
    assert calls == {"forward": 1, "backward_weight": 1}


def test_without_gradients(calls, problem):
    x, w, _ = problem
    with torch.no_grad():
        assert not convolve(x, w, PLANE, COUNTED).requires_grad
    with torch.inference_mode():
        convolve(x, w, PLANE, COUNTED)
    assert calls == {"forward": 2}


@pytest.mark.parametrize(
    "algorithms",
    [
        PhaseAlgorithms("fft", "gemm", "winograd2"),
        PhaseAlgorithms("winograd4", "fft", "gemm"),
        PhaseAlgorithms(backward_weight="winograd"),
        PhaseAlgorithms(),
    ],
    ids=str,
)
def test_algorithms_of_phases_may_differ(algorithms, problem, definition):
    x, w, gy = problem
    exact = definition(x, w, PLANE, gy)
    y = convolve(x, w, PLANE, algorithms)
    for mine, truth in zip((y.detach(), *torch.autograd.grad(y, [x, w], gy)), exact, strict=True):
        torch.testing.assert_close(mine, truth, rtol=0, atol=1e-11)


def test_each_phase_goes_to_its_own_algorithm(calls, problem):
    x, w, gy = problem
    convolve(x, w, PLANE, PhaseAlgorithms("gemm", "counted", "fft")).backward(gy)
    assert calls == {"backward_data": 1}


@pytest.mark.parametrize("shape", [((1, 2, 5, 4), (2, 2, 3, 3), (1, 1)), ((2, 2, 6), (2, 1, 3), (1,))], ids=str)
def test_gradcheck(anywhere, shape, sample):
    x_shape, w_shape, ones = shape
    g = Geometry(ones, ones, ones, x_shape[1] // w_shape[1])
    if ALGORITHMS[anywhere].refusal(g, w_shape):
        g, w_shape = Geometry(ones, ones, ones), (w_shape[0], x_shape[1], *w_shape[2:])
    x, w, _ = sample(x_shape, w_shape, g)
    chosen = PhaseAlgorithms(anywhere, anywhere, anywhere)
    assert torch.autograd.gradcheck(lambda x, w: convolve(x, w, g, chosen), (x.requires_grad_(), w.requires_grad_()))


def test_the_result_may_be_changed_in_place(anywhere, sample):
    plane = Geometry((1, 1), (1, 1), (1, 1))
    x, w, gy = sample((2, 4, 9, 7), (6, 4, 3, 3), plane)
    x, w = x.requires_grad_(), w.requires_grad_()
    y = convolve(x, w, plane, PhaseAlgorithms(forward=anywhere))
    expected = torch.autograd.grad(y.relu(), [x, w], gy, retain_graph=True)
    changed = torch.autograd.grad(y.relu_(), [x, w], gy)
    assert all(torch.equal(a, b) for a, b in zip(expected, changed, strict=True))


def test_a_modified_saved_input_is_detected(problem):
    x, w, gy = problem
    hidden = x * 1
    y = convolve(hidden, w, PLANE, PhaseAlgorithms())
    hidden.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y, [w], gy)


def test_shapes_are_checked_before_any_computation(calls, problem):
    x, w, _ = problem
    strided = Geometry((2, 2), (1, 1), (1, 1), 2)
    with pytest.raises(UnsupportedError, match="backward_weight by 'winograd': needs stride 1"):
        convolve(x, w, strided, PhaseAlgorithms("counted", "counted", "winograd"))
    with pytest.raises(UsageError, match="did you mean 'counted'"):
        convolve(x, w, PLANE, PhaseAlgorithms("counted", "conted", "counted"))
    assert not calls


@pytest.mark.parametrize(
    ("x", "w", "message"),
    [
        (torch.zeros(1, 4, 5), torch.zeros(2, 2, 3, 3), "expected 4 dimensions"),
        (torch.zeros(1, 3, 5, 5), torch.zeros(2, 2, 3, 3), "expected 4 input channels in 2 groups"),
        (torch.zeros(1, 4, 5, 5), torch.zeros(3, 2, 3, 3), "expected 4 input channels in 2 groups"),
        (torch.zeros(1, 4, 5, 5), torch.zeros(2, 2, 3, 3).double(), "one type on one device"),
        (torch.zeros(1, 4, 5, 5), torch.zeros(2, 2, 9, 9), "at least as large as the kernel"),
    ],
)
def test_incompatible_shapes(x, w, message):
    with pytest.raises(UsageError, match=message):
        convolve(x, w, PLANE)
