"""What the driver is told of a launch, read back from the memory that it is given."""

import ctypes
import struct
from typing import Any

import pytest
import torch
from torch.cuda import _utils

from lamina.accelerate.runtime import driver as driver


class Library:
    """Stands for the driver: keeps what a launch gave it."""

    def cuLaunchKernelEx(self, config: Any, function: Any, addresses: Any, extra: None) -> int:
        self.config = ctypes.string_at(ctypes.cast(config, ctypes.c_void_p), 56)
        self.attribute = ctypes.string_at(struct.unpack_from("<Q", self.config, 40)[0], 72)
        self.function, self.extra = function, extra
        self.values = [ctypes.string_at(address, 8) for address in addresses]
        return 0


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setattr(_utils, "_get_gpu_runtime_library", lambda: made)
    return made


@pytest.mark.parametrize("early", [False, True])
def test_the_driver_reads_a_launch_where_its_header_says(library: Library, early: bool) -> None:
    x = torch.zeros(3)
    queue = driver.launcher(ctypes.c_void_p(7), (5, 4, 3), (32, 2, 1), [x, -9, 0.5], 1024, early)
    queue(0x1002, x.data_ptr(), -9, 0.5)
    # CUlaunchConfig: grid and block, bytes of shared memory, and at whole eights the stream, attributes, how many.
    assert struct.unpack_from("<7I", library.config) == (5, 4, 3, 32, 2, 1, 1024)
    assert struct.unpack_from("<Q", library.config, 32) == (0x1002,)
    assert struct.unpack_from("<I", library.config, 48) == (int(early),)
    assert struct.unpack_from("<i4xi", library.attribute) == (6, 1)  # programmatic stream serialization, allowed
    assert (library.function.value, library.extra) == (7, None)
    assert struct.unpack("<Q", library.values[0]) == (x.data_ptr(),)
    assert struct.unpack_from("<i", library.values[1]) == (-9,)
    assert struct.unpack("<d", library.values[2]) == (0.5,)


def test_what_the_driver_refuses_is_raised(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(code: int) -> None:
        raise RuntimeError("CUDA error: invalid argument")

    monkeypatch.setattr(_utils, "_check_cuda", refused)
    queue = driver.launcher(ctypes.c_void_p(7), (1, 1, 1), (1, 1, 1), [], 0, False)
    with pytest.raises(RuntimeError, match="invalid argument"):
        queue(0)
