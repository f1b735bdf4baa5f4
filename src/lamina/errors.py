"""The exception tree. Every error that lamina raises on purpose is one of these.

    LaminaError                 exit 1   the job ran and failed
    ├── UsageError              exit 2   an unknown name, or options that exclude each other
    │   ├── SpecError           exit 2   a workload file or layer description is wrong (all faults at once)
    │   └── StoreError          exit 2   the trace database cannot be used
    ├── MissingError            exit 3   a requested device, tool or package is not on this machine
    ├── UnsupportedError        exit 1   this implementation does not support this layer (becomes a failed row)
    ├── CheckError              exit 1   a result differs from float64 by more than the tolerance
    └── DeviceLostError         exit 1   a layer made the GPU unusable for this process

Any other exception is a defect of lamina: the command line writes the traceback to a file and exits with 70, or with 1
if a network's own code raised it. Ctrl-C exits with 130, SIGTERM with 143. A message names what was expected, what was
got, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

INTERNAL = 70
"""Exit code of an unexpected exception (EX_SOFTWARE of sysexits.h)."""
INTERRUPTED = 130
"""Exit code of an interrupted command (128 + SIGINT)."""
TERMINATED = 143
"""Exit code of a terminated command (128 + SIGTERM)."""

_LISTED = 20  # names in one message; longer lists have a command of their own


class LaminaError(Exception):
    """The root: a job that ran and failed."""

    exit_code = 1


class UsageError(LaminaError):
    """The request is wrong: an unknown name, or options that exclude each other."""

    exit_code = 2


class MissingError(LaminaError):
    """A requested device, tool or package is not on this machine."""

    exit_code = 3


class StoreError(UsageError):
    """The trace database cannot be used: unreadable, read-only, or from a newer lamina."""


class UnsupportedError(LaminaError):
    """An implementation does not support this layer; the run goes on and records the reason."""


class CheckError(LaminaError):
    """A result differs from its float64 reference by more than the tolerance allows."""


class DeviceLostError(LaminaError):
    """A layer raised an error after which CUDA refuses all work of this process, such as a device-side assertion."""

    def __init__(self, layer: str, reason: str):
        self.layer, self.reason = layer, reason
        super().__init__(
            f"{layer} made the GPU unusable for this process: {reason}; what was measured is stored: go on in a new "
            "process without this layer ('lamina bench', 'profile', 'study' and 'what-if' do so by themselves)"
        )


@dataclass(frozen=True)
class Fault:
    """One error in a file: the line, and what to do about it."""

    message: str
    line: int | None = None

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}" if self.line else self.message


class SpecError(UsageError):
    """Everything wrong with one workload file or network description, reported at once."""

    def __init__(self, source: str, faults: Sequence[Fault] | str):
        self.source = source
        self.faults = (Fault(faults),) if isinstance(faults, str) else tuple(faults)
        super().__init__("\n".join(f"{source}: {fault}" for fault in self.faults))


def nearest(name: str, known: Iterable[str]) -> str:
    """The hint that ends an unknown-name message: the closest known name, else all of them.

    >>> nearest("poling", ["pooling", "softmax"])
    "did you mean 'pooling'?"
    >>> nearest("x", ["b", "a"])
    'expected one of: a, b'
    """
    known = sorted(set(known))
    close = get_close_matches(name, known, n=1)
    if close:
        return f"did you mean '{close[0]}'?"
    more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
    return f"expected one of: {', '.join(known[:_LISTED])}{more}"
