"""What waits for the GPU, found out."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def no_waiting() -> Iterator[None]:
    """Whatever waits for the device is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode is a prototype, said once in a process
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
