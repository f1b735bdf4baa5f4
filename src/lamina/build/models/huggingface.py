"""Networks of Hugging Face's transformers from their configurations, without weights and without downloads."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import nn

from lamina.errors import UsageError, nearest


def model_types(transformers: Any) -> list[str]:
    """Model types, such as ``bert``."""
    return [*transformers.CONFIG_MAPPING.keys()]


def of_type(transformers: Any, name: str, settings: Mapping[str, str]) -> nn.Module:
    """The base network of a model type: ``AutoModel.from_config``, without a head.

    Raises:
        UsageError: the type has no base network, or a setting is wrong.
    """
    config = _config(transformers.CONFIG_MAPPING[name], settings)
    if type(config) not in transformers.MODEL_MAPPING:
        raise UsageError(f"transformers has no base network of type {name!r}; name a class, such as BertModel")
    return _built(lambda: transformers.AutoModel.from_config(config))


def of_class(network: Any, settings: Mapping[str, str]) -> nn.Module:
    """A network of a class, such as ``GPT2LMHeadModel``, from its default configuration and ``settings``."""
    config = _config(network.config_class, settings)
    return _built(lambda: network(config))


def _config(config_class: Any, settings: Mapping[str, str]) -> Any:
    values: dict[str, Any] = {}
    default = config_class()
    for key, text in settings.items():
        *path, last = key.split(".")
        owner, inner = default, values
        for part in path:
            owner, inner = getattr(owner, part, None), inner.setdefault(part, {})
        if not hasattr(owner, last):
            known = owner.to_dict() if hasattr(owner, "to_dict") else default.to_dict()
            raise UsageError(f"--set: {config_class.__name__} has no {key!r}: {nearest(last, known)}")
        inner[last] = _value(text)
    try:
        return config_class(**values)
    except Exception as error:
        given = ", ".join(f"{key}={text}" for key, text in settings.items())
        raise UsageError(f"--set: {config_class.__name__} cannot have {given}: {error}") from error


def _value(text: str) -> Any:
    """JSON, or Python's ``True``, ``False`` and ``None``, or else the text itself."""
    words = {"True": True, "False": False, "None": None}
    if text in words:
        return words[text]
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _built(build: Any) -> nn.Module:
    with _offline():
        if torch.get_default_device().type != "meta":
            with torch.device("meta"):
                _require_memory(build())
        return build()  # type: ignore[no-any-return]


def _require_memory(module: nn.Module) -> None:
    """Refuse a network whose weights and gradients exceed the memory of this machine, before it is filled."""
    needed = 2 * sum(weight.nbytes for weight in module.parameters())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory:
        raise UsageError(
            f"{type(module).__name__} needs {needed / 1e9:.0f} GB for weights and gradients, this machine has "
            f"{memory / 1e9:.0f} GB; make it smaller, such as --set num_hidden_layers=2"
        )


@contextmanager
def _offline() -> Iterator[None]:
    """No downloads: configurations of some networks name a pretrained part."""
    try:
        constants: Any = import_module("huggingface_hub").constants
    except ImportError:
        yield
        return
    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
