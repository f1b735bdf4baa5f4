"""Measurements of published tables and figures: their recorded rows, how rows are judged, and how to take them.

Every module defines ``MEASUREMENT``; ``counted`` defines several.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from lamina.errors import UsageError, nearest
from lamina.pipeline.reproduce.measured.judging import Measurement

MODULES: Mapping[str, str] = {
    "circulant-ladder": "ladder",
    "circulant-counters": "ladder_counters",
    "circulant-batches": "batches",
    "circulant-layers": "circulant_layers",
    "circulant-accuracy": "accuracy",
    "activation-zeros": "zeros",
    "monitor-overhead": "monitor",
    "sparse-libraries": "sparse_libraries",
    "elimination": "elimination",
    "deft-networks": "deft_networks",
    "deft-library": "deft_networks:LIBRARY",
    "on-chip-fission": "fission",
    "what-if": "changes",
    "l1-bypass": "bypass",
    "accuracy-front": "front",
    "monitor-parameters": "counted:MONITOR",
    "circulant-sizes": "counted:CIRCULANT_SIZES",
    "networks": "counted:NETWORKS",
    "applications": "counted:APPLICATIONS",
    "launches": "counted:LAUNCH",
    "locality": "locality",
    "gradients": "gradients",
    "training-speedup": "training_speedup",
}
"""The module of each measurement, and the attribute if it is not ``MEASUREMENT``."""


def measurement(name: str) -> Measurement:
    """The measurement of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in MODULES:
        raise UsageError(f"measurement {name!r} is unknown: {nearest(name, MODULES)}")
    module, _, attribute = MODULES[name].partition(":")
    found = getattr(import_module(f"{__name__}.{module}"), attribute or "MEASUREMENT")
    assert isinstance(found, Measurement)
    return found
