"""A model by a plan: its layers replaced, and the whole in the plan's precision, layout and mode."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from lamina import accelerate, build, measure
from lamina.accelerate.common.batchnorm import fold_batchnorm
from lamina.accelerate.convert import put, require_convertible, standard_twin
from lamina.accelerate.methods.circulant.activation_fusion import fuse_activations
from lamina.accelerate.methods.circulant.nn import allow_fallback
from lamina.accelerate.methods.elimination.convert import unfitted
from lamina.accelerate.methods.elimination.network import fold
from lamina.accelerate.registry import known_options
from lamina.errors import UnsupportedError, UsageError
from lamina.pipeline.apply.planned import run_by
from lamina.pipeline.deft.recipe_files import WEIGHTS, digest, load, path_of
from lamina.pipeline.graphed import graphed
from lamina.record.wording import listed
from lamina.spec import Method
from lamina.spec.plan import CAPTURED, COMPILED, REPLAYED, Plan, PlannedLayer
from lamina.spec.plan_file import read_plan
from lamina.spec.whole_method import COMPRESSED, FOLD, compresses, folds, without

PRUNED = "fold=true"
"""The option of pruned inputs whose producers lose their dead output channels."""


class PlanMismatch(UserWarning):
    """A plan, or a part of it, does not fit the model or the device."""


@dataclass(frozen=True)
class Applied:
    """What was done: the layers that run by another method, and why others of the plan do not."""

    replaced: Mapping[str, str]
    refused: Mapping[str, str]
    remarks: Sequence[str]


def apply(
    model: nn.Module, plan: Plan | str | os.PathLike[str], *, example: Any = None, strict: bool = False
) -> nn.Module:
    """Run a model by a plan: every layer by its method, and the whole in the plan's precision, layout and mode.

    A model with the weights of the study gets those that the study fitted. Otherwise, its own weights are converted.
    Layers of the plan that the model does not have, or has in another size, stay as they are. Names of parameters do
    not change, but for those of replaced layers. For training, precisions below float32 use autocast, and CUDA graphs
    are `lamina.graphed_step`'s to make.

    Args:
        model: changed in place, on its device; not yet compiled.
        plan: or the file, or the folder of a study.
        example: an input, to capture CUDA graphs at once; by default the first call captures.
        strict: whether to raise for what does not fit, instead of warning.

    Returns:
        The model.

    Raises:
        UsageError: ``plan`` is neither a plan nor the path of one, nothing of it fits the model, or with ``strict``
            anything does not fit.

    Warns:
        PlanMismatch: for what does not fit.

    Example::

        model = lamina.apply(model, "alexnet-study/plan.toml")
    """
    source = None if isinstance(plan, Plan) else path_of("plan", plan, "a Plan or a path")
    found, done = applied(model, plan if isinstance(plan, Plan) else read_plan(plan), example, source)
    faults = [f"{name}: {reason}" for name, reason in done.refused.items()]
    if strict and faults:
        raise UsageError("the plan does not fit the model: " + "; ".join(faults))
    for text in [*([f"layers kept as they are: {listed(faults, 5)}"] if faults else []), *done.remarks]:
        warnings.warn(text, PlanMismatch, stacklevel=2)
    return found


def applied(model: nn.Module, plan: Plan, example: Any = None, source: Path | None = None) -> tuple[nn.Module, Applied]:
    """As `apply`, with a record of what was done in place of warnings.

    A model with the weights of the study gets those that the study fitted, if the plan's folder has them.

    Raises:
        UsageError: nothing of the plan fits the model, its lazy parameters have no sizes yet, it is no module, or
            `torch.compile` has compiled it.
    """
    require_convertible(model)
    if any(is_lazy(one) for one in model.parameters()):
        raise UsageError("the model has lazy parameters without a size: run it on a batch of inputs first")
    model, done = _fitted(model, plan, source) or replaced_by(model, plan, folding=True)
    if not compresses(plan.run.method):  # which keeps outputs of ReLU modules as bitmaps
        fuse_activations(model)
    allow_fallback(model)
    remarks = [*done.remarks, *_other_hardware(model, plan)]
    model = _run(model, plan, example, remarks)
    return model, replace(done, remarks=remarks)


def _fitted(model: nn.Module, plan: Plan, source: Path | None) -> tuple[nn.Module, Applied] | None:
    """The network of the study with its weights, if the model has those that the study began with."""
    folder = None if source is None else source if source.is_dir() else source.parent
    if folder is None or not (folder / WEIGHTS).is_file() or not plan.weights or plan.goal == "train":
        return None
    if digest(model) != plan.weights or mismatches(model, plan):
        return None
    training = model.training
    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    found = load(folder, model, device).train(training)
    return found, Applied({one.name: one.method for one in plan.layers if one.method != "dense"}, {}, [])


def replaced_by(model: nn.Module, plan: Plan, *, folding: bool = False) -> tuple[nn.Module, Applied]:
    """The layers alone by their methods in a plan, in place.

    Args:
        model: changed in place.
        plan: that layers follow.
        folding: whether to fold BatchNorm before, where the plan does so; a folded network does not train as before.

    Raises:
        UsageError: nothing of the plan fits the model.
    """
    refused = mismatches(model, plan)
    remarks: list[str] = []
    wanted = {one.name: one for one in plan.layers if one.method != "dense"}
    if wanted and refused.keys() >= wanted.keys():
        raise UsageError(f"the plan of {plan.network} does not fit the model: {listed(_faults(refused), 5)}")
    if folding and folds(plan.run.method) and (reason := fold_norms(model)) is not None:
        remarks.append(f"BatchNorm is not folded: {reason}")
    replaced: dict[str, str] = {}
    by_method: dict[str, list[PlannedLayer]] = {}
    for name, one in wanted.items():
        if name not in refused:
            by_method.setdefault(one.method, []).append(one)
    for method, layers in by_method.items():
        names = {name for one in layers for name in (one.name, *one.with_)}
        if Method.parse(method).dense:
            model = _by_algorithm(model, method, names, replaced, refused)
            continue
        try:
            config = configured(method)
            model, record = accelerate.convert(model, config, lambda name, _, names=names: name in names)  # type: ignore[misc]
        except (UsageError, UnsupportedError) as error:
            refused |= dict.fromkeys(names, str(error))
            continue
        replaced |= {one.layer: method for one in record.replaced}
        refused |= {one.layer: str(one.refusal) for one in record.skipped if one.layer in names & wanted.keys()}
    unrecovered = [name for name, method in replaced.items() if "recovery=least_squares" in method]
    if unrecovered:
        remarks.append(
            f"{len(unrecovered)} pruned layers are not fitted to data: fine-tune the model, "
            "or load the network of the study with its weights: lamina.load(folder), or lamina.load(folder, network)"
        )
    if any(PRUNED in method for method in replaced.values()):
        try:
            model, _ = fold(model)
        except UsageError as error:
            remarks.append(f"dead output channels are not pruned: {error}")
    return model, Applied(replaced, refused, remarks)


def _by_algorithm(
    model: nn.Module, method: str, names: Collection[str], replaced: dict[str, str], refused: dict[str, str]
) -> nn.Module:
    """Convolutions by an algorithm such as ``dense:fft``, in place; ``replaced`` and ``refused`` are filled."""
    for name in names:
        try:
            model = put(model, name, build.by_algorithm(Method.parse(method), model.get_submodule(name)))
            replaced[name] = method
        except (UsageError, UnsupportedError) as error:
            refused[name] = str(error)
    return model


def fold_norms(model: nn.Module) -> str | None:
    """Fold each BatchNorm into the layer before it, in place; why not, or nothing."""
    try:
        fold_batchnorm(model)
    except UnsupportedError as error:
        return str(error)
    return None


def mismatches(model: nn.Module, plan: Plan) -> dict[str, str]:
    """Why layers of a plan do not fit a model, by name; those that stay dense fit any.

    Raises:
        UsageError: the model has no layer of the plan.
    """
    modules = dict(standard_twin(model).named_modules(remove_duplicate=False))
    found: dict[str, str] = {}
    for one in plan.layers:
        if one.method == "dense":
            continue
        missing = [name for name in (one.name, *one.with_) if name not in modules]
        if missing:
            found[one.name] = f"the model has no layer {listed(missing, 3)}: rename it in the plan, or study this model"
            continue
        got = " + ".join(describe_type(modules[name]) for name in (one.name, *one.with_))
        if one.type not in (got, describe_type(modules[one.name])):
            found[one.name] = f"the plan is for {one.type}, the model has {got}: study this model"
    if plan.layers and not found and not any(one.name in modules for one in plan.layers):
        names = listed([one.name for one in plan.layers], 5)
        raise UsageError(f"the plan of {plan.network} does not fit the model, which has none of its layers: {names}")
    return found


def describe_type(module: nn.Module) -> str:
    """The type of a layer with its sizes.

    >>> describe_type(nn.Linear(784, 512))
    'Linear(in_features=784, out_features=512, bias=True)'
    """
    return f"{type(module).__name__}({module.extra_repr()})"


def configured(impl: str) -> Any:
    """The configuration of an implementation, without what no configuration has: tiles, densities, folding.

    Weights that were fitted to data are not fitted again: ``recovery`` becomes ``scale``.

    Raises:
        UsageError: the method or an option is unknown.
    """
    method = Method.parse(impl)
    if method.dense:
        raise UsageError(f"{impl}: expected a method that replaces layers")
    return unfitted(accelerate.configuration(known_options(impl)))


def _run(model: nn.Module, plan: Plan, example: Any, remarks: list[str]) -> nn.Module:
    """The model in the plan's precision, layout and mode, by another package's method where the plan has one."""
    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    precision, mode = plan.run.precision, plan.run.mode
    if plan.goal == "infer":
        model = build.to_precision(model, precision, device, plan.run.layout)
    elif plan.run.layout == "nhwc":
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if (method := without(plan.run.method, FOLD, COMPRESSED)) != "dense":
        from lamina.pipeline.study.rivals import apply_rival, capturable

        model = apply_rival(method, model)
        if mode in CAPTURED and not capturable(method):
            mode = "reduce-overhead"
            remarks.append(f"lamina.graphed cannot capture weights by {method}: the mode is {mode}")
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    model = run_by(model, plan)
    replayed = mode in REPLAYED and device.type == "cuda"
    if mode in REPLAYED and not replayed:
        how = "is compiled without them" if mode in COMPILED else "runs in eager mode"
        remarks.append(f"CUDA graphs need a GPU, the model is on {device.type}: it {how}")
    if mode in COMPILED:
        model.compile(mode="reduce-overhead" if mode == "reduce-overhead" and replayed else "default")
    if not replayed or mode not in CAPTURED:
        return model
    if plan.goal == "train":
        remarks.append("the plan trains in CUDA graphs: step = lamina.graphed_step(model, loss, optimizer)")
        return model
    return graphed(model, example)


def _other_hardware(model: nn.Module, plan: Plan) -> list[str]:
    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    theirs, ours = plan.environment.get("device"), measure.environment(device).device
    if theirs is None or theirs == ours:
        return []
    return [f"the plan was measured on {theirs}, the model is on {ours}: its times do not hold, study it here"]


def _faults(refused: Mapping[str, str]) -> list[str]:
    return [f"{name}: {reason}" for name, reason in refused.items()]
