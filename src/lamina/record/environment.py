"""Where a number was born: the machine and the software, without naming the host."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Environment:
    """Provenance of a run. A field is None where the machine has no such thing or does not tell."""

    date: str  # ISO 8601, UTC
    lamina: str
    commit: str | None  # of the lamina checkout, '+dirty' when tracked files differ from it
    device: str
    device_kind: str  # 'cpu' or 'cuda'
    os: str
    cpu: str
    cores: int
    threads: int  # of torch
    python: str
    torch: str
    numpy: str | None
    triton: str | None
    cuda: str | None
    cudnn: str | None
    driver: str | None = None
    compute_capability: str | None = None  # '9.0'
    sm_count: int | None = None
    l2_bytes: int | None = None
    memory_bytes: int | None = None
    mig: bool | None = None
    ecc: bool | None = None
    persistence: bool | None = None
    power_limit_w: float | None = None
    ncu: str | None = None  # version of Nsight Compute
    ncu_path: str | None = None

    def to_dict(self) -> dict[str, object]:
        """Plain values only, ready for JSON."""
        return asdict(self)
