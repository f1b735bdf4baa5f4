"""Builds modules and example inputs from descriptions: networks, models, datasets, tracing, dense algorithms."""

from lamina.build.calls import Call, Trace
from lamina.build.implementation import by_algorithm, dense, require_algorithm
from lamina.build.network import (
    DTYPES,
    SpecModule,
    build_layer,
    conversion,
    copied,
    stored_precision,
    to_precision,
)
from lamina.build.target import Target, from_external, from_network, from_zoo
from lamina.build.trace import trace
from lamina.build.traced import TracedNetwork
from lamina.build.units import as_module, chains, merged

__all__ = [
    "DTYPES",
    "Call",
    "SpecModule",
    "Target",
    "Trace",
    "TracedNetwork",
    "as_module",
    "build_layer",
    "by_algorithm",
    "chains",
    "conversion",
    "copied",
    "dense",
    "from_external",
    "from_network",
    "from_zoo",
    "merged",
    "require_algorithm",
    "stored_precision",
    "to_precision",
    "trace",
]
