"""CUDA sources compiled at run time: refused launches, compiler errors and, on a GPU, results."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from tests import compiling

from lamina.accelerate.runtime import nvrtc as cuda
from lamina.accelerate.runtime.nvrtc import Kernel, check_launch, compiled
from lamina.errors import LaminaError, MissingError, UsageError

SCALE = """
extern "C" __global__ void scale(const float* in, float* out, int size, double by) {
  extern __shared__ float part[];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= size) return;
  part[threadIdx.x] = in[i];
  out[i] = OFFSET + by * part[threadIdx.x];
}
"""
X = torch.zeros(4, 4)


@pytest.fixture(autouse=True)
def binary_cache(own_binaries: None) -> Iterator[None]:
    """Binaries are cached in a folder of the test's own."""
    compiled.cache_clear()
    yield
    compiled.cache_clear()


@pytest.mark.parametrize(
    ("grid", "block", "args", "shared", "words"),
    [
        ((0,), (1,), [], 0, "grid: expected one to three sizes of at least 1, got (0,)"),
        ((1, 1, 1, 1), (1,), [], 0, "grid: expected one to three sizes"),
        ((1, 65536), (1,), [], 0, "grid: expected at most (2147483647, 65535, 65535) blocks, got (1, 65536)"),
        ((1,), (33, 32), [], 0, "block: expected at most 1024 threads"),
        ((1,), (1, 1, 65), [], 0, "block: expected at most 1024 threads, 64 of them along z, got (1, 1, 65)"),
        ((1,), (1,), [], -4, "shared: expected a size in bytes, got -4"),
        ((1,), (1,), [X, X.mT], 0, "argument 1: expected a contiguous tensor, got shape (4, 4) with strides (1, 4)"),
        ((1,), (1,), [torch.zeros(2, dtype=torch.complex64).conj()], 0, "argument 0: expected materialized values"),
        ((1,), (1,), [2**31], 0, "argument 0: expected a value that fits an int, got 2147483648"),
        ((1,), (1,), ["4"], 0, "argument 0: expected a tensor, an int or a float, got '4'"),
        ((1,), (1,), [True], 0, "argument 0: expected a tensor, an int or a float, got True"),
        ((1,), (1,), [X, torch.zeros(1, device="meta")], 0, "expected tensors on one device, got cpu, meta"),
    ],
)
def test_a_launch_beyond_every_devices_limits_is_refused(
    grid: cuda.Size, block: cuda.Size, args: cuda.Arguments, shared: int, words: str
) -> None:
    with pytest.raises(UsageError) as raised:
        check_launch("scale", grid, block, args, shared)
    assert str(raised.value).startswith(f"scale: {words}")


def test_a_checked_launch_returns_the_device_of_its_tensors() -> None:
    assert check_launch("scale", (2**31 - 1, 65535), (32, 16, 2), [X, 1, 0.5], 49152) == torch.device("cpu")
    assert check_launch("scale", (1,), (1,), [1], 0) is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_is_missing() -> None:
    with pytest.raises(MissingError, match="scale: expected a CUDA device"):
        Kernel(SCALE, "scale").launch((1,), (1,), [X])


def test_without_nvrtc_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda.ctypes, "CDLL", Mock(side_effect=OSError))
    monkeypatch.setattr(cuda, "_nvrtc", cuda._nvrtc.__wrapped__)
    with pytest.raises(MissingError, match="expected NVRTC"):
        compiled(SCALE, "sm_90")


class Driver:
    """A fake driver that records its calls and refuses more than 512 threads."""

    def enter_context(self, index: int) -> None:
        self.context = index

    def __init__(self) -> None:
        self.calls: list[object] = []

    def allow_shared_memory(self, function: str, size: int) -> None:
        self.calls.append(size)

    def launcher(
        self, function: str, grid: cuda.Size, block: cuda.Size, args: object, *rest: object
    ) -> Callable[..., None]:
        def queue(stream: int, *args: object) -> None:
            if block > (512, 1, 1):
                raise RuntimeError("CUDA error: too many resources requested for launch")
            self.calls.append((function, grid, block, stream, *args, *rest))

        return queue


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(cuda, "driver", made)
    monkeypatch.setattr(cuda, "supports_pdl", lambda device: True)
    monkeypatch.setattr(cuda, "check_launch", lambda *_: torch.device("cuda", 0))
    monkeypatch.setattr(Kernel, "_on", lambda self, index: "scale")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(cuda, "raw_stream", lambda index: 9)
    return made


def test_a_launch_reaches_the_driver(driver: Driver) -> None:
    Kernel(SCALE, "scale").launch((4, 2), (32,), [X, 3], 100)
    assert driver.calls == [("scale", (4, 2, 1), (32, 1, 1), 9, X.data_ptr(), 3, 100, False)]


@pytest.mark.parametrize("can", [False, True])
def test_pdl_is_used_where_the_device_has_it(driver: Driver, monkeypatch: pytest.MonkeyPatch, can: bool) -> None:
    monkeypatch.setattr(cuda, "supports_pdl", lambda device: can)
    Kernel(SCALE, "scale", pdl=True).launch((1,), (32,), [X])
    assert driver.calls[0][-1] is can  # type: ignore[index]


def test_more_than_48_kib_of_shared_memory_are_allowed_first_and_once(driver: Driver) -> None:
    kernel = Kernel(SCALE, "scale")
    for size in (65536, 50000, 65537):
        kernel.launch((1,), (32,), [X], size)
    assert [call for call in driver.calls if isinstance(call, int)] == [65536, 65537]
    assert driver.calls[0] == 65536 and len(driver.calls) == 5


def test_a_launch_that_the_driver_refuses_raises(driver: Driver) -> None:
    with pytest.raises(LaminaError, match=r"blocks of \(1024,\) threads failed: .*too many resources"):
        Kernel(SCALE, "scale").launch((4,), (1024,), [X])


def test_binaries_are_cached_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def compile_(source: str, architecture: str, options: tuple[str, ...]) -> bytes:
        made.append(architecture)
        return f"{source} {architecture} {options}".encode()

    monkeypatch.setattr(cuda, "_compile", compile_)
    sources = [(SCALE, "sm_90", ("-DOFFSET=1",)), (SCALE, "sm_80", ("-DOFFSET=1",)), (SCALE, "sm_90", ("-DOFFSET=2",))]
    first = [compiled(*one) for one in sources]
    compiled.cache_clear()
    assert [compiled(*one) for one in sources] == first
    assert made == ["sm_90", "sm_80", "sm_90"]
    assert len(list((tmp_path / "lamina").iterdir())) == 3  # and nothing half written


def test_without_a_writable_folder_nothing_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lamina").write_text("in the way")
    monkeypatch.setattr(cuda, "_compile", lambda *_: b"binary")
    assert compiled(SCALE, "sm_90") == b"binary"


@compiling.needs_nvrtc
def test_binaries_are_for_the_named_architecture() -> None:
    binary = compiled(SCALE, "sm_90", ("-DOFFSET=2",))
    assert binary.startswith(b"\x7fELF")
    assert b"scale" in binary


@compiling.needs_nvrtc
def test_a_source_that_does_not_compile_shows_the_compilers_log() -> None:
    with pytest.raises(LaminaError, match='for sm_90:\n.*"OFFSET" is undefined'):
        compiled(SCALE, "sm_90")


@pytest.mark.gpu
@pytest.mark.parametrize("shared", [4 * 128, 64 * 1024])
def test_a_kernel_computes(shared: int) -> None:
    x = torch.randn(1000, device="cuda")
    out = torch.empty_like(x)
    kernel = Kernel(SCALE, "scale", macros={"OFFSET": 2})
    kernel.launch((8,), (128,), [x, out, len(x), 0.5], shared)
    torch.testing.assert_close(out, 2 + 0.5 * x)


@pytest.mark.gpu
def test_a_new_thread_launches_before_it_calls_the_runtime() -> None:
    x = torch.randn(128, device="cuda")
    out = torch.empty_like(x)
    kernel = Kernel(SCALE, "scale", macros={"OFFSET": 5})
    for _ in range(2):  # it is loaded in the first thread
        out.zero_()
        torch.cuda.synchronize()
        with ThreadPoolExecutor(1) as thread:
            thread.submit(kernel.launch, (1,), (128,), [x, out, len(x), 2.0], 512).result()
        torch.testing.assert_close(out, 5 + 2 * x)


DEPENDENT = """
extern "C" __global__ void slow(float* x, int turns) {
  griddepcontrol_wait();
  float y = x[threadIdx.x];
  for (int i = 0; i < turns; ++i) y = y * 0.5f + 1.0f;
  x[threadIdx.x] = y + 1.0f;
}
"""


@pytest.mark.gpu
def test_programmatic_dependent_launches_see_the_writes_of_the_kernel_in_front() -> None:
    source = cuda.with_common_header() + DEPENDENT
    kernel = Kernel(source, "slow", pdl=True)
    x = torch.zeros(64, device="cuda")
    for _ in range(100):
        kernel.launch((1,), (64,), [x, 100_000])  # to 2, and one more
        x -= 1
        kernel.launch((1,), (64,), [x, 0])
    assert (x == 3).all()


@pytest.mark.gpu
def test_a_kernel_can_be_captured_in_a_cuda_graph() -> None:
    x = torch.randn(128, device="cuda")
    out = torch.empty_like(x)
    kernel = Kernel(SCALE, "scale", macros={"OFFSET": 0})
    kernel.launch((1,), (128,), [x, out, len(x), 2.0], 512)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel.launch((1,), (128,), [x, out, len(x), 2.0], 512)
    x.fill_(3)
    graph.replay()
    assert (out == 6).all()


@pytest.mark.gpu
def test_a_missing_function_is_named() -> None:
    with pytest.raises(LaminaError, match="absent"):
        Kernel("", "absent").launch((1,), (1,), [torch.zeros(1, device="cuda")])


@pytest.mark.gpu
def test_tensors_of_the_cpu_are_refused() -> None:
    with pytest.raises(UsageError, match="expected tensors on a CUDA device, got cpu"):
        Kernel(SCALE, "scale").launch((1,), (1,), [X])


def test_macros_become_options() -> None:
    assert cuda.definitions({"K": 16, "TYPE": "float"}) == ("-DK=16", "-DTYPE=float")
