"""Methods of other packages that a user would pick instead, applied to a whole network.

Quantization is torchao's (https://github.com/pytorch/ao), an optional dependency: ``pip install lamina[rivals]``.
Folding BatchNorm needs torch alone, and its layers may have methods of their own afterwards.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import nn

from lamina.accelerate.common.batchnorm import fold_batchnorm
from lamina.errors import MissingError, UnsupportedError, UsageError, nearest
from lamina.spec.whole_method import FOLD, parts_of

Apply = Callable[[nn.Module], nn.Module]
Fits = Callable[[nn.Module, str], bool]


@dataclass(frozen=True)
class Rival:
    """A method of another package.

    Attributes:
        name: as plans write it: ``torchao:int8-weight-only``.
        goal: of steps that it supports.
        capability: the least CUDA compute capability; ``None`` if it runs on CPUs too.
        apply: changes a network in place.
        package: that it needs besides torch.
    """

    name: str
    goal: str
    capability: tuple[int, int] | None
    apply: Apply
    package: str = "torchao"

    def refusal(self, device: torch.device) -> str | None:
        """Why it cannot run on a device, or nothing."""
        if self.missing:
            return self.missing
        if self.capability is None:
            return None
        if device.type != "cuda":
            return f"needs a CUDA device, this is {device.type}"
        found = torch.cuda.get_device_capability(device)
        if found < self.capability:
            return f"needs compute capability {'.'.join(map(str, self.capability))}, the device has {found}"
        return None

    @property
    def missing(self) -> str:
        """What to install, or nothing."""
        missing = self.package and find_spec(self.package) is None
        return f"{self.package} is not installed: pip install {self.package}" if missing else ""


def _folded(model: nn.Module) -> nn.Module:
    fold_batchnorm(model)
    return model


def _quantized(config: str, fits: Fits | None = None) -> Apply:
    def apply(model: nn.Module) -> nn.Module:
        from torch._inductor import config as compiler
        from torchao import quantization  # type: ignore[import-not-found,import-untyped,unused-ignore]

        compiler.force_fuse_int_mm_with_mul = True  # read for products of int8 only, which are slow without
        # The configuration would change options of the compiler for the whole process, and so for every later row.
        quantization.quantize_(model, getattr(quantization, config)(set_inductor_config=False), fits)
        return model

    return apply


def _sparse_24(model: nn.Module) -> nn.Module:
    """2:4 sparsity: of each four neighbouring weights of a linear layer the two smallest become zero."""
    from torchao.sparsity import semi_sparse_weight, sparsify_  # type: ignore[import-not-found,import-untyped,unused-ignore]

    fits = _whole_tiles(64)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear) and fits(module, ""):
                groups = module.weight.view(module.out_features, -1, 4)
                smallest = groups.abs().argsort(-1)[..., :2]
                groups.scatter_(-1, smallest, 0)
    sparsify_(model, semi_sparse_weight(), fits)
    return model


def _whole_tiles(size: int) -> Fits:
    """Linear layers whose sizes are multiples of a tile; kernels refuse others."""

    def fits(module: nn.Module, name: str) -> bool:
        return isinstance(module, nn.Linear) and module.in_features % size == 0 and module.out_features % size == 0

    return fits


def _float8_training(model: nn.Module) -> nn.Module:
    from torchao.float8 import convert_to_float8_training  # type: ignore[import-not-found,import-untyped,unused-ignore]

    converted: nn.Module = convert_to_float8_training(model, module_filter_fn=_whole_tiles(16))
    return converted


RIVALS = {
    one.name: one
    for one in (
        Rival(FOLD, "infer", None, _folded, package=""),
        Rival("torchao:float8-dynamic", "infer", (8, 9), _quantized("Float8DynamicActivationFloat8WeightConfig")),
        Rival(
            "torchao:int8-dynamic", "infer", None, _quantized("Int8DynamicActivationInt8WeightConfig", _whole_tiles(8))
        ),
        Rival("torchao:int8-weight-only", "infer", None, _quantized("Int8WeightOnlyConfig")),
        Rival("torchao:float8-weight-only", "infer", (8, 9), _quantized("Float8WeightOnlyConfig")),
        Rival("torchao:sparse-2:4", "infer", (8, 0), _sparse_24),
        Rival("torchao:float8-training", "train", (8, 9), _float8_training),
    )
}
"""By name, those that most often pay first."""


def capturable(name: str) -> bool:
    """Whether `lamina.graphed` takes a network by a method, or by several with ``+`` between them.

    It checks a capture by differences of the weights, which torchao's quantized and sparse weights do not have.

    >>> capturable("torch:fold-batchnorm"), capturable("torch:fold-batchnorm+torchao:int8-dynamic")
    (True, False)
    """
    rivals = [RIVALS[part] for part in parts_of(name) if part in RIVALS]
    return all(one.goal == "train" or not one.package for one in rivals)


def apply_rival(name: str, model: nn.Module) -> nn.Module:
    """A network with a method of another package on every layer that it supports; changed in place.

    Several methods, with ``+`` between them, are applied one after the other.

    Raises:
        UsageError: the name is unknown.
        MissingError: its package is not installed.
        UnsupportedError: the package refused the network, or supports no layer of it.
    """
    for part in parts_of(name):
        model = _apply(part, model)
    return model


def _apply(name: str, model: nn.Module) -> nn.Module:
    if name not in RIVALS:
        raise UsageError(f"method {name!r} is unknown: {nearest(name, RIVALS)}")
    if missing := RIVALS[name].missing:
        raise MissingError(f"{name}: {missing}")
    before = _types(model)
    try:
        with _quiet():
            made = RIVALS[name].apply(model)
        if _types(made) == before and RIVALS[name].package:  # else the dense network would be timed by this name
            raise UnsupportedError("it supports no layer of the network")
        return made
    except UnsupportedError as error:
        raise UnsupportedError(f"{name}: {error}") from error
    except Exception as error:  # another package's: whatever it raises, the network does not run by it
        raise UnsupportedError(f"{name}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}") from error


def _types(model: nn.Module) -> list[tuple[type, type]]:
    """Of modules and their weights: quantized and sparse weights are subclasses of `torch.Tensor`."""
    return [(type(one), type(getattr(one, "weight", None))) for one in model.modules()]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without another package's log and warnings on its import, which may be turned into errors."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
