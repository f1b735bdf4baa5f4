"""Published costs of the data fission unit, which are reported and not computed."""

from __future__ import annotations

from dataclasses import dataclass

SOURCE = (
    "P. Hill et al., DeftNN: Addressing Bottlenecks for DNN Execution on GPUs via Synapse Vector Elimination and "
    "Near-compute Data Fission, MICRO-50, 2017, section 5.5, https://doi.org/10.1145/3123939.3123970"
)


@dataclass(frozen=True)
class Hardware:
    """Cost of a unit next to every floating-point unit of an NVIDIA Titan X (Pascal).

    The paper gives the area overhead as 0.25 % in the section on synthesis and as 0.22 % in that on the architecture.
    """

    area_mm2: float = 1.20
    area_shares: tuple[float, float] = (0.0022, 0.0025)
    watts: float = 2.48
    power_share: float = 0.0099
    process: str = "ARM Artisan IBM SOI 45 nm"
    source: str = SOURCE


HARDWARE = Hardware()
