"""The oracle: convolution as its definition says, tap by tap in float64, with gradients by autograd."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from lamina.build.convolution import ALGORITHMS, Geometry, phase
from lamina.testing import assert_as_accurate


class Phases(NamedTuple):
    """What the three phases give: output, gradient of the input, gradient of the weight."""

    y: Tensor
    gx: Tensor
    gw: Tensor


def _plain(x: Tensor, w: Tensor, g: Geometry) -> Tensor:
    """Sum over the kernel's taps: a strided slice of the padded input times a matrix of weights."""
    size = g.output_size(x.shape[2:], w.shape[2:])
    image = torch.nn.functional.pad(x, [p for axis in reversed(g.padding) for p in (axis, axis)])
    image = image.unflatten(1, (g.groups, -1))
    weight = w.unflatten(0, (g.groups, -1))
    y = torch.zeros(())
    for tap in torch.cartesian_prod(*(torch.arange(k) for k in w.shape[2:])).reshape(-1, g.rank).tolist():
        window = tuple(
            slice(d * t, d * t + s * (n - 1) + 1, s) for t, d, s, n in zip(tap, g.dilation, g.stride, size, strict=True)
        )
        y = y + torch.einsum("ngc...,gkc->ngk...", image[(..., *window)], weight[(..., *tap)])
    return y.flatten(1, 2)


def _definition(x: Tensor, w: Tensor, g: Geometry) -> Tensor:
    if not g.transposed:
        return _plain(x, w, g)
    size = g.output_size(x.shape[2:], w.shape[2:])
    plain = Geometry(g.stride, g.padding, g.dilation, g.groups)
    zeros = torch.zeros(x.shape[0], w.shape[1] * g.groups, *size, dtype=x.dtype, requires_grad=True)
    return torch.autograd.grad(_plain(zeros, w, plain), zeros, x, create_graph=True)[0]


@pytest.fixture(scope="session")
def definition() -> Callable[[Tensor, Tensor, Geometry, Tensor], Phases]:
    """``definition(x, w, geometry, gy)``: the three phases in float64."""

    def run(x: Tensor, w: Tensor, g: Geometry, gy: Tensor) -> Phases:
        x, w = x.detach().double().requires_grad_(), w.detach().double().requires_grad_()
        y = _definition(x, w, g)
        return Phases(y.detach(), *torch.autograd.grad(y, [x, w], gy.double()))

    return run


@pytest.fixture(scope="session")
def by() -> Callable[[str, Tensor, Tensor, Geometry, Tensor], Phases]:
    """``by(name, x, w, geometry, gy)``: the three phases, each function called directly."""

    def run(name: str, x: Tensor, w: Tensor, g: Geometry, gy: Tensor) -> Phases:
        return Phases(
            phase(name, "forward")(x, w, g),
            phase(name, "backward_data")(gy, w, g, x.shape),
            phase(name, "backward_weight")(gy, x, g, w.shape),
        )

    return run


@pytest.fixture(scope="session")
def sample() -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """``sample(x_shape, w_shape, geometry, dtype)``: normal ``x, w, gy`` from a fixed seed."""

    def draw(x_shape: tuple, w_shape: tuple, g: Geometry, dtype: torch.dtype = torch.float64, seed: int = 0):
        generator = torch.Generator().manual_seed(seed)
        outputs = w_shape[1] * g.groups if g.transposed else w_shape[0]
        shapes = x_shape, w_shape, (x_shape[0], outputs, *g.output_size(x_shape[2:], w_shape[2:]))
        return tuple(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)

    return draw


@pytest.fixture(scope="session")
def within(definition, by, sample) -> Callable[..., None]:
    """The tolerance rule against the vendor library, phase by phase, on fresh random inputs."""

    def check(name: str, case: tuple, dtype: torch.dtype, worst: float = 2, mean: float = 2) -> None:
        x_shape, w_shape, g = case
        for seed in range(3):
            x, w, gy = sample(x_shape, w_shape, g, dtype, seed)
            exact, plain, ours = definition(x, w, g, gy), by("direct", x, w, g, gy), by(name, x, w, g, gy)
            for part, truth, theirs, mine in zip(Phases._fields, exact, plain, ours, strict=True):
                assert_as_accurate(mine, theirs, truth, worst=worst, mean=mean, what=f"{name} {part} {case}")

    return check


ANYWHERE = [name for name in ALGORITHMS if not name.startswith("cudnn:")]
"""The algorithms that need no particular device."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "anywhere" in metafunc.fixturenames:
        metafunc.parametrize("anywhere", ANYWHERE)
