"""A dictionary of limited size, for caches that live as long as the process."""

from __future__ import annotations

from threading import Lock
from typing import Generic, TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class BoundedCache(dict[_Key, _Value], Generic[_Key, _Value]):
    """A dictionary that evicts its oldest entry when it is full. Write with `put`; threads may read and write at once.

    Args:
        capacity: the largest number of entries.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self._lock = Lock()

    def put(self, key: _Key, value: _Value) -> None:
        """Add or replace an entry; a replaced one keeps its age."""
        with self._lock:
            while len(self) >= self.capacity and key not in self:
                del self[next(iter(self))]
            self[key] = value

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            super().clear()
