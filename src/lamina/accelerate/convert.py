"""The one verb of every method: replace a model's layers, and record what happened to each.

A method is a *cell*, a folder in ``methods/``. Its ``config.py`` holds one frozen configuration. Its ``convert.py`` has
two functions: ``refusal(module)`` returns the reason why a layer cannot be converted, or ``None``; ``replace(module,
config)`` returns the new layer, or raises UnsupportedError where the configuration does not fit this one. One more is
optional: ``runs(sequential, config)`` gives the indices of neighbours that a cell replaces together. ``replace`` then
gets a Sequential of them, the new layer takes the name of the first, and identities those of the others. Neighbours are
those in a Sequential and, where `torch.fx` can trace the network, modules that its code calls one by one. In a cell's
``candidates.py``, ``candidates(layer, call, selector)`` returns the implementations that a selection compares: by the
options that tell them apart, such as ``impl=kernel``, functions that make the module. ``predictions(dense, layer, call,
model)`` does so by the method's cost model, with the predicted times.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized

from lamina.accelerate.attention import OUT, UnpackedAttention, refusal
from lamina.accelerate.common.chains import Chain, Link, chains
from lamina.accelerate.common.traced import held, trace
from lamina.accelerate.registry import candidates_of, converter, method_of, predictions_of
from lamina.accelerate.select import DENSE, LayerCall, Selector, observe, stored
from lamina.accelerate.select.cost import CostModel
from lamina.accelerate.select.whole import twin
from lamina.accelerate.stand_ins import STANDS_FOR, placed, restore, standardize
from lamina.errors import UnsupportedError, UsageError
from lamina.record import Conversion, ConvertedLayer, Selection

UNREACHED = "the example did not reach it, or not as dense tensors"
WRITTEN = "the ReLU after it works in place, on what training saves: use inplace=False, or convert for inference"
HOOKS = "it has hooks, which a new layer would lose"
HELD = "a plain attribute, list or dict of the model holds it too, and would keep the dense layer"

_MODULE_HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks",
    "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
)  # fmt: skip
_GRADIENT_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")

Where = Callable[[str, nn.Module], bool]
"""Whether to convert the layer of this name."""


@dataclass(frozen=True)
class Unit:
    """What a method replaces at once.

    Attributes:
        layers: by name; the new layer takes the place of the first, and identities those of the others.
        module: what the new layer computes: the layer, or a Sequential of neighbours.
        refusal: why it cannot be replaced, or nothing.
        stays: the ReLU of the neighbours where it is no module or is called elsewhere too: it is applied once more.
    """

    layers: Mapping[str, nn.Module]
    module: nn.Module
    refusal: str | None = None
    stays: nn.ReLU | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the layers."""
        return tuple(self.layers)


Progress = Callable[[str, Selection], object]
"""Called with a layer's name and what was selected for it."""


def convert(
    model: nn.Module,
    config: object,
    where: Where | None = None,
    *,
    example: Any = None,
    selector: Selector | CostModel | None = None,
    progress: Progress | None = None,
) -> tuple[nn.Module, Conversion]:
    """Replace layers in place, under their own names.

    Modules that compute what a layer of `torch.nn` does count as that layer, see `standardize`. The projections of a
    `torch.nn.MultiheadAttention` are layers too: ``in_proj``, or ``q_proj``, ``k_proj`` and ``v_proj``, and
    ``out_proj``.

    Args:
        model: changed in place, unless it is itself a layer that is replaced.
        config: a method's configuration, such as ``Circulant(block_size=64)``.
        where: ``where(name, layer)`` says which layers to convert; all, if left out.
        example: an input of the model, a tuple of inputs or a dict of keyword arguments; needed with ``selector``.
            Layers that it does not reach stay: the model may compute with their weights itself. Without an example,
            only `torch.fx` can show that, where it can trace the model.
        selector: times each layer's implementations on what reaches it when the example goes in, or, as a cost model,
            predicts their times. A layer that no implementation makes faster keeps its dense module.
        progress: is called after each selection.

    Returns:
        The model, and a record of every layer replaced and every layer skipped with its reason.

    Raises:
        UsageError: ``config`` is no configuration of a method, a layer's weights cannot be used, the model is no module
            or compiled, or it does not take the example.
    """
    require_convertible(model)
    standardized = standard(model)
    try:
        converted, record = _converted(standardized, config, where, example, selector, progress)
    except BaseException:
        restore(standardized)
        raise
    return restore(converted, activations=not record.replaced), record


def _converted(
    model: nn.Module,
    config: object,
    where: Where | None,
    example: Any,
    selector: Selector | CostModel | None,
    progress: Progress | None,
) -> tuple[nn.Module, Conversion]:
    """As `convert`, of a model with stand-ins."""
    cell = converter(config)
    written = str(method_of(config))
    units = units_of(model, config, where)
    units = _unless_read(model, units)
    calls: dict[str, LayerCall] = {}
    if selector is not None:
        if example is None:
            raise UsageError("select: expected example=, an input of the model to time layers on")
        firsts = [unit.names[0] for unit in units if unit.refusal is None]
        with torch.set_grad_enabled(selector.training):
            calls = observe(model, firsts, example)
    elif example is not None:
        units = _unless_reached(model, units, example)
    layers: list[ConvertedLayer] = []
    replaced: dict[tuple[int, ...], nn.Module] = {}
    selections: dict[tuple[int, ...], Selection] = {}
    for unit in units:
        names, module, reason = unit.names, unit.module, unit.refusal
        key = tuple(map(id, unit.layers.values()))
        if reason is None and key not in replaced:
            try:
                new = cell.replace(module, config)
                if selector is not None:
                    call = calls.get(names[0])
                    selections[key], new = select_layer(module, new, config, selector, call, unit.stays)
                    if progress is not None:
                        progress(names[0], selections[key])
                replaced[key] = new
            except UnsupportedError as error:
                reason = str(error)
            except UsageError as error:
                raise UsageError(f"{names[0] or 'model'}: {error}") from error
        selection = selections.get(key)
        if selection is not None and selection.impl == DENSE:
            reason = selection.reason
        if reason is not None:
            layers += [
                ConvertedLayer(name, _kind(one), written, _numel(one), _numel(one), reason, selection)
                for name, one in unit.layers.items()
            ]
            continue
        kind = " + ".join(map(_kind, module if isinstance(module, nn.Sequential) else [module]))
        before, after = _numel(module), _numel(replaced[key])
        layers.append(ConvertedLayer(names[0], kind, written, before, after, selection=selection))
        model = put(model, names[0], replaced[key])
        for name in names[1:]:
            model = put(model, name, nn.Identity().train(unit.layers[name].training))
    return model, Conversion(written, tuple(layers))


def require_convertible(model: Any) -> None:
    """Check that layers of a model can be replaced.

    Raises:
        UsageError: it is no module, or it or a part of it is compiled by `torch.compile` or distributed by DDP or FSDP.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    distributed = _distributed()
    for name, module in model.named_modules():
        path = f"model.{name}" if name else "model"
        if "_orig_mod" in module._modules or module._compiled_call_impl is not None:
            raise UsageError(f"{path}: expected what torch.compile has not compiled yet; compile what you get")
        if isinstance(module, distributed):  # it would go on with the parameters that it was made with
            kind = next(one.__name__ for one in distributed if isinstance(module, one))
            raise UsageError(f"{path}: expected what {kind} does not distribute yet; distribute what you get")


def _distributed() -> tuple[type[nn.Module], ...]:
    """Modules that hold the parameters that they were made with. FSDP counts if it was imported, which takes long."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    sharded = [getattr(fsdp, name, None) for name in ("FullyShardedDataParallel", "FSDPModule")]
    return nn.parallel.DistributedDataParallel, *filter(None, sharded)


def standard(model: nn.Module) -> nn.Module:
    """The model with stand-ins for modules that compute what layers of `torch.nn` do, in place.

    Modules with hooks and those that share weights with others stay.
    """
    owners = _owners(model)
    return standardize(model, leave=lambda module: has_hooks(module) or _shares(module, owners))


def standard_twin(model: nn.Module) -> nn.Module:
    """The layers that methods can replace, by name: a twin of the model with stand-ins. The model stays as it is."""
    return standard(twin(model))


def units_of(model: nn.Module, config: object, where: Where | None = None) -> list[Unit]:
    """What a method replaces at once: one layer, or neighbours; with the reason why it cannot be replaced.

    Raises:
        UsageError: ``config`` is no configuration of a method.
    """
    cell, holders = converter(config), _holders(model)
    found, untraced = _units(model, cell, config)
    packed = _packed(model)
    return [
        replace(
            unit, refusal=unit.refusal or packed.get(unit.names[0]) or _refusal(unit, cell, holders, where, untraced)
        )
        for unit in found
    ]


def select_layer(
    dense: nn.Module,
    new: nn.Module,
    config: object,
    selector: Selector | CostModel,
    call: LayerCall | None,
    stays: nn.Module | None = None,
) -> tuple[Selection, nn.Module]:
    """What is fastest for a layer, and the module that computes it.

    Args:
        dense: the layer, or a Sequential of layers that are replaced together.
        new: its replacement by the method.
        config: of the method.
        selector: times the candidates, or predicts their times.
        call: what reaches the layer; ``None`` if the example did not.
        stays: a ReLU that is applied once more after the replacement, which its time includes where it is measured.

    Raises:
        UnsupportedError: nothing reached the layer, or the method has no candidates for it.
        UsageError: the dense layer does not run.
    """
    if call is None:
        raise UnsupportedError(UNREACHED)
    method = method_of(config)
    options = [f"{key}={value}" for key, value in method.options if key != "impl"]

    def written(own: str) -> str:
        return own if own == DENSE else f"{method.name}[{','.join([*options, own])}]"

    if isinstance(selector, CostModel):
        predicted = {written(own): each for own, each in predictions_of(config)(dense, new, call, selector).items()}
        selection = selector.select(method.name, predicted)
        return selection, predicted[selection.impl].make()
    candidates: dict[str, Callable[[], nn.Module]] = {DENSE: lambda: dense}
    own_makers = {written(own): make for own, make in candidates_of(config)(new, call, selector).items()}
    for name, make in own_makers.items():
        candidates[name] = make if stays is None else partial(_followed, make, stays)
    again = "" if stays is None else " and ReLU again"
    selection = selector.select(f"{described(dense)} as {method}{again} on {call.signature}", candidates, call)
    return selection, (candidates | own_makers)[selection.impl]()


def _followed(make: Callable[[], nn.Module], stays: nn.Module) -> nn.Module:
    return nn.Sequential(make(), stays)


def described(module: nn.Module) -> str:
    """A layer, or several in a Sequential: types, sizes and what is `stored`, as questions of a selection have it."""
    parts = list(module) if isinstance(module, nn.Sequential) else [module]
    return " + ".join(f"{_kind(part)}({part.extra_repr()})" for part in parts) + f" of {stored(module)}"


def _refusal(
    unit: Unit, cell: ModuleType, holders: _Holders, where: Where | None, untraced: str
) -> str | None:
    """Why a unit is not converted, or nothing."""
    stays = next(filter(None, (_kept(*part, holders, where) for part in unit.layers.items())), None)
    if stays is not None:
        return stays
    reason: str | None = cell.refusal(unit.module)
    if reason and untraced and any(True for _ in unit.module.parameters()):
        return f"{reason} in a Sequential; {untraced}"
    return reason


def _unreadable(module: nn.Module) -> str | None:
    """Why no method can read the weights of a layer, or nothing."""
    if is_parametrized(module):
        return "its weights are parametrized: call torch.nn.utils.parametrize.remove_parametrizations first"
    parameters = [*module.parameters()]
    if any(map(is_lazy, parameters)):
        return "its weights are not initialized: call the model once first"
    if any(one.is_meta for one in parameters):
        return "its weights are on the meta device: call to_empty and load them first"
    if any(one.is_complex() for one in parameters):
        return "its weights are complex"
    return None


def _packed(model: nn.Module) -> dict[str, str]:
    """Layers of attention that cannot be unpacked, with the reason."""
    return {
        f"{path}.{OUT}" if path else OUT: f"{refusal(one) or HOOKS} (MultiheadAttention)"
        for path, one in model.named_modules(remove_duplicate=False)
        if isinstance(one, nn.MultiheadAttention)
    }


def _unless_reached(model: nn.Module, units: Sequence[Unit], example: Any) -> list[Unit]:
    """The units, with a refusal for each whose first layer is not called as the example goes through the model."""
    names = [unit.names[0] for unit in units if unit.refusal is None]
    with torch.no_grad():
        reached = observe(model, names, example)
    unreached = f"{UNREACHED}: the model does not call it, or computes with its weight itself"
    return [
        replace(unit, refusal=unreached) if unit.refusal is None and unit.names[0] not in reached else unit
        for unit in units
    ]


def _unless_read(model: nn.Module, units: Sequence[Unit]) -> list[Unit]:
    """The units, with a refusal for each with a layer whose parameters the model reads itself.

    A model that `torch.fx` cannot trace keeps its units.
    """
    try:
        read = trace(model).read
    except UnsupportedError:
        return [*units]
    reason = "the model computes with its weight itself"
    return [replace(unit, refusal=unit.refusal or reason) if read.intersection(unit.names) else unit for unit in units]


def _units(model: nn.Module, cell: ModuleType, config: object) -> tuple[list[Unit], str]:
    """What is replaced at once: one layer, or a cell's run of neighbours; and why the network cannot be traced."""
    layers = dict(model.named_modules(remove_duplicate=False))
    runs, untraced = _runs(model, layers, cell, config) if hasattr(cell, "runs") else ([], "")
    first = {unit.names[0]: unit for unit in runs}
    later = {name for unit in runs for name in unit.names[1:]}
    leaves = [
        name
        for name, module in layers.items()
        if is_parametrized(module)
        or not (any(True for _ in module.children()) or "parametrizations" in name.split("."))
    ]
    alone = {name: Unit({name: layers[name]}, layers[name]) for name in leaves if name not in later}
    return [first.get(name, unit) for name, unit in alone.items()], untraced


def _runs(
    model: nn.Module, layers: Mapping[str, nn.Module], cell: ModuleType, config: object
) -> tuple[list[Unit], str]:
    """Neighbours that a cell replaces together: in each Sequential, then those that the network's code calls so."""
    found: list[Unit] = []
    for name, module in layers.items():
        if isinstance(module, nn.Sequential):
            links = [Link(one, f"{name}.{child}" if name else child) for child, one in module._modules.items() if one]
            found += _of_chain(links, cell, config)
    try:
        traced = trace(model)
    except UnsupportedError as error:
        return found, str(error)
    taken = {name for unit in found for name in unit.names}
    for chain in chains(traced):
        units = [unit for unit in _of_chain(chain, cell, config) if not taken.intersection(unit.names)]
        found += [_unless_written(unit) for unit in units] if model.training else units
    return found, ""


def _unless_written(unit: Unit) -> Unit:
    """The unit, with a refusal if it would save its output for the backward pass and a ReLU would write over it."""
    last = [*unit.module.children()][-1]
    written = last is unit.stays and unit.stays.inplace
    return replace(unit, refusal=WRITTEN) if written else unit


def _of_chain(chain: Chain, cell: ModuleType, config: object) -> Iterator[Unit]:
    for run in cell.runs(nn.Sequential(*(link.module for link in chain)), config):
        links = [chain[index] for index in run if not isinstance(chain[index].module, nn.Identity)]
        named = {link.path: link.module for link in links if link.path is not None}
        if links[0].path is not None:
            stays = next((one.module for one in links if one.path is None and isinstance(one.module, nn.ReLU)), None)
            yield Unit(named, nn.Sequential(*(link.module for link in links)), stays=stays)


def kept(model: nn.Module, name: str, where: Where | None = None) -> str | None:
    """Why a layer stays whatever the method is: not selected, shared weights or hooks; or nothing."""
    return _kept(name, model.get_submodule(name), _holders(model), where)


def _kept(name: str, module: nn.Module, holders: _Holders, where: Where | None) -> str | None:
    """Why a layer stays whatever the method is."""
    if where is not None and not where(name, module):
        return "not selected"
    if (reason := _unreadable(module)) is not None:
        return reason
    if _shares(module, holders.of_parameters):
        return "its weights are shared with another layer"
    if id(module) in holders.elsewhere:
        return HELD
    return HOOKS if has_hooks(module) else None


def _shares(module: nn.Module, owners: Mapping[int, set[int]]) -> bool:
    """Whether a parameter of a module is another's too."""
    return any(len(owners[id(parameter)]) > 1 for parameter in module.parameters())


def has_hooks(module: nn.Module) -> bool:
    """Whether something is called with the module, with its state dict, or with gradients of its parameters."""
    of_gradients = (getattr(one, name, None) for one in module.parameters() for name in _GRADIENT_HOOKS)
    return any(getattr(module, name) for name in _MODULE_HOOKS) or any(of_gradients)


@dataclass(frozen=True)
class _Holders:
    """What holds parameters, by their ``id``, and the modules that lists or attributes hold too."""

    of_parameters: Mapping[int, set[int]]
    elsewhere: Mapping[int, int]


def _holders(model: nn.Module) -> _Holders:
    return _Holders(_owners(model), held(model))


def _owners(model: nn.Module) -> dict[int, set[int]]:
    """The modules that hold each parameter."""
    owners: dict[int, set[int]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), set()).add(id(module))
    return owners


def _kind(module: nn.Module) -> str:
    return type(module).__name__


def _numel(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if not is_lazy(parameter))


def put(model: nn.Module, name: str, layer: nn.Module) -> nn.Module:
    """The model with a layer at a path; the layer itself if the path is empty. Attention that holds it is unpacked."""
    if not name:
        return layer
    path = name.rpartition(".")[0]
    if isinstance(model.get_submodule(path), nn.MultiheadAttention):
        model = standardize(model, [name])
    if isinstance(parent := model.get_submodule(path), UnpackedAttention):
        setattr(parent, STANDS_FOR, ())  # for good: the weights that are replaced would stay in memory
    for length in range(name.count(".") + 1):
        above = model.get_submodule(".".join(name.split(".")[:length]))
        if isinstance(above, nn.TransformerEncoderLayer):
            above.activation_relu_or_gelu = 0  # no fast path: it computes with the weights of its layers itself
        if isinstance(above, nn.TransformerEncoder):
            above.use_nested_tensor = False  # tensors that only the fast path takes
    return placed(model, name, layer)
