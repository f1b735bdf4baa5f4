"""Layers of `torch.nn` in place of modules that compute the same, but that no method knows.

Methods replace `torch.nn` layers. `standardize` makes layers of what networks have in their place, and `restore` puts
back what no method replaced:

- `torch.nn.MultiheadAttention`, whose projections are weights: `UnpackedAttention`;
- ``Conv1D`` of Transformers, a linear layer with transposed weights;
- subclasses of linear layers and convolutions that compute what these do;
- the GELU modules of Transformers and timm, which kernels of layers may compute.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from torch import nn
from torch.nn.parameter import is_lazy

from lamina.accelerate.attention import UnpackedAttention, is_projection, linear_of, reads_memory, refusal

STANDS_FOR = "lamina_stands_for"
"""The attribute of a stand-in: the module, in a tuple, so that it is no module of the stand-in."""

KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)

ACTIVATIONS: Mapping[str, Callable[[], nn.Module]] = {
    "transformers.activations.GELUActivation": nn.GELU,
    "timm.layers.activations.GELU": nn.GELU,
    **dict.fromkeys(
        (
            *(f"transformers.activations.{name}" for name in ("NewGELUActivation", "GELUTanh", "PytorchGELUTanh")),
            *(f"transformers.activations.{name}" for name in ("FastGELUActivation", "AccurateGELUActivation")),
            "timm.layers.activations.GELUTanh",
        ),
        lambda: nn.GELU("tanh"),
    ),
}
"""Activations by the names of their classes."""


def standardize(
    model: nn.Module, names: Collection[str] | None = None, leave: Callable[[nn.Module], bool] = lambda _: False
) -> nn.Module:
    """Put stand-ins in a model, in place unless the model itself gets one.

    Args:
        model: its modules keep their parameters, which stand-ins share; transposed ones and those that hold several
            separate projections are copied.
        names: paths of layers, such as ``layers.0.self_attn.in_proj``, that are wanted; all, if left out.
        leave: whether to leave a module as it is because of this one, which is it or in it.
    """
    modules = list(model.named_modules(remove_duplicate=False))
    attention = [path for path, module in modules if isinstance(module, nn.MultiheadAttention)]
    made: dict[int, nn.Module] = {}
    for path, module in modules:
        if any(_is_within(path, one) for one in attention):  # which computes with its weights
            continue
        if names is not None and not any(_is_at(name, path, module) for name in names):
            continue
        if id(module) not in made:
            found = _stand_in(model, path, module)
            if found is None or any(map(leave, module.modules())):
                continue
            setattr(found.train(module.training), STANDS_FOR, (module,))
            made[id(module)] = found
        model = placed(model, path, made[id(module)])
    return model


def restore(model: nn.Module, activations: bool = True) -> nn.Module:
    """Put back, in place, the modules that stand-ins stand for, but for attention of which a layer was replaced.

    Args:
        model: in which `standardize` put stand-ins.
        activations: whether to put back activations too; else they stay, since kernels may compute them.
    """
    for path, module in list(model.named_modules(remove_duplicate=False)):
        own = getattr(module, STANDS_FOR, ())
        if own and (activations or any(True for _ in module.parameters())):
            model = placed(model, path, own[0])
    return model


def placed(model: nn.Module, path: str, module: nn.Module) -> nn.Module:
    """The model with a module at a path; the module itself if the path is empty."""
    if not path:
        return module
    parent, _, last = path.rpartition(".")
    setattr(model.get_submodule(parent), last, module)
    return model


def _is_within(path: str, other: str) -> bool:
    """Whether a module is in another."""
    return path != other and path.startswith(f"{other}." if other else "")


def _is_at(name: str, path: str, module: nn.Module) -> bool:
    """Whether a layer of this name is a module at this path, or one of its projections."""
    if isinstance(module, nn.MultiheadAttention):
        return is_projection(name) and name.rpartition(".")[0] == path
    return name == path


def _stand_in(model: nn.Module, path: str, module: nn.Module) -> nn.Module | None:
    """The layer that computes what a module does, or nothing."""
    if isinstance(module, nn.MultiheadAttention):
        joint = module._qkv_same_embed_dim and not reads_memory(model, path)
        return None if refusal(module) else UnpackedAttention(module, joint)
    kind = f"{type(module).__module__}.{type(module).__name__}"
    if kind in ACTIVATIONS:
        return ACTIVATIONS[kind]()
    if kind == "transformers.pytorch_utils.Conv1D":
        return _of_conv1d(module)
    return _of_base(module)


def _of_conv1d(module: nn.Module) -> nn.Linear:
    weight, bias = module.get_parameter("weight"), module.get_parameter("bias")
    return linear_of(nn.Parameter(weight.detach().t().contiguous(), weight.requires_grad), bias)


def _of_base(module: nn.Module) -> nn.Module | None:
    """The layer of `torch.nn` that a subclass of it is, if that changes nothing of what it computes."""
    base = next((kind for kind in KINDS if isinstance(module, kind)), None)
    own = type(module)
    if base is None or own is base or any(True for _ in module.children()):  # such as parametrizations
        return None
    computing = ("forward", "_conv_forward", "__call__", "__getattr__", "__getattribute__", "weight", "bias")
    if any(getattr(own, name, None) is not getattr(base, name, None) for name in computing):
        return None
    values = dict(module.named_parameters()) | dict(module.named_buffers())
    if values.keys() - {"weight", "bias"} or any(map(is_lazy, values.values())):
        return None
    found: nn.Module = object.__new__(base)
    found.__dict__ = dict(module.__dict__)
    return found
