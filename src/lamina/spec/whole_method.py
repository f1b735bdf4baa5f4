"""Methods of a whole network, in their written form: ``torch:fold-batchnorm+torchao:int8-dynamic``."""

from __future__ import annotations

DENSE = "dense"
FOLD = "torch:fold-batchnorm"
"""Each BatchNorm is folded into the convolution or linear layer before it."""
COMPRESSED = "compressed-activations"
"""Training steps keep sparse activations compressed until the backward pass, with the same gradients."""

MIXING = (FOLD, COMPRESSED)
"""Those that leave layers to methods of layers."""


def parts_of(method: str) -> tuple[str, ...]:
    """The methods that a written one combines, in the order in which they apply; none of ``dense``.

    >>> parts_of("torch:fold-batchnorm+torchao:int8-dynamic")
    ('torch:fold-batchnorm', 'torchao:int8-dynamic')
    """
    return () if method == DENSE else tuple(method.split("+"))


def combined(*methods: str) -> str:
    """The written form of several methods.

    >>> combined("dense", "torch:fold-batchnorm", "torchao:int8-dynamic")
    'torch:fold-batchnorm+torchao:int8-dynamic'
    """
    return "+".join(part for method in methods for part in parts_of(method)) or DENSE


def without(method: str, *parts: str) -> str:
    """A method without some of its parts.

    >>> without("torch:fold-batchnorm", "torch:fold-batchnorm")
    'dense'
    """
    return combined(*(one for one in parts_of(method) if one not in parts))


def folds(method: str) -> bool:
    """Whether a method folds BatchNorm, before anything else is done to the network."""
    return FOLD in parts_of(method)


def compresses(method: str) -> bool:
    """Whether a method keeps activations compressed."""
    return COMPRESSED in parts_of(method)


def mixes(method: str) -> bool:
    """Whether layers can have methods of their own at the same time."""
    return all(part in MIXING for part in parts_of(method))
