"""A conclusion about a layer or a network, with what it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """``claim`` in words a person can act on; ``evidence`` the numbers behind it; ``confidence`` from 0 to 1.

    ``layer`` is ``None`` for the network as a whole.
    """

    layer: str | None
    phase: str | None
    rule: str
    claim: str
    evidence: Mapping[str, float | str | None]
    confidence: float


@dataclass(frozen=True)
class Roofline:
    """Where a measured phase stands on the roofline of its machine.

    ``attainable_gflops`` is the lower of the peak rate and intensity times bandwidth; ``bound`` names which.
    ``share`` is the achieved part of the attainable rate, by operations or, for layers without, by bytes.
    """

    intensity: float | None
    achieved_gflops: float | None
    attainable_gflops: float | None
    bound: str
    share: float | None
