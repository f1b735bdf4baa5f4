"""The configuration of a block-circulant conversion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from lamina.accelerate.common.choices import check_choice
from lamina.errors import UsageError

Impl = Literal[
    "auto", "reference", "kernel", "materialized", "fused_rows", "dense",
    "as_written", "sum_first", "no_reorder", "reuse", "o1", "o2", "o2_argued", "fusion",
]  # fmt: skip
"""The implementation of a layer.

- ``kernel``: multiplies in the frequency domain, in kernels of this package.
- ``materialized``: multiplies by circulant tiles that a kernel builds from the weights (linear layers, LSTMs), or
  convolves with the materialized matrix in split fp16.
- ``fused_rows``: multiplies in the frequency domain and keeps spectra of rows on the chip: linear layers and pointwise
  convolutions of many rows, in bf16, fp16 and TF32, on GPUs of compute capability 9.x.
- ``dense``: materializes the dense matrix and calls the vendor library.
- ``reference``: plain PyTorch in the frequency domain.
- ``auto``: ``kernel`` on a GPU, ``reference`` elsewhere; see `functional.resolve_impl`.

The others are the versions of Dong's dissertation (2020, section 7.3), for comparison, in float32. Each adds one change
to the version before it. On other devices than a GPU their steps run in PyTorch operations.

- ``as_written``: multiplies spectra, transforms every product back, and sums; gradients reorder the blocks.
- ``sum_first``: sums spectra, so that only results are transformed back.
- ``no_reorder``: gradients multiply by the conjugate spectrum.
- ``reuse``: gradients use the spectra of the forward pass.
- ``o1``: full warps along the summed axis, which is copied innermost (algorithm 6).
- ``o2``: threads that share a block's spectrum form a thread block (algorithm 7). ``o2_argued`` has the weight's layout
  that the text's argument implies, in place of the printed one.
- ``fusion``: multiplies and sums in one kernel (algorithm 9).
"""

IMPLS: tuple[Impl, ...] = get_args(Impl)
PUBLISHED: tuple[Impl, ...] = IMPLS[IMPLS.index("as_written") :]
"""The versions of the dissertation."""

MIN_BLOCK_SIZE, MAX_BLOCK_SIZE = 2, 256

_RENAMED_IMPLS: dict[str, Impl] = {"expand": "materialized"}
"""Values that earlier versions wrote to recipes, results and pickled layers."""


@dataclass(frozen=True)
class Circulant:
    """Replace weight matrices by block-circulant matrices.

    Args:
        block_size: ``k``, from 2 to 256: ``k`` weights define a block of ``k * k``.
        init: ``project`` takes the nearest block-circulant matrix, ``fresh`` initializes new weights.
        rescale: scale a projection to the Frobenius norm of the dense weights. The projection of an unstructured
            matrix keeps only ``1/k`` of its squared norm.
        signs: random sign flips of the inputs of linear layers and convolutions, fixed at initialization (Cheng et
            al., "An exploration of parameter redundancy in deep networks with circulant projections", ICCV 2015,
            section 3.1). Inputs after ReLU have a nonzero mean, which contributes equally to all outputs of a circulant
            block; sign flips remove that correlation.
        impl: the implementation of the new layers; see `Impl`. The former name ``expand`` is read as ``materialized``.

    Raises:
        UsageError: an argument is invalid; the message says what was expected.
    """

    block_size: int = 64
    init: Literal["project", "fresh"] = "project"
    rescale: bool = False
    signs: bool = False
    impl: Impl = "auto"

    def __post_init__(self) -> None:
        check_block_size(self.block_size)
        object.__setattr__(self, "impl", check_impl(self.impl))
        check_choice("init", self.init, ("project", "fresh"))
        for name in ("rescale", "signs"):
            if not isinstance(value := getattr(self, name), bool):
                raise UsageError(f"{name}: expected true or false, got {value!r}")


class Selectable:
    """A layer with an ``impl``, which was requested, or selected by measurement."""

    fallback = False
    """Whether ``auto`` computes what ``impl`` refuses, since ``impl`` was selected for other inputs."""


def check_block_size(block_size: int) -> None:
    """Check a block size.

    Raises:
        UsageError: it is not an integer from 2 to 256.
    """
    integer = isinstance(block_size, int) and not isinstance(block_size, bool)
    if not (integer and MIN_BLOCK_SIZE <= block_size <= MAX_BLOCK_SIZE):
        raise UsageError(
            f"block_size: expected an integer from {MIN_BLOCK_SIZE} to {MAX_BLOCK_SIZE}, got {block_size!r}; "
            "16, 32 and 64 are usual"
        )


def check_impl(impl: str) -> Impl:
    """The implementation of a name; a former name gives the current one.

    Raises:
        UsageError: the name is unknown; the message names the nearest known one.
    """
    current: Any = _RENAMED_IMPLS.get(impl, impl) if isinstance(impl, str) else impl
    check_choice("impl", current, IMPLS)
    checked: Impl = current
    return checked
