"""Recipes of changed layers: what is needed to build them before their weights are loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

from pydantic import PositiveInt
from torch import Tensor, fx, nn
from torch.jit import ScriptModule

from lamina import accelerate, build
from lamina.accelerate.convert import put, standard_twin
from lamina.accelerate.methods.circulant.activation_fusion import FusedActivation
from lamina.accelerate.methods.elimination.convert import ELIMINATED
from lamina.accelerate.methods.elimination.indexed import Indexed
from lamina.accelerate.methods.weight_only import WeightOnly
from lamina.accelerate.methods.weight_only.config import Format
from lamina.accelerate.methods.weight_only.nn import WeightOnlyConv, WeightOnlyLinear
from lamina.accelerate.registry import known_options
from lamina.accelerate.stand_ins import standardize
from lamina.errors import UnsupportedError, UsageError
from lamina.spec import Method
from lamina.spec.validated import Validated

_CONVOLUTION = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
_NORM = ("num_features", "eps", "momentum", "affine", "track_running_stats")
_RECURRENT = ("hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional", "proj_size")

SIZES: Mapping[type[nn.Module], tuple[str, ...]] = {
    nn.Linear: ("in_features", "out_features"),
    nn.Conv1d: _CONVOLUTION,
    nn.Conv2d: _CONVOLUTION,
    nn.Conv3d: _CONVOLUTION,
    nn.BatchNorm1d: _NORM,
    nn.BatchNorm2d: _NORM,
    nn.LSTM: ("input_size", *_RECURRENT),
}
"""The arguments of each type of dense layer; those with one ``bias`` tensor have that as well."""

KINDS: Mapping[str, type[nn.Module]] = {kind.__name__: kind for kind in SIZES}
_COPIED = (fx.GraphModule, ScriptModule)
"""Whose copies are of other classes."""

_WITH_BIAS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_DENSE = {eliminated: dense for dense, eliminated in ELIMINATED.items()}

Value = bool | int | float | str | tuple[int, ...] | None


class LayerRecipe(Validated):
    """One layer: the dense ``kind`` and its arguments, the number of kept inputs, and the weight format.

    ``method`` is that of a layer whose configuration tells its structure, such as ``circulant[block_size=64]``, and
    ``merged`` names the layers that it replaces together with this one.
    """

    kind: Literal["Linear", "Conv1d", "Conv2d", "Conv3d", "BatchNorm1d", "BatchNorm2d", "LSTM"]
    arguments: dict[str, Value]
    kept: PositiveInt | None = None
    by: Literal["channel", "tap"] = "channel"
    impl: Literal["auto", "gather", "swap", "slice", "pack", "kernel"] = "auto"
    format: Format | None = None
    scaling: Literal["row", "none"] = "row"
    method: str | None = None
    merged: tuple[str, ...] = ()


Methods = Mapping[str, tuple[str, tuple[str, ...]]]
"""By layer, its method and the names of the layers that are replaced together with it."""


def describe(model: nn.Module, dense: nn.Module, methods: Methods = MappingProxyType({})) -> dict[str, LayerRecipe]:
    """The layers of ``model`` that differ from those of ``dense``, by name; ``methods`` made some of them.

    A layer under several names has a recipe for each, since one of them alone may have been replaced.

    Raises:
        UsageError: recipes do not support the type of a layer.
    """
    own = dict(dense.named_modules(remove_duplicate=False))
    before = dict(standard_twin(dense).named_modules(remove_duplicate=False))
    found: dict[str, LayerRecipe] = {}
    first: dict[int, str] = {}
    merged = {other for _, others in methods.values() for other in others}
    inner: tuple[str, ...] = ()
    for name, module in model.named_modules(remove_duplicate=False):
        if (known := first.setdefault(id(module), name)) != name:
            if known in found:
                found[name] = found[known]
            continue
        if name in merged or (inner and name.startswith(inner)) or isinstance(module, FusedActivation):
            continue
        if name in methods and _by_configuration(methods[name][0]):
            found[name] = _by_method(name, before[name], *methods[name])
            inner = (*inner, f"{name}.")
            continue
        if name not in before:
            raise UsageError(f"{name}: expected the modules of the dense network, got an additional one")
        same = type(module) in (type(before[name]), type(own.get(name)))
        same |= isinstance(module, _COPIED) and isinstance(before[name], _COPIED)
        same |= not name and isinstance(module, type(before[name]))  # of a class that a plan derived from the network's
        if same and (type(module) not in SIZES or _arguments(module) == _arguments(before[name])):
            continue
        found[name] = _described(name, module)
    return found


def _by_configuration(method: str) -> bool:
    """Whether a method's configuration tells a layer's structure; the others are described by their modules."""
    parsed = Method.parse(method)
    return parsed.algorithm is not None or parsed.name not in ("dense", "eliminated", "weight-only")


def _by_method(name: str, dense: nn.Module, method: str, merged: tuple[str, ...]) -> LayerRecipe:
    if type(dense) not in SIZES:
        raise UsageError(f"{name}: expected one of {', '.join(KINDS)}, got {type(dense).__name__}")
    return LayerRecipe(kind=_kind(dense), arguments=_arguments(dense), method=method, merged=merged)


def _described(name: str, module: Any) -> LayerRecipe:
    if isinstance(module, WeightOnlyLinear | WeightOnlyConv):
        plain = module.to_dense()
        scaling = "none" if module.format.startswith("deft") else "row"
        return LayerRecipe(
            kind=_kind(plain), arguments=_arguments(plain), format=module.format, scaling=scaling  # type: ignore[arg-type]
        )  # fmt: skip
    if isinstance(module, Indexed):
        twin = module.to_dense()  # type: ignore[operator]
        by, impl = getattr(module, "by", "channel"), getattr(module, "impl", "auto")
        return LayerRecipe(
            kind=_kind(twin), arguments=_arguments(twin), kept=len(module.index), by=by, impl=impl  # type: ignore[arg-type]
        )  # fmt: skip
    if type(module) in SIZES:
        return LayerRecipe(kind=_kind(module), arguments=_arguments(module))
    raise UsageError(f"{name}: expected one of {', '.join(KINDS)} or a converted one, got {type(module).__name__}")


def _kind(module: nn.Module) -> Any:
    return type(module).__name__


def _arguments(module: nn.Module) -> dict[str, Value]:
    values = {name: getattr(module, name) for name in SIZES[type(module)]}
    return values | ({"bias": module.bias is not None} if isinstance(module, _WITH_BIAS) else {})


def rebuild(model: nn.Module, layers: Mapping[str, LayerRecipe], tensors: Mapping[str, Tensor], file: str) -> nn.Module:
    """Replace layers of a dense network by those of the recipes. Their weights are not loaded yet.

    Args:
        model: changed in place.
        layers: by name.
        tensors: which hold the indices.
        file: for messages.

    Raises:
        UsageError: the network has no such layer, or a recipe cannot be built.
    """
    model = standardize(model, layers)
    known = dict(model.named_modules(remove_duplicate=False))
    for name, recipe in layers.items():
        if not name or name not in known:
            raise UsageError(
                f"the recipe's layer {name!r} is not in the network: is it another network's recipe? A network that "
                "adds layers in its first call must have been called once"
            )
        model = put(model, name, _built(name, recipe, tensors, file))
    for name, recipe in layers.items():
        if recipe.method is not None:
            model = _converted(model, name, recipe)
    return model


def _converted(model: nn.Module, name: str, recipe: LayerRecipe) -> nn.Module:
    names = {name, *recipe.merged}
    if (method := Method.parse(str(recipe.method))).dense:
        try:
            return put(model, name, build.by_algorithm(method, model.get_submodule(name)))
        except UnsupportedError as error:
            raise UsageError(f"{name}: {recipe.method} cannot be built: {error}") from error
    config = accelerate.configuration(known_options(str(recipe.method)))
    model, record = accelerate.convert(model, config, lambda one, _: one in names)
    if not record.replaced:
        reasons = dict.fromkeys(str(one.refusal) for one in record.skipped if one.layer in names)
        raise UsageError(f"{name}: {recipe.method} cannot be built: {'; '.join(reasons)}")
    return model


def _built(name: str, recipe: LayerRecipe, tensors: Mapping[str, Tensor], file: str) -> nn.Module:
    kind = KINDS[recipe.kind]
    expected = {*SIZES[kind], *(["bias"] if issubclass(kind, _WITH_BIAS) else [])}
    if recipe.arguments.keys() != expected:
        raise UsageError(
            f"{name}: expected the arguments {', '.join(sorted(expected))} of {recipe.kind}, "
            f"got {', '.join(sorted(recipe.arguments))}"
        )
    make: Callable[..., nn.Module] = kind
    try:
        layer = make(**recipe.arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{name}: {recipe.kind} cannot be built: {error}") from error
    if recipe.kept is not None:
        layer = _eliminated(name, recipe, layer, tensors, file)
    if recipe.format is not None:
        return _weight_only(layer, recipe)
    return layer


def _eliminated(
    name: str, recipe: LayerRecipe, layer: nn.Module, tensors: Mapping[str, Tensor], file: str
) -> nn.Module:
    index = tensors.get(f"{name}.index")
    if index is None or index.shape != (recipe.kept,) or type(layer) not in ELIMINATED:
        got = "nothing" if index is None else tuple(index.shape)
        raise UsageError(f"{file}: {name}.index: expected ({recipe.kept},) for a {recipe.kind}, got {got}")
    options = {"by": recipe.by} if isinstance(layer, nn.Conv1d | nn.Conv2d) else {}
    try:
        built: nn.Module = ELIMINATED[type(layer)].from_dense(layer, index, impl=recipe.impl, **options)
    except UsageError as error:
        raise UsageError(f"{file}: {name}: {error}") from error
    return built


def _weight_only(layer: nn.Module, recipe: LayerRecipe) -> nn.Module:
    config = WeightOnly(recipe.format or "e4m3", recipe.scaling)
    return (WeightOnlyLinear if isinstance(layer, nn.Linear) else WeightOnlyConv).from_dense(layer, config)
