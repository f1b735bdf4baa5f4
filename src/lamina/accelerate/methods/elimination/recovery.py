"""Recovery: how the remaining weights compensate for pruned inputs, from the statistics of a layer's inputs.

With ``X`` the inputs of a layer, one column for each position that it is applied to, and ``S`` the remaining inputs:

* ``scale`` multiplies the weights by ``K / (K - D)``, as in the paper; it needs no data;
* ``bias`` adds the mean contribution of the pruned inputs to the bias;
* ``least_squares`` fits the weights ``W'`` and the bias ``b'`` that minimize ``|W X + b - W' X_S - b'|^2``.

The last two need the mean and the second moments of ``X``, summed over batches in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lamina.accelerate.common.operands import observable
from lamina.accelerate.convert import Unit, Where, convert, require_convertible, standard, units_of
from lamina.accelerate.methods.elimination.config import Eliminated
from lamina.accelerate.methods.elimination.convert import FITTED
from lamina.accelerate.methods.elimination.indexed import Indexed
from lamina.accelerate.methods.elimination.lstm import EliminatedLSTM
from lamina.accelerate.methods.elimination.windows import Sizes, parts, window_moments
from lamina.accelerate.select.observed import as_arguments, unchanged
from lamina.errors import UsageError
from lamina.record import Conversion

RIDGE = 1e-6
"""Fraction of the mean variance of an input that is added to each variance, which regularizes collinear inputs."""

UNREACHED = "no calibration batch reached it, or not as a dense tensor"


@dataclass(frozen=True)
class Moments:
    """Sums over ``count`` positions of the inputs ``(K,)`` and of their products ``(K, K)``, in float64."""

    count: int
    total: Tensor
    products: Tensor

    @classmethod
    def of(cls, columns: Tensor) -> Moments:
        """The moments of positions ``(count, K)``."""
        wide = columns.double()
        return cls(len(wide), wide.sum(0), wide.mT @ wide)

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.count + other.count, self.total + other.total, self.products + other.products)

    @cached_property
    def mean(self) -> Tensor:
        """Mean of each input: ``(K,)``."""
        return self.total / self.count

    @cached_property
    def second(self) -> Tensor:
        """Mean products of the inputs: ``(K, K)``."""
        return self.products / self.count

    @cached_property
    def covariance(self) -> Tensor:
        """Covariance of the inputs: ``(K, K)``."""
        return self.second - torch.outer(self.mean, self.mean)

    @cached_property
    def finite(self) -> bool:
        """Whether all products are finite."""
        return bool(self.products.isfinite().all())


def bias_correction(weight: Tensor, index: Tensor, moments: Moments) -> Tensor:
    """Mean contribution ``(out,)`` of the pruned inputs, for the dense ``weight (out, K)``."""
    pruned = torch.ones(weight.shape[1], dtype=torch.bool, device=weight.device)
    pruned[index] = False
    return weight[:, pruned].double() @ moments.mean[pruned]


def least_squares(
    weight: Tensor, index: Tensor, moments: Moments, *, bias: bool = True, ridge: float = RIDGE
) -> tuple[Tensor, Tensor]:
    """The weights ``(out, kept)`` that best reproduce a dense layer's outputs, and a correction of its bias ``(out,)``.

    Args:
        weight: the dense weights, ``(out, K)``.
        index: the remaining inputs.
        moments: of all inputs.
        bias: whether the layer has a bias; without, the weights compensate for the means too, and zeros are returned.
        ridge: fraction of the mean variance that is added to each.

    Raises:
        UsageError: the moments are not finite, or the ridge is negative.
    """
    if not (ridge >= 0 and moments.finite):
        raise UsageError(f"least squares: expected finite inputs and a ridge of at least 0, got a ridge of {ridge}")
    wide = weight.double()
    second = moments.covariance if bias else moments.second
    among = second[index][:, index]
    damping = ridge * among.diagonal().mean().clamp_min(torch.finfo(torch.float64).tiny)
    # Regularized towards the dense weights, so that inputs which are zero in all data keep theirs.
    kept = wide[:, index]
    missing = (wide @ second[:, index]) - kept @ among
    damped = among + damping * torch.eye(len(index)).to(among)
    step = _divided(missing, damped) if ridge else missing @ _inverse(among)
    fitted = kept + step
    shift = wide @ moments.mean - fitted @ moments.mean[index] if bias else wide.new_zeros(len(wide))
    return fitted, shift


def _divided(matrix: Tensor, damped: Tensor) -> Tensor:
    """``matrix damped^-1`` for a symmetric matrix that is positive definite, but for rounding errors.

    Inputs that hardly vary may leave a singular one, whose pseudo-inverse is taken; without an inverse, it is zero.
    """
    factor, failed = torch.linalg.cholesky_ex(damped)
    solution: Tensor
    if int(failed):
        solution, failed = torch.linalg.solve_ex(damped, matrix.mT)
    else:
        solution = torch.cholesky_solve(matrix.mT, factor)
    if not int(failed) and solution.isfinite().all():
        return solution.mT
    step = matrix @ _inverse(damped)
    return step if step.isfinite().all() else torch.zeros_like(matrix)


def _inverse(among: Tensor) -> Tensor:
    """The pseudo-inverse of a symmetric matrix."""
    inverse: Tensor = torch.linalg.pinv(among, hermitian=True)
    return inverse


def eliminate(
    model: nn.Module,
    config: Eliminated,
    batches: Iterable[Any] = (),
    where: Where | None = None,
    *,
    ridge: float = RIDGE,
) -> tuple[nn.Module, Conversion]:
    """`lamina.accelerate.convert` with calibration data. Moments are of the inputs in the dense model.

    Args:
        model: changed in place, in its own mode of training or evaluation.
        config: what to prune, and the recovery.
        batches: inputs of the model, each a tensor, a tuple or list of arguments, or a dict of keyword arguments; at
            least one for a fitted recovery. Layers that none reaches stay.
        where: selects the layers to convert; all by default.
        ridge: of `least_squares`.

    Raises:
        UsageError: ``config`` is no `Eliminated`, a fitted recovery has no layer or no data, the model does not take a
            batch, or an input is not finite. After any error, the model is as it was.
    """
    if not isinstance(config, Eliminated):
        raise UsageError(f"config: expected a configuration such as Eliminated(keep=0.5), got {config!r}")
    require_convertible(model)
    with _undone_by_errors(model):
        if config.recovery in FITTED:
            return _fitted(standard(model), config, batches, where, ridge)
        return convert(model, config, where)


def _fitted(
    model: nn.Module, config: Eliminated, batches: Iterable[Any], where: Where | None, ridge: float
) -> tuple[nn.Module, Conversion]:
    """As `eliminate`, of a model with stand-ins, for a recovery that needs calibration data."""
    units = units_of(model, config, where)
    layers = {unit.names[0]: unit.module for unit in units if unit.refusal is None}
    if not layers:
        raise _nothing(units)
    names = {layer: name for name, layer in layers.items()}  # one of each: a layer may have several
    seen = observe(model, {name: layer for layer, name in names.items()}, batches)
    unreached = {name for name, layer in layers.items() if names[layer] not in seen}

    def reached(name: str, layer: nn.Module) -> bool:
        return name not in unreached and (where is None or where(name, layer))

    model, record = convert(model, replace(config, recovery="none"), reached)
    replaced = {entry.layer for entry in record.replaced}
    for layer, name in names.items():
        if name in replaced:
            recover(model.get_submodule(name), layer, seen[name], config, ridge)
    written = record.method.replace("recovery=none", f"recovery={config.recovery}")
    entries = (
        replace(entry, method=written, refusal=UNREACHED if entry.layer in unreached else entry.refusal)
        for entry in record.layers
    )
    return model, replace(record, method=written, layers=tuple(entries))


def _nothing(units: Iterable[Unit]) -> UsageError:
    weighted = (unit for unit in units if any(True for _ in unit.module.parameters()))
    reasons = "; ".join(f"{unit.names[0] or 'model'}: {unit.refusal}" for unit in weighted) or "no layer has weights"
    return UsageError(f"expected a model with a layer whose inputs can be pruned, got none: {reasons}")


@contextmanager
def _undone_by_errors(model: nn.Module) -> Iterator[None]:
    """After an error, put back the children and attributes of a model's modules. Its parameters are never written."""
    before = [
        (module, dict(vars(module)), dict(module._modules))
        for module in model.modules()
        if not isinstance(module, torch.jit.ScriptModule)  # which has no layers that could be replaced
    ]
    try:
        yield
    except BaseException:  # also Ctrl-C, in minutes of calibration
        for module, attributes, children in before:
            vars(module).clear()
            vars(module).update(attributes)
            module._modules.clear()
            module._modules.update(children)
        raise


@torch.no_grad()
def recover(layer: nn.Module, dense: nn.Module, moments: Moments, config: Eliminated, ridge: float = RIDGE) -> None:
    """Fit the weights and bias of a layer with pruned inputs in place, by the moments of its dense layer's inputs."""
    if isinstance(layer, EliminatedLSTM):
        for suffix in ("l0", "l0_reverse") if layer.bidirectional else ("l0",):
            weight, bias = (f"{kind}_ih_{suffix}" for kind in ("weight", "bias"))
            _fit(layer, dense, layer.index, weight, bias, moments, config, ridge)
        return
    index = cast(Indexed, layer).index
    taps = dense.get_parameter("weight")[0, 0].numel()
    if dense.get_parameter("weight").dim() > 2 and getattr(layer, "by", "channel") == "channel":
        index = (index[:, None] * taps + torch.arange(taps, device=index.device)).flatten()
    _fit(layer, dense, index, "weight", "bias", moments, config, ridge)


def _fit(
    layer: nn.Module, dense: nn.Module, index: Tensor, weight: str, bias: str,
    moments: Moments, config: Eliminated, ridge: float,
) -> None:  # fmt: skip
    full = dense.get_parameter(weight).flatten(1)
    parameter = layer.get_parameter(weight)
    biased = getattr(layer, bias, None) is not None
    if config.recovery == "bias":
        if not biased:
            raise UsageError("recovery 'bias': expected layers with a bias, got one without; use 'least_squares'")
        shift = bias_correction(full, index, moments)
    else:
        fitted, shift = least_squares(full, index, moments, bias=biased, ridge=ridge)
        parameter.copy_(fitted.view(parameter.shape))
    if biased:
        offset = dense.get_parameter(bias)
        layer.get_parameter(bias).copy_(offset.double() + shift)


@torch.no_grad()
def observe(
    model: nn.Module, layers: dict[str, nn.Module], batches: Iterable[Any], most: int | None = None
) -> dict[str, Moments]:
    """The moments of the inputs of each layer. Random state and buffers such as running statistics are put back.

    Args:
        model: run once for each batch.
        layers: of the model, by names.
        batches: inputs of the model, each a tensor, a tuple or list of arguments, or a dict of keyword arguments.
        most: positions of a batch to sample, evenly spread; all by default.

    Raises:
        UsageError: there is no batch, the model does not take one, or its buffers are lazy.
    """
    if not isinstance(batches, Iterable):
        raise UsageError(f"batches: expected inputs of the model, each a tensor, tuple or dict, got {batches!r}")
    if any(map(is_lazy, model.buffers())):  # which could not be put back
        raise UsageError("model: expected initialized buffers, got lazy ones; call the model once first")
    seen: dict[str, Moments] = {}
    with (
        unchanged(model, tuple(model.parameters())),  # whose devices are those of the batches
        _watching(layers, seen, most),
        torch.compiler.set_stance("force_eager"),  # which runs every hook
    ):
        for number, batch in enumerate(batches, 1):
            args, kwargs = as_arguments(batch)
            try:
                model(*args, **kwargs)
            except (TypeError, RuntimeError, ValueError, IndexError) as error:
                reason = f"{type(error).__name__}: {error}"
                raise UsageError(f"batches: the model does not take calibration batch {number}: {reason}") from error
            for name in (name for name, moments in seen.items() if not bool(moments.total.isfinite().all())):
                raise UsageError(f"{name}: expected finite inputs, got NaN or infinity in calibration batch {number}")
    if not seen:
        raise UsageError("batches: expected at least one batch of calibration data that reaches a layer, got none")
    return seen


@contextmanager
def _watching(layers: dict[str, nn.Module], seen: dict[str, Moments], most: int | None) -> Iterator[None]:
    def watch(name: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
            x = arguments[0] if arguments else options["input"]
            if not isinstance(x, Tensor) or not observable(x):  # which a pruned layer does not take
                return
            x = x.as_subclass(Tensor)
            if most is None:
                new = moments_of(module, x)
            else:
                columns = positions(module, x)
                if len(columns) > most:
                    columns = columns[torch.linspace(0, len(columns) - 1, most, device=columns.device).long()]
                new = Moments.of(columns)
            seen[name] = seen[name] + new if name in seen else new

        return hook

    handles = [layer.register_forward_pre_hook(watch(name), with_kwargs=True) for name, layer in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def moments_of(module: nn.Module, x: Tensor) -> Moments:
    """The moments of all positions of a dense layer's input."""
    if not isinstance(module, nn.Conv1d | nn.Conv2d):
        return Moments.of(positions(module, x))
    x, kernel, stride, dilation = _image(module, x)
    if stride == (1, 1) and kernel[0] > 1:
        return Moments(*window_moments(x, kernel, dilation))
    inputs = x.shape[1] * kernel[0] * kernel[1]
    count, total = 0, x.new_zeros(inputs, dtype=torch.float64)
    products = x.new_zeros(inputs, inputs, dtype=torch.float64)
    for part in parts(x, x[0].numel() * kernel[0] * kernel[1]):
        wide = _windows(part, kernel, stride, dilation).double()
        count += len(wide)
        total += wide.sum(0)
        products.addmm_(wide.mT, wide)
    return Moments(count, total, products)


def positions(module: nn.Module, x: Tensor) -> Tensor:
    """The inputs of a dense layer, unfolded, one row for each position that it is applied to: ``(count, K)``."""
    if not isinstance(module, nn.Conv1d | nn.Conv2d):
        return x.reshape(-1, x.shape[-1])
    return _windows(*_image(module, x))


def _windows(x: Tensor, kernel: Sizes, stride: Sizes, dilation: Sizes) -> Tensor:
    if kernel == (1, 1):
        return x[:, :, :: stride[0], :: stride[1]].movedim(1, -1).flatten(0, 2)
    return F.unfold(x, kernel, dilation, 0, stride).movedim(1, 2).flatten(0, 1)


def _image(module: nn.Conv1d | nn.Conv2d, x: Tensor) -> tuple[Tensor, Sizes, Sizes, Sizes]:
    """The padded input as ``(N, C, H, W)``, and kernel, stride and dilation along both axes."""
    axes = len(module.kernel_size)
    x = x if x.dim() == axes + 2 else x[None]
    pads: Sequence[int] = module._reversed_padding_repeated_twice
    x = F.pad(x, list(pads), "constant" if module.padding_mode == "zeros" else module.padding_mode)
    kernel, stride, dilation = (tuple(sizes) for sizes in (module.kernel_size, module.stride, module.dilation))
    if axes == 1:
        x, kernel, stride, dilation = x[:, :, None], (1, *kernel), (1, *stride), (1, *dilation)
    return x, cast(Sizes, kernel), cast(Sizes, stride), cast(Sizes, dilation)
