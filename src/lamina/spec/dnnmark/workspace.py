"""DNNMark's workspace preferences of convolutions, which are cuDNN's, as a limit in bytes for each phase."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from lamina.spec.dnnmark.values import Warn

NONE, FASTEST, LIMITED = "no_workspace", "fastest", "specify_workspace_limit"
WORDS = (NONE, FASTEST, LIMITED)

PREFERENCES = {
    "conv_fwd_pref": ("algorithm", "workspace_limit"),
    "conv_bwd_data_pref": ("algorithm_data", "workspace_limit_data"),
    "conv_bwd_filter_pref": ("algorithm_weight", "workspace_limit_weight"),
}
"""Maps a key to the layer's fields: the algorithm of the phase, and its workspace limit."""


def limits(settings: Mapping[str, Any], algorithms: Mapping[str, str], warn: Warn) -> dict[str, int]:
    """The limit of each phase in bytes; none for ``fastest``.

    DNNMark passed the preferences to cuDNN where cuDNN chose the algorithm. lamina applies them where the vendor
    library does: to phases read as ``direct``.
    """
    found: dict[str, int] = {}
    wanted = {key: settings[key] for key in PREFERENCES if settings[key] != FASTEST}
    if settings["workspace_size"] and LIMITED not in wanted.values():
        warn(f"workspace_size has no effect: no preference is {LIMITED}")
    for key, word in wanted.items():
        algorithm, field = PREFERENCES[key]
        if algorithms[algorithm] != "direct":
            warn(f"{key}={word} has no effect on {algorithms[algorithm]}, which does not use cuDNN's workspace")
        elif settings["mode"] == "transpose":
            warn(f"{key}={word} has no effect on transposed convolutions")
        else:
            found[field] = limit = 0 if word == NONE else settings["workspace_size"]
            warn(f"{key}={word}: {_effect(limit)}")
    return found


def _effect(limit: int) -> str:
    if find_spec("cudnn") is None:
        return "has no effect without the package nvidia-cudnn-frontend"
    return f"on a GPU, cuDNN's first engine with a workspace of at most {limit} bytes; no effect on the CPU"
