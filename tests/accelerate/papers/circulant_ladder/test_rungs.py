"""Every rung against the definition in float64, and what each rung saves, counted."""

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from tests import compiling
from torch import Tensor

from lamina.accelerate.methods.circulant import reference
from lamina.accelerate.papers.circulant_ladder import reference as reference_steps
from lamina.accelerate.papers.circulant_ladder import rungs
from lamina.accelerate.runtime.nvrtc import Arguments, Kernel, Launchable, Size, compiled
from lamina.testing import assert_as_accurate
from lamina.testing.cuda_on_cpu import kernel_class

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LIMIT = 128  # threads of a block: a thread of the CPU each

pytestmark = pytest.mark.skipif(DEVICE.type == "cpu" and shutil.which("g++") is None, reason="g++ is not installed")

SIZES = [  # rows, output blocks, input blocks, block size: one of each, parts of a thread block, more than one
    (1, 1, 1, 4), (3, 9, 5, 16), (70, 2, 3, 8), (2, 3, 35, 8), (2, 3, 2, 64),
]  # fmt: skip


@pytest.fixture(autouse=True)
def fresh_memory_is_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that no kernel wrote is then seen."""
    monkeypatch.setattr(Tensor, "new_empty", lambda like, *shape: like.new_full(shape, float("nan")))
    monkeypatch.setattr(torch, "empty_like", lambda like: torch.full_like(like, float("nan")))


def tensors(n: int, p: int, q: int, k: int) -> tuple[Tensor, Tensor, Tensor]:
    shapes = (n, q, k), (p, q, k), (n, p, k)
    x, w, dy = (torch.randn(shape, dtype=torch.float64, device=DEVICE) for shape in shapes)
    return x.float(), w.float(), dy.float()


def defined(x: Tensor, w: Tensor, dy: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """The phases by plain torch."""
    x, w = (one.to(dtype).requires_grad_() for one in (x, w))
    y = reference.linear(x.flatten(1), w, None, dy[0].numel())
    dx, dw = torch.autograd.grad(y, [x, w], dy.to(dtype).flatten(1))
    return {"forward": y.detach().view_as(dy), "backward_data": dx, "backward_weight": dw}


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("rung", rungs.RUNGS, ids=lambda rung: rung.name)
def test_a_rung_is_as_accurate_as_plain_torch(rung: rungs.Rung, sizes: tuple[int, ...]) -> None:
    operands = tensors(*sizes)
    plain, exact = (defined(*operands, dtype) for dtype in (torch.float32, torch.float64))
    ours = rungs.step(rung, rungs.kernels(kernel_class(DEVICE)), *operands, limit=LIMIT)
    for phase in rungs.PHASES:
        assert_as_accurate(ours[phase], plain[phase], exact[phase], what=f"{rung.name} {phase}")


@compiling.needs_nvrtc
def test_sources_compile_for_a_hopper_gpu(own_binaries: None) -> None:
    for kernel in rungs.kernels().values():
        assert isinstance(kernel, Kernel) and compiled(kernel.source, "sm_90", kernel.options)


class Counted:
    """A kernel that counts its launches."""

    def __init__(self, kernel: Launchable, name: str, launches: Counter[str]) -> None:
        self.kernel, self.name, self.launches = kernel, name, launches

    def launch(self, grid: Size, block: Size, args: Arguments, shared: int = 0) -> None:
        self.launches[self.name] += 1
        self.kernel.launch(grid, block, args, shared)


@pytest.fixture
def transforms(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many FFTs ran, and how many chunks each way."""
    counted: Counter[str] = Counter()

    def counting(name: str, fft: Callable[..., Tensor], blocks: Tensor, *args: int) -> Tensor:
        counted[name] += 1
        counted[f"{name} chunks"] += blocks[..., 0].numel()
        return fft(blocks, *args)

    for name in ("rfft", "irfft"):
        monkeypatch.setattr(torch.fft, name, partial(counting, name, getattr(torch.fft, name)))
    return counted


@pytest.mark.parametrize(
    ("name", "ffts", "chunks_back", "launches"),
    [
        # Three products of n p q = 30 chunks, each transformed back; six FFTs of 6 + 10, 15 + 10 and 15 + 6 chunks.
        ("as_written", (6, 62), 90, {"reorder": 2, "multiply": 3, "sum_real": 3}),
        # Only the results are: n p = 15, n q = 6 and p q = 10 chunks.
        ("sum_first", (6, 62), 31, {"reorder": 2, "multiply": 3, "sum_complex": 3}),
        ("no_reorder", (6, 62), 31, {"multiply": 3, "sum_complex": 3}),
        # Three of the FFTs are gone.
        ("reused_spectra", (3, 31), 31, {"multiply": 3, "sum_complex": 3}),
        ("o1_sum", (3, 31), 31, {"multiply_o1": 3, "sum_complex": 3}),
        ("o2_sum", (3, 31), 31, {"multiply_o2": 3, "sum_complex": 3}),
        ("o2_argued_sum", (3, 31), 31, {"multiply_o2": 3, "sum_complex": 3}),
        ("fusion", (3, 31), 31, {"fused": 3}),
    ],
)
def test_each_rung_saves_what_it_says(
    name: str, ffts: tuple[int, int], chunks_back: int, launches: dict[str, int], transforms: Counter[str]
) -> None:
    ran: Counter[str] = Counter()
    counted = {one: Counted(kernel, one, ran) for one, kernel in rungs.kernels(kernel_class(DEVICE)).items()}
    rung = next(rung for rung in rungs.RUNGS if rung.name == name)
    rungs.step(rung, counted, *tensors(3, 5, 2, 4), limit=LIMIT)
    assert ran == launches
    assert (transforms["rfft"], transforms["rfft chunks"]) == ffts
    assert transforms["irfft chunks"] == chunks_back
    assert transforms["irfft"] == 3


def test_reordering_transposes_a_circulant_block() -> None:
    w = torch.randn(1, 1, 6, device=DEVICE)
    turned = rungs.reorder(rungs.kernels(kernel_class(DEVICE)), w)
    assert torch.equal(reference.dense_matrix(turned, 6, 6), reference.dense_matrix(w, 6, 6).T)


@pytest.mark.parametrize(
    ("name", "copies"), [("reused_spectra", 0), ("o1_sum", 3), ("o2_sum", 1), ("o2_argued_sum", 1), ("fusion", 0)]
)
def test_o1_reorganises_three_tensors_and_o2_one(name: str, copies: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    arranged = reference_steps.arranged

    def watched(tensor: Tensor, axes: tuple[str, ...], wanted: tuple[str, ...]) -> Tensor:
        found = arranged(tensor, axes, wanted)
        seen.append(found.data_ptr() != tensor.data_ptr())
        return found

    monkeypatch.setattr(reference_steps, "arranged", watched)
    rung = next(rung for rung in rungs.RUNGS if rung.name == name)
    rungs.step(rung, rungs.kernels(kernel_class(DEVICE)), *tensors(3, 5, 2, 4), limit=LIMIT)
    assert sum(seen) == copies


def test_o2_reorganises_the_forward_weight_alone() -> None:
    assert rungs.o2_layout("forward", "o2") == ("p", "f", "q")
    assert rungs.o2_layout("forward", "o2_argued") == ("q", "p", "f")
    assert rungs.o2_layout("backward_data", "o2") == ("p", "q", "f")
    assert rungs.o2_layout("backward_weight", "o2_argued") == ("n", "q", "f")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_the_source_compiles_for_the_gpu(tmp_path: Path) -> None:
    out = tmp_path / "kernels.ptx"
    line = ["nvcc", "-std=c++17", "-arch=sm_90", "-Werror=all-warnings", "-ptx", "-o", str(out), str(rungs.SOURCE)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {f".entry {name}(" in out.read_text() for name in rungs.NAMES} == {True}


def test_the_ladder_names_every_kernel_of_its_source() -> None:
    found = re.findall(r"__global__ void (\w+)", rungs.SOURCE.read_text(encoding="utf-8"))
    assert tuple(found) == rungs.NAMES
    assert len({rung.name for rung in rungs.RUNGS}) == len(rungs.RUNGS)


@pytest.mark.gpu
@pytest.mark.parametrize("k", [16, 32, 64])
@pytest.mark.parametrize("rung", rungs.RUNGS, ids=lambda rung: rung.name)
def test_a_rung_with_the_blocks_of_the_text_is_as_accurate(rung: rungs.Rung, k: int) -> None:
    operands = tensors(128, 1024 // k, 1024 // k, k)
    plain, exact = (defined(*operands, dtype) for dtype in (torch.float32, torch.float64))
    ours = rungs.step(rung, rungs.kernels(kernel_class(DEVICE)), *operands)
    for phase in rungs.PHASES:
        assert_as_accurate(ours[phase], plain[phase], exact[phase], what=f"{rung.name} {phase}")
