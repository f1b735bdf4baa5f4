"""Dense layers with a fixed algorithm, such as ``dense:winograd``, instead of the library's own choice."""

from __future__ import annotations

from torch import nn

from lamina.build.convolution import ALGORITHMS, PhaseAlgorithms
from lamina.build.modules import AlgorithmConvolution, geometry
from lamina.errors import UnsupportedError, UsageError, nearest
from lamina.spec import Method, ResolvedLayer

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d, nn.ConvTranspose2d)


def require_algorithm(method: Method) -> None:
    """Reject a dense method whose algorithm does not exist.

    Raises:
        UsageError: with the closest match.
    """
    if method.algorithm is not None and method.algorithm not in ALGORITHMS:
        raise UsageError(f"{method}: unknown algorithm: {nearest(method.algorithm, ALGORITHMS)}")


def dense(method: Method, layer: ResolvedLayer, module: nn.Module) -> nn.Module:
    """``module`` with the method's algorithm and the same weights.

    Raises:
        UsageError: no such algorithm.
        UnsupportedError: the layer is not a convolution, or the algorithm does not support it.
    """
    if not isinstance(module, CONVOLUTIONS):
        require_algorithm(method)
        raise UnsupportedError(f"{method} is for convolutions, got {layer.layer.kind}")
    return by_algorithm(method, module)


def by_algorithm(method: Method, module: nn.Module) -> nn.Module:
    """As `dense`, of any module.

    Raises:
        UsageError, UnsupportedError: as `dense` does.
    """
    require_algorithm(method)
    name = method.algorithm or "direct"
    if not isinstance(module, CONVOLUTIONS):
        raise UnsupportedError(f"{method} is for convolutions, got {type(module).__name__}")
    try:
        window = geometry(module)
    except ValueError as error:
        raise UnsupportedError(f"{method}: {error}") from error
    refusal = ALGORITHMS[name].refusal(window, tuple(module.weight.shape))
    if refusal:
        raise UnsupportedError(f"{method}: {refusal}")
    return AlgorithmConvolution(module, PhaseAlgorithms(name, name, name))
