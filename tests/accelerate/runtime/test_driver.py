"""The arguments of driver calls, read back from the memory that they point to."""

import ctypes
import struct
from typing import Any

import pytest
import torch

from lamina.accelerate.runtime import driver as driver
from lamina.errors import MissingError

FUNCTION = ctypes.c_void_p(7)


class Library:
    """A fake driver that keeps the arguments of its calls."""

    code = 0
    context: int | None = None

    def cuCtxGetCurrent(self, context: Any) -> int:
        context._obj.value = self.context
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:
        device._obj.value = 10 + index
        return self.code

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:
        context._obj.value = 100 + device.value
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:
        self.context = context.value
        return 0

    def cuModuleLoadData(self, module: Any, binary: bytes) -> int:
        module._obj.value, self.binary = 5, binary
        return 0

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        function._obj.value, self.name = module.value + 2, name
        return self.code

    def cuFuncSetAttribute(self, function: Any, attribute: int, value: int) -> int:
        self.attribute_set = function.value, attribute, value
        return self.code

    def cuGetErrorString(self, code: int, text: Any) -> int:
        text._obj.value = b"invalid argument" if code == 1 else None
        return 0

    def cuLaunchKernelEx(self, config: Any, function: Any, addresses: Any, extra: None) -> int:
        self.config = ctypes.string_at(ctypes.cast(config, ctypes.c_void_p), 56)
        self.attribute = ctypes.string_at(struct.unpack_from("<Q", self.config, 40)[0], 72)
        self.function, self.extra = function, extra
        self.values = [ctypes.string_at(address, 8) for address in addresses]
        return self.code


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setattr(driver, "_driver", lambda: made)
    return made


@pytest.mark.parametrize("pdl", [False, True])
def test_a_launch_has_the_layout_of_the_drivers_header(library: Library, pdl: bool) -> None:
    x = torch.zeros(3)
    queue = driver.launcher(FUNCTION, (5, 4, 3), (32, 2, 1), [x, -9, 0.5], 1024, pdl)
    queue(0x1002, x.data_ptr(), -9, 0.5)
    # CUlaunchConfig: grid, block, bytes of shared memory; aligned to 8 bytes: stream, attributes, their count.
    assert struct.unpack_from("<7I", library.config) == (5, 4, 3, 32, 2, 1, 1024)
    assert struct.unpack_from("<Q", library.config, 32) == (0x1002,)
    assert struct.unpack_from("<I", library.config, 48) == (int(pdl),)
    assert struct.unpack_from("<i4xi", library.attribute) == (6, 1)  # programmatic stream serialization, allowed
    assert (library.function.value, library.extra) == (7, None)
    assert struct.unpack("<Q", library.values[0]) == (x.data_ptr(),)
    assert struct.unpack_from("<i", library.values[1]) == (-9,)
    assert struct.unpack("<d", library.values[2]) == (0.5,)


def test_a_function_is_loaded_by_its_name(library: Library) -> None:
    function = driver.load(b"cubin", "scale")
    assert (function.value, library.binary, library.name) == (7, b"cubin", b"scale")
    driver.allow_shared_memory(function, 65536)
    assert library.attribute_set == (7, 8, 65536)  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


def test_a_thread_without_a_context_gets_that_of_its_device(library: Library) -> None:
    driver.enter_context(3)
    assert library.context == 113
    driver.enter_context(4)
    assert library.context == 113, "it has one"
    library.context, library.code = None, 999
    with pytest.raises(RuntimeError, match="CUDA error: 999"):
        driver.enter_context(3)


def test_a_launch_in_a_thread_without_a_context_has_that_of_the_first(library: Library) -> None:
    library.context = 113
    queue = driver.launcher(FUNCTION, (1, 1, 1), (1, 1, 1), [], 0, False)
    library.context = None
    queue(0)
    assert library.context == 113
    library.context = 114
    queue(0)
    assert library.context == 114, "it has one"


@pytest.mark.parametrize(("code", "message"), [(1, "CUDA error: invalid argument"), (999, "CUDA error: 999")])
def test_errors_of_the_driver_are_raised(library: Library, code: int, message: str) -> None:
    library.code = code
    queue = driver.launcher(FUNCTION, (1, 1, 1), (1, 1, 1), [], 0, False)
    for call in (lambda: queue(0), lambda: driver.load(b"", "f"), lambda: driver.allow_shared_memory(FUNCTION, 1)):
        with pytest.raises(RuntimeError, match=message):
            call()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a driver")
def test_without_a_driver_it_is_missing() -> None:
    with pytest.raises(MissingError, match="expected the CUDA driver"):
        driver.load(b"", "f")


@pytest.mark.gpu
def test_the_driver_names_its_errors() -> None:
    torch.zeros(1, device="cuda")
    with pytest.raises(RuntimeError, match="CUDA error: .*(image|source)"):
        driver.load(b"no binary", "f")
