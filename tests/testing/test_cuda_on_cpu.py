"""Threads, blocks, barriers and shared memory of CUDA sources that run on the CPU."""

import shutil

import pytest
import torch

from lamina.errors import LaminaError, UsageError
from lamina.testing.cuda_on_cpu import KernelOnCpu

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

SOURCE = """
#ifndef FACTOR
#define FACTOR 1
#endif

extern "C" __global__ void places(int* out) {
  int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] += FACTOR * (1000 * block + thread);
}

// Each block turns its part around, through memory that all of its threads share.
extern "C" __global__ void reversed(const float* __restrict__ in, float* __restrict__ out, int size) {
  extern __shared__ float part[];
  int first = blockIdx.x * blockDim.x, t = threadIdx.x;
  if (first + t >= size) return;
  int length = min(int(blockDim.x), size - first);
  part[t] = in[first + t];
  __syncthreads();
  out[first + t] = part[length - 1 - t];
}

extern "C" __global__ void sum(const float2* in, float2* out) {
  __shared__ float2 partial[64];
  partial[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      partial[threadIdx.x].x += partial[threadIdx.x + half].x;
      partial[threadIdx.x].y += partial[threadIdx.x + half].y;
    }
  }
  if (threadIdx.x == 0) out[blockIdx.x] = partial[0];
}

__device__ __forceinline__ float* scratch() {
  __shared__ float numbers[32 * FACTOR];
  return numbers;
}

extern "C" __global__ void through_scratch(const float* in, float* out) {
  scratch()[32 * FACTOR - 1 - threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = scratch()[32 * FACTOR - 1 - threadIdx.x];
}

extern "C" __global__ void unwritten(float* out) {
  extern __shared__ float part[];
  out[blockIdx.x] = part[0];
  __syncthreads();
  part[0] = 1.0f;
}

// Without the barrier that each of the two needs.
extern "C" __global__ void first_to_all(float* out) {
  __shared__ float value;
  if (threadIdx.x == 0) value = 1.0f + blockIdx.x;
  out[blockIdx.x * blockDim.x + threadIdx.x] = value;
}

extern "C" __global__ void all_to_first(float* out) {
  __shared__ float value[8];
  value[threadIdx.x] = 1.0f + blockIdx.x;
  if (threadIdx.x > 0) return;
  out[blockIdx.x] = 0;
  for (int t = 0; t < 8; ++t) out[blockIdx.x] += value[t];
}

extern "C" __global__ void count(int* total, double scale) { atomicAdd(total, int(scale)); }

extern "C" __global__ void largest(int* total) { atomicMax(total, int(threadIdx.x * 7 % 8 + blockIdx.x)); }
"""


def kernel(name: str, **macros: int) -> KernelOnCpu:
    return KernelOnCpu(SOURCE, name, macros=macros)


@pytest.mark.parametrize(("name", "size", "expected"), [("first_to_all", 24, 1.0), ("all_to_first", 3, 8.0)])
def test_a_missing_barrier_shows(name: str, size: int, expected: float) -> None:
    out = torch.empty(size)
    kernel(name).launch((3,), (8,), [out])
    block = torch.arange(3).repeat_interleave(size // 3)
    assert not torch.equal(out, expected * (1 + block))


@pytest.mark.parametrize("macros", [{}, {"FACTOR": 3}], ids=["as it is", "with a macro"])
def test_every_thread_of_every_block_runs_once(macros: dict[str, int]) -> None:
    out = torch.zeros(2 * 3 * 2, 4 * 2 * 3, dtype=torch.int32)
    kernel("places", **macros).launch((2, 3, 2), (4, 2, 3), [out])
    expected = 1000 * torch.arange(12)[:, None] + torch.arange(24)
    assert torch.equal(out, (macros.get("FACTOR", 1) * expected).int())


@pytest.mark.parametrize("size", [32, 77])
def test_threads_wait_for_each_other_but_not_for_those_that_returned(size: int) -> None:
    x, out = torch.randn(size), torch.empty(size)
    kernel("reversed").launch((-(-size // 32),), (32,), [x, out, size], shared=4 * 32)
    assert torch.equal(out, torch.cat([part.flip(0) for part in x.split(32)]))


def test_static_shared_memory_is_a_block_s_own() -> None:
    x = torch.randint(-50, 50, (5, 64, 2)).float()
    out = torch.empty(5, dtype=torch.complex64)
    kernel("sum").launch((5,), (64,), [torch.view_as_complex(x), out])
    assert torch.equal(torch.view_as_real(out), x.sum(1))


def test_sources_with_other_macros_do_not_share_memory() -> None:
    x = torch.randn(96)
    for factor in (1, 3):
        out = torch.empty(32 * factor)
        KernelOnCpu(SOURCE, "through_scratch", macros={"FACTOR": factor} if factor > 1 else {}).launch(
            (1,), (32 * factor,), [x, out]
        )
        assert torch.equal(out, x[: 32 * factor])


def test_dynamic_shared_memory_holds_nothing_from_the_block_before() -> None:
    out = torch.zeros(3)
    kernel("unwritten").launch((3,), (1,), [out], shared=4)
    assert out.isnan().all()


def test_atomic_additions_are_all_seen() -> None:
    total = torch.zeros(1, dtype=torch.int32)
    kernel("count").launch((4,), (32,), [total, 2.0])
    assert total.item() == 2 * 4 * 32


def test_an_atomic_maximum_is_the_largest() -> None:
    total = torch.full((1,), 3, dtype=torch.int32)
    kernel("largest").launch((4,), (8,), [total])
    assert total.item() == 7 + 3


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("reversed", [torch.zeros(4), torch.zeros(4)], "expected 3 arguments, got 2"),
        ("reversed", [torch.zeros(4), torch.zeros(4), 4.0], "argument 2: the function expects an integer of 4 bytes"),
        ("reversed", [torch.zeros(4), torch.zeros(4).double(), 4], "argument 1: .*of 4 bytes, got a tensor of .*64"),
        ("reversed", [torch.zeros(4), 4, 4], "argument 1: .*address"),
        ("count", [torch.zeros(1), 4], "argument 1: .*a floating-point number of 8 bytes, got an integer"),
    ],
)
def test_arguments_are_held_against_the_parameters(name: str, args: list[object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        kernel(name).launch((1,), (4,), args, shared=16)  # type: ignore[arg-type]


def test_a_source_that_does_not_compile_shows_the_compiler_s_words() -> None:
    with pytest.raises(LaminaError, match="nowhere.*was not declared"):
        KernelOnCpu('extern "C" __global__ void f(int* x) { *x = nowhere; }', "f").launch(
            (1,), (1,), [torch.zeros(1).int()]
        )


def test_a_function_that_is_not_there_is_named() -> None:
    with pytest.raises(LaminaError, match="absent"):
        kernel("absent").launch((1,), (1,), [])
