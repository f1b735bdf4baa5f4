"""Recorded launches reach the driver with the addresses and values of the call that replays them."""

import ctypes
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from lamina.accelerate.runtime import driver, launch_cache
from lamina.accelerate.runtime.launch_cache import STREAM, KernelLaunch
from lamina.accelerate.runtime.replay import ReplayedOperator

SIZES = {"*fp32": 8, "i32": 4, "i64": 8, "fp32": 4, "fp64": 8}
TYPES = ("*fp32", "i32", "*fp32", "fp32", "i64", "fp64")
FUNCTION, CONTEXT = 1234, 5678


class Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint),
    )  # fmt: skip


class FakeDriver:
    """Keeps what launches ask for."""

    def __init__(self) -> None:
        self.launches: list[dict[str, Any]] = []
        self.error = 0
        self.contexts = {threading.get_ident(): CONTEXT}  # by thread
        signature = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(Config), ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p
        )
        contexts = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
        context = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
        self.entries = signature(self.launch), contexts(self.get), context(self.set)

    def get(self, context: Any) -> int:
        context[0] = self.contexts.get(threading.get_ident())
        return 0

    def set(self, context: int) -> int:
        self.contexts[threading.get_ident()] = context
        return 0

    def launch(self, config: Any, function: int, params: Any, extra: Any) -> int:
        given = config.contents
        sizes = [SIZES[type_] for type_ in TYPES] + [8, 8]
        values = [ctypes.string_at(params[i], size) for i, size in enumerate(sizes)]
        self.launches.append({
            "function": function, "grid": tuple(given.grid), "block": tuple(given.block), "shared": given.shared,
            "attributes": given.count, "values": values,
        })  # fmt: skip
        return self.error


@pytest.fixture
def fake(native: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    if torch.cuda.is_available():
        pytest.skip("launches would not reach the GPU")
    found = FakeDriver()
    native.use_driver(*(ctypes.cast(entry, ctypes.c_void_p).value for entry in found.entries))
    sizes = [SIZES[type_] for type_ in TYPES] + [8, 8]
    monkeypatch.setattr(driver, "parameter_sizes", lambda function: sizes)
    yield found
    native.use_driver(0, 0, 0)


def run(x: Tensor, offset: int) -> Tensor:
    out = x.new_empty(2, 3)
    values = (x[1:], offset, out, 1.5, -1, 0.1)
    kernel = KernelLaunch(FUNCTION, (4, 2, 1), (64, 1, 1), 100, True, TYPES, values, 2)
    launch_cache.record_launch(lambda *_: None, STREAM, *values, addresses=True, kernel=kernel)
    return out


def address(tensor: Tensor) -> bytes:
    return struct.pack("<Q", tensor.data_ptr())


def replayed(x: Tensor, replay: ReplayedOperator) -> Tensor:
    out = None
    for _ in range(2):
        out = replay((x, 7))
    assert out is not None
    return out  # type: ignore[no-any-return]


def test_a_launch_has_the_addresses_and_values_of_its_call(fake: FakeDriver) -> None:
    replay = ReplayedOperator("Backward", run, lambda *_: None, lambda *_: None)
    for x in (torch.ones(3, 4), torch.ones(3, 4)):
        fake.launches.clear()
        out = replayed(x, replay)
        assert out.shape == (2, 3)
        (launch,) = fake.launches[-1:]
        assert launch["function"] == FUNCTION and launch["grid"] == (4, 2, 1) and launch["block"] == (64, 1, 1)
        assert launch["shared"] == 100 and launch["attributes"] == 1
        assert launch["values"] == [
            address(x[1:]), struct.pack("<i", 7), address(out), struct.pack("<f", 1.5), struct.pack("<q", -1),
            struct.pack("<d", 0.1), bytes(8), bytes(8),
        ]  # fmt: skip


def test_tensors_of_kernels_alone_share_an_allocation(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(x: Tensor, offset: int) -> Tensor:
        first, second, out = x.new_empty(3, 5), x.new_empty(7), x.new_empty(2, 3)
        filled = x.new_empty(4).fill_(1.0)  # by an operator
        for left, right in ((first, second[2:]), (second, filled), (filled, out)):
            values = (left, offset, right, 1.5, -1, 0.1)
            kernel = KernelLaunch(FUNCTION, (1, 1, 1), (32, 1, 1), 0, False, TYPES, values, 2)
            launch_cache.record_launch(lambda *_: None, STREAM, *values, addresses=True, kernel=kernel)
        return out

    out = replayed(torch.ones(3, 4), ReplayedOperator("Backward", run, lambda *_: None, lambda *_: None))
    pairs = [[struct.unpack("<Q", launch["values"][i])[0] for i in (0, 2)] for launch in fake.launches[-3:]]
    (first, inside), (second, filled), (again, last) = pairs
    assert second == first + 512 and inside == second + 2 * 4
    assert filled == again and last == out.data_ptr()
    assert not {filled, last} & {first, second} and not first <= last < first + 1024


def test_a_thread_without_a_context_gets_that_of_the_recording(fake: FakeDriver) -> None:
    replay = ReplayedOperator("Backward", run, lambda *_: None, lambda *_: None)
    x = torch.ones(3, 4)
    replayed(x, replay)
    thread = threading.Thread(target=replay, args=((x, 7),))
    before = len(fake.launches)
    thread.start()
    ident = thread.ident
    thread.join()
    assert len(fake.launches) == before + 1 and fake.contexts[ident] == CONTEXT


def test_a_launch_that_the_driver_refuses_raises(fake: FakeDriver) -> None:
    fake.error = 701
    with pytest.raises(RuntimeError, match="CUDA error: 701"):
        replayed(torch.ones(3, 4), ReplayedOperator("Backward", run, lambda *_: None, lambda *_: None))


def test_a_kernel_with_other_parameters_is_left_to_python(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "parameter_sizes", lambda function: [8, 8])
    replay = ReplayedOperator("Backward", run, lambda *_: None, lambda *_: None)
    assert [replay((torch.ones(3, 4), 7)) for _ in range(4)] == [None] * 4


def test_a_change_of_an_input_is_left_to_python(native: Any) -> None:
    def run(x: Tensor) -> Tensor:
        x.add_(1)
        return x * 2

    replay = ReplayedOperator("Backward", run, lambda *_: None, lambda *_: None)
    x = torch.zeros(2)
    assert [replay((x,)) for _ in range(4)] == [None] * 4


def test_operators_keep_their_options(native: Any) -> None:
    def run(x: Tensor, dim: int) -> tuple[Tensor, ...]:
        half = x.sum(dim, keepdim=True, dtype=torch.float64).to(torch.float16, copy=True)
        like = torch.zeros(2, 3, dtype=torch.bfloat16, device=x.device)
        filled = x.new_empty(3, 2).fill_(2.5).t()
        return half, like, filled, x.permute(1, 0).contiguous()

    replay = ReplayedOperator("Backward", run, lambda *_: None, lambda *_: None)
    x = torch.arange(6.0).reshape(2, 3)
    for _ in range(4):
        out = replay((x, 1))
    assert out is not None
    for ours, theirs in zip(out, run(x, 1), strict=True):
        assert torch.equal(ours, theirs) and ours.dtype == theirs.dtype and ours.stride() == theirs.stride()
