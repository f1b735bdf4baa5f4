"""Printed settings of a simulated machine and its workload, compared with ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from lamina.errors import UsageError
from lamina.record.beside import Beside
from lamina.simulate.jobs import Job, unit
from lamina.spec.grid import Value
from lamina.spec.published import PublishedValue

BINARY = {"KB": 2**10, "MB": 2**20, "GB": 2**30}
NOT_MODELLED = ("shader arrays",)
"""Printed settings that the model does not have."""


def _filter(job: Job) -> str:
    height, width = job.gemm.window.kernel
    return f"{height}x{width}x{job.gemm.map[1]}x{job.gemm.m * job.gemm.groups}"


def _sparsity(job: Job) -> float:
    return round(100 * (1 - float(job.config["density"])), 6)


def _l2_beside_engine(job: Job) -> float:
    return job.device.l2.bytes * (1 - float(job.config["l2_share"]))


def _added(job: Job) -> int:
    return unit(job.unit).memory(job.device, job.options)


def _kilobytes(key: str) -> Callable[[Job], Value]:
    return lambda job: 1024 * int(job.config[key])


RULES: Mapping[str, Callable[[Job], Value]] = {
    "filter": _filter,
    "sparsity": _sparsity,
    "sparsity information block": _kilobytes("sib_kb"),
    "prefetch buffer": _kilobytes("buffer_kb"),
    "L2 beside the engine": _l2_beside_engine,
    "added SRAM": _added,
}
"""Quantities derived from a job's settings; all others are settings."""


def configured(value: PublishedValue, jobs: Iterable[Job]) -> Beside:
    """The configuration of jobs; several values are separated by a slash, as in papers.

    Raises:
        UsageError: it is no setting of theirs, and no rule tells it.
    """
    if value.quantity in NOT_MODELLED:
        return Beside(value, "not modelled", None)
    found = list(dict.fromkeys(_told(value, job) for job in jobs))
    ours = "/".join(f"{each:g}" if isinstance(each, float) else str(each) for each in found)
    return Beside(value, ours, ours == value.value if isinstance(value.value, str) else found == [value.value])


def _told(value: PublishedValue, job: Job) -> Value:
    """The value in the printed unit; units in ``BINARY`` are multiples of bytes."""
    if value.quantity in RULES:
        found = RULES[value.quantity](job)
    elif value.quantity in job.config:
        found = job.config[value.quantity]
    else:
        raise UsageError(f"{value.layer}: {value.quantity!r} is no setting of unit {job.unit!r}, and no rule tells it")
    scale = BINARY.get(value.unit)
    return float(found) / scale if scale else found
