"""Networks of torchvision, timm, transformers (``PACKAGE:NAME``) and of any ``package.module:callable`` or file."""

from __future__ import annotations

import copy
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from lamina.build.models import detection, huggingface
from lamina.build.models.sizes import images_of, of_torchvision, of_transformers
from lamina.build.models.vision_operators import repaired
from lamina.errors import LaminaError, MissingError, UsageError, nearest
from lamina.spec import Input


@dataclass(frozen=True)
class External:
    """A network, and its input shape (one sample) and number of classes if known; ``inputs`` where they are others.

    ``samples`` makes the inputs for a batch size and a shape where they are no tensors, such as images in a list.
    """

    module: nn.Module
    input: tuple[int, ...] | None = None
    classes: int | None = None
    inputs: tuple[Input, ...] = ()
    samples: Callable[..., Any] | None = None


def load(source: str, settings: Mapping[str, str] | None = None) -> External:
    """Build the network that ``source`` names, without pretrained weights.

    ``package.module:callable`` and ``folder/file.py:callable`` call ``callable()``; dots after the colon reach into
    classes.
    ``transformers:bert`` is a model type, ``transformers:BertModel`` a class; ``settings`` change their configuration.
    Importing runs the package's code: load only what you would run.

    Raises:
        UsageError: the source is malformed, names nothing, fails, or gives anything but an ``nn.Module``; or it has
            no configuration that ``settings`` could change.
        MissingError: the package is not installed, or is incompatible with the installed torch.
    """
    try:
        return _load(source, settings or {})
    except (UsageError, MissingError):
        if not repaired():
            raise
    return _load(source, settings or {})


def _load(source: str, settings: Mapping[str, str]) -> External:
    package, colon, name = source.partition(":")
    if not (colon and package and name):
        raise UsageError(
            "expected a model as PACKAGE.MODULE:CALLABLE, FILE.py:CALLABLE, torchvision:NAME, timm:NAME or "
            "transformers:NAME, "
            f"got {source!r}"
        )
    if settings and package in ("timm", "torchvision"):
        raise UsageError(f"--set: {source!r} has no configuration, got {', '.join(settings)}")
    if package == "transformers":
        factory = _transformers(name, settings)
    elif package == "timm":
        return _timm(name)
    elif package == "torchvision":
        return _torchvision(source, name)
    else:
        module = _imported(package)
        factory = _attribute(module, name, _callables(module))
        if isinstance(getattr(factory, "config_class", None), type):
            factory = partial(huggingface.of_class, factory, settings)
        elif settings:
            raise UsageError(f"--set: {source!r} has no configuration, got {', '.join(settings)}")
    network = _called(source, factory)
    labels = getattr(getattr(network, "config", None), "num_labels", None)
    classes = labels if type(network).__name__.endswith("Classification") else None
    return External(network, classes=classes, inputs=of_transformers(network))


def _transformers(name: str, settings: Mapping[str, str]) -> Callable[[], nn.Module]:
    transformers = _library("transformers")
    types = huggingface.model_types(transformers)
    if name in types:
        return partial(huggingface.of_type, transformers, name, settings)
    found = _attribute(transformers, name, [*types, *_callables(transformers)])
    if not isinstance(getattr(found, "config_class", None), type):
        raise UsageError(
            f"'transformers:{name}' is no network; expected a model type such as bert, or a class such as BertModel"
        )
    return partial(huggingface.of_class, found, settings)


def of_module(module: nn.Module) -> External:
    """A copy of a network that is there, with its weights, on the default device.

    Raises:
        UsageError: it cannot be copied.
    """
    try:
        network = copy.deepcopy(module)
    except Exception as error:  # the network's own code
        raise UsageError(f"{type(module).__name__} cannot be copied: {error}") from error
    return External(network.to(torch.get_default_device()), inputs=of_transformers(network))


def function(source: str) -> Callable[..., Any]:
    """The function that ``package.module:function`` names.

    Raises:
        UsageError: it is malformed, or names nothing that can be called.
        MissingError: the package is not installed.
    """
    package, colon, name = source.partition(":")
    if not (colon and package and name):
        raise UsageError(f"expected a function as PACKAGE.MODULE:FUNCTION, got {source!r}")
    module = _imported(package)
    found = _attribute(module, name, _callables(module))
    if not callable(found):
        raise UsageError(f"{source!r} is {_described(found)}, expected a function of the batch size")
    return found  # type: ignore[no-any-return]


def _torchvision(source: str, name: str) -> External:
    models = _library("torchvision.models")
    listed = models.list_models() if hasattr(models, "list_models") else []
    # Segmentation, detection and video networks are listed by their plain names, but live in modules of their own.
    factory = models.get_model_builder(name) if name in listed else None
    if factory is None:
        factory = _attribute(models, name, listed or _callables(models))
    known = inspect.signature(factory).parameters if callable(factory) else {}
    plain = {"weights_backbone": None} if "weights_backbone" in known else {}  # whose default is downloaded
    network = _called(source, partial(factory, **plain) if plain else factory)
    if detection.is_detector(network):
        return External(network, detection.image_shape(network), samples=detection.samples)
    shape = of_torchvision(models, factory)
    return External(network, shape, inputs=images_of(network, shape) if shape else ())


def _timm(name: str) -> External:
    timm = _library("timm")
    if not timm.is_model(name):
        raise UsageError(f"timm has no model {name!r}: {nearest(name, timm.list_models())}")
    module = _called(f"timm:{name}", lambda: timm.create_model(name))
    defaults: dict[str, Any] = getattr(module, "default_cfg", None) or {}
    size = defaults.get("input_size")
    return External(module, tuple(size) if size else None, defaults.get("num_classes"))


def _library(name: str) -> ModuleType:
    package = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingError(
            f"{package} models need {error.name}, which is not installed: pip install --no-deps {error.name}"
        ) from error
    except Exception as error:
        raise MissingError(
            f"{package} is installed but cannot be imported ({type(error).__name__}: {error}); "
            f"install the version of {package} for torch {torch.__version__}"
        ) from error


_MISSING = object()


def _imported(name: str) -> ModuleType:
    if name.endswith(".py"):
        return _of_file(Path(name).absolute())
    with _explained(name, f"importing {name!r}"):
        return importlib.import_module(name)


def _of_file(path: Path) -> ModuleType:
    """The module of a file, which may import others beside it."""
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    module = _imported(path.stem)
    if Path(getattr(module, "__file__", None) or "").resolve() != path.resolve():
        raise UsageError(f"{path}: {path.stem!r} is the name of another module too: rename the file")
    return module


@contextmanager
def _explained(name: str, action: str) -> Iterator[None]:
    """Raise errors of a package's own code as UsageError or MissingError; ``name`` is the module's."""
    package = name.partition(".")[0]
    try:
        yield
    except LaminaError:
        raise
    except ModuleNotFoundError as error:
        if error.name == package:
            raise MissingError(
                f"expected a package {package!r} to import, found none: pip install {package}"
            ) from error
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise UsageError(
                f"package {package!r} has no module {error.name!r}; check the spelling of {name!r}"
            ) from error
        if error.name:
            raise MissingError(
                f"{name!r} needs {error.name!r}, which is not installed: pip install {error.name}"
            ) from error
        raise MissingError(f"{action} raised {type(error).__name__}: {error}") from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"{action} raised {type(error).__name__}: {error}") from error


def _callables(module: ModuleType) -> list[str]:
    """Public callables; names that a lazy module has not imported yet count as callable."""
    found = vars(module)
    return [name for name in dir(module) if not name.startswith("_") and callable(found.get(name, len))]


def _attribute(module: ModuleType, path: str, known: Iterable[str]) -> Any:
    value: Any = module
    for name in path.split("."):
        # Lazy modules import when an attribute is read, and may raise anything.
        with _explained(module.__name__, f"reading {path!r} of {module.__name__!r}"):
            found = getattr(value, name, _MISSING)
        if found is _MISSING:
            known = [*known]
            hint = nearest(path, known) if known else "it defines no function or class"
            raise UsageError(f"{module.__name__!r} has no {path!r}: {hint}")
        value = found
    return value


def _called(source: str, factory: Any) -> nn.Module:
    if not callable(factory):
        raise UsageError(f"{source!r} is {_described(factory)}, expected a callable that gives an nn.Module")
    if isinstance(factory, nn.Module):
        raise UsageError(f"{source!r} is a built {type(factory).__name__}; name a function or class that builds it")
    try:
        module = factory()
    except LaminaError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"calling {source!r} without arguments raised {type(error).__name__}: {error}") from error
    if not isinstance(module, nn.Module):
        raise UsageError(f"expected an nn.Module from {source!r}, got {_described(module)}")
    return module


def _described(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
