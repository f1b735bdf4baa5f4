"""cuDNN engines selected by numerical notes, which describe the arithmetic of an engine (cuDNN graph API).

cuDNN ranks its engines for a convolution; the first one that has the note and builds is used. ``fft``, ``winograd`` and
``tensor_core`` require a note, ``implicit_gemm`` excludes FFT and Winograd, ``strict_fp32`` excludes tensor cores and
down-converted inputs. Except for ``tensor_core``, engines that convert float32 to TF32 are excluded unless PyTorch
allows TF32. A workspace limit excludes engines that need more. Needs an NVIDIA GPU and nvidia-cudnn-frontend 1.32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from threading import get_ident
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from lamina.build.convolution.geometry import Geometry, refuse_transposed
from lamina.build.convolution.layout import is_channels_last
from lamina.errors import MissingError, UnsupportedError, UsageError, nearest
from lamina.spec.cost import Phase
from lamina.spec.shape import Shape, show

_Filter = tuple[tuple[str, ...], tuple[str, ...]]

_EXACT_FP32 = ("TENSOR_CORE", "DOWN_CONVERT_INPUTS")

NOTES: dict[str, _Filter] = {
    "fft": (("FFT",), ()),
    "winograd": (("WINOGRAD",), ()),
    "tensor_core": (("TENSOR_CORE",), ()),
    "implicit_gemm": ((), ("FFT", "WINOGRAD")),
    "strict_fp32": ((), _EXACT_FP32),
}
"""For each name, the numerical notes that an engine must have and those that it must not have."""

ANY = "any"
"""No note: every engine."""

_TYPES = {
    torch.float16: "HALF",
    torch.bfloat16: "BFLOAT16",
    torch.float32: "FLOAT",
    torch.float64: "DOUBLE",
}


@dataclass(frozen=True)
class Request:
    """The cache key of an execution plan: two operands and a result, over two spatial axes."""

    phase: Phase
    shapes: tuple[Shape, Shape, Shape]
    channels_last: bool
    dtype: torch.dtype
    geometry: Geometry
    note: str
    tf32: bool
    device: int
    workspace_limit: int | None = None

    def notes(self) -> _Filter:
        """The numerical notes to select and to deselect."""
        selected, deselected = NOTES.get(self.note, ((), ()))
        if self.dtype == torch.float32 and not self.tf32 and self.note != "tensor_core":
            deselected = tuple(dict.fromkeys((*deselected, *_EXACT_FP32)))
        return selected, deselected

    def __str__(self) -> str:
        layout = "channels-last" if self.channels_last else "channels-first"
        return f"{self.phase} of {show(self.shapes[0])} and {show(self.shapes[1])}, {layout} {self.dtype}"


@dataclass(frozen=True)
class ExecutionPlan:
    """A cuDNN execution plan built for one request; ``workspace`` in bytes."""

    graph: Any
    operands: tuple[Any, Any, Any]
    index: int
    workspace: int


def forward(x: Tensor, w: Tensor, geometry: Geometry, note: str, limit: int | None = None) -> Tensor:
    """Output ``(N, K, *size)`` of inputs ``(N, C, *size)``."""
    size = geometry.output_size(x.shape[2:], w.shape[2:])
    return _run(Phase.FORWARD, x, w, (x.shape[0], w.shape[0], *size), geometry, note, limit)


def backward_data(
    gy: Tensor, w: Tensor, geometry: Geometry, x_shape: Sequence[int], note: str, limit: int | None = None
) -> Tensor:
    """Gradient of the input, ``x_shape``."""
    return _run(Phase.BACKWARD_DATA, gy, w, tuple(x_shape), geometry, note, limit)


def backward_weight(
    gy: Tensor, x: Tensor, geometry: Geometry, w_shape: Sequence[int], note: str, limit: int | None = None
) -> Tensor:
    """Gradient of the weight, ``w_shape``."""
    return _run(Phase.BACKWARD_WEIGHT, x, gy, tuple(w_shape), geometry, note, limit)


def refusal(geometry: Geometry, w_shape: Sequence[int]) -> str | None:
    """Transposed convolutions are not supported; whether an engine exists is known only when a plan is built."""
    return refuse_transposed(geometry)


def describe(request: Request, cudnn: ModuleType) -> tuple[Any, tuple[Any, Any, Any]]:
    """The cuDNN graph of one convolution, not validated, and its tensors: two operands and the result."""
    data_type = getattr(cudnn.data_type, _TYPES[request.dtype])
    accumulate = cudnn.data_type.DOUBLE if request.dtype == torch.float64 else cudnn.data_type.FLOAT
    graph = cudnn.pygraph(io_data_type=data_type, intermediate_data_type=accumulate, compute_data_type=accumulate)
    strides = [_strides(shape, request.channels_last) for shape in request.shapes]
    first, second = (
        graph.tensor(dim=list(shape), stride=list(stride), data_type=data_type)
        for shape, stride in zip(request.shapes[:2], strides[:2], strict=True)
    )
    build = {
        Phase.FORWARD: graph.conv_fprop,
        Phase.BACKWARD_DATA: graph.conv_dgrad,
        Phase.BACKWARD_WEIGHT: graph.conv_wgrad,
    }[request.phase]
    geometry = request.geometry
    result = build(
        first,
        second,
        pre_padding=list(geometry.padding),
        post_padding=list(geometry.padding),
        stride=list(geometry.stride),
        dilation=list(geometry.dilation),
    )
    result.set_output(True).set_data_type(data_type)
    result.set_dim(list(request.shapes[2])).set_stride(list(strides[2]))
    return graph, (first, second, result)


def choose(graph: Any, request: Request, cudnn: ModuleType) -> int:
    """Index of the first plan that has the request's notes, builds and keeps to the workspace limit.

    Raises:
        UnsupportedError: there is none.
    """
    selected, deselected = request.notes()
    what = f"cudnn:{request.note}: {request}"
    declined = (cudnn.cudnnGraphNotSupportedError, NotImplementedError, RuntimeError, ValueError)
    try:
        graph.validate()
        graph.build_operation_graph()
        graph.select_numeric_notes([getattr(cudnn.numerical_note, name) for name in selected])
        graph.deselect_numeric_notes([getattr(cudnn.numerical_note, name) for name in deselected])
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.B, cudnn.heur_mode.FALLBACK])
    except declined as error:
        raise UnsupportedError(f"{what}: cuDNN has no execution plan for it ({error}); use 'direct'") from error
    count = graph.get_execution_plan_count()
    reasons = []
    for index in range(count):
        # The list includes plans that the notes exclude and plans that do not build.
        try:
            graph.build_plan_at_index(index)
            workspace = graph.get_workspace_size_plan_at_index(index)
        except declined as error:
            reasons.append(str(error).strip())
            continue
        if request.workspace_limit is None or workspace <= request.workspace_limit:
            return index
        reasons.append(f"{workspace} bytes of workspace, over the limit of {request.workspace_limit}")
    wanted = " and ".join([*selected, *(f"not {name}" for name in deselected)])
    why = "; ".join(sorted(set(reasons))[:3])
    raise UnsupportedError(
        f"{what}: none of the {count} execution plans of cuDNN with notes {wanted or 'of any kind'} builds "
        f"({why}); use another note{', a larger workspace limit' if request.workspace_limit is not None else ''} "
        "or 'direct'"
    )


def _run(phase: Phase, a: Tensor, b: Tensor, shape: Shape, geometry: Geometry, note: str, limit: int | None) -> Tensor:
    if note not in NOTES and note != ANY:
        raise UsageError(f"cuDNN note {note!r}: {nearest(note, NOTES)}")
    if a.dtype not in _TYPES:
        known = ", ".join(str(dtype) for dtype in _TYPES)
        raise UnsupportedError(f"cudnn:{note}: expected one of {known}, got {a.dtype}; convert the layer")
    _require_gpu(a, note)
    if geometry.rank == 1:
        plane = (*shape[:2], 1, *shape[2:])
        return _run(phase, a.unsqueeze(2), b.unsqueeze(2), plane, geometry.as_plane(), note, limit).squeeze(2)
    # As in PyTorch: one channels-last operand makes the whole convolution channels-last.
    channels_last = is_channels_last(a) or is_channels_last(b)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    a, b = a.contiguous(memory_format=layout), b.contiguous(memory_format=layout)
    out = torch.empty(shape, dtype=a.dtype, device=a.device, memory_format=layout)
    tf32 = torch.backends.cudnn.conv.fp32_precision == "tf32"  # type: ignore[attr-defined]
    shapes = (tuple(a.shape), tuple(b.shape), shape)
    index = a.device.index
    plan = _plan(Request(phase, shapes, channels_last, a.dtype, geometry, note, tf32, index, limit))
    workspace = torch.empty(max(plan.workspace, 1), dtype=torch.uint8, device=a.device)
    handle = _handle(index, get_ident())
    _library().set_stream(handle, torch.cuda.current_stream(a.device).cuda_stream)
    tensors = dict(zip((t.uid for t in plan.operands), (a, b, out), strict=True))
    plan.graph.execute_plan_at_index(tensors, workspace, plan.index, handle)
    return out


@cache
def _plan(request: Request) -> ExecutionPlan:
    cudnn = _library()
    with torch.cuda.device(request.device):
        graph, operands = describe(request, cudnn)
        index = choose(graph, request, cudnn)
        return ExecutionPlan(graph, operands, index, graph.get_workspace_size_plan_at_index(index))


@cache
def _handle(device: int, thread: int) -> Any:
    # A cuDNN handle may be used by one thread at a time, and autograd runs backward in a thread of its own.
    with torch.cuda.device(device):
        return _library().create_handle()


def _strides(shape: Shape, channels_last: bool) -> Shape:
    _, c, h, w = shape
    return (h * w * c, 1, w * c, c) if channels_last else (c * h * w, h * w, w, 1)


def _require_gpu(x: Tensor, note: str) -> None:
    if not torch.cuda.is_available():
        raise MissingError(f"cudnn:{note}: expected a CUDA device, got none; use 'direct', 'fft' or 'winograd'")
    if x.device.type != "cuda":
        raise UsageError(f"cudnn:{note}: expected tensors on a CUDA device, got {x.device}; move the layer there")


@cache
def is_available() -> bool:
    """Whether the packages and cuDNN are installed."""
    try:
        _library()
    except MissingError:
        return False
    return True


@cache
def _library() -> ModuleType:
    try:
        import cuda.bindings  # noqa: F401 - cudnn needs it but does not depend on it
        import cudnn

        cudnn.backend_version()  # raises if the package is installed without its library
    except (ImportError, RuntimeError) as error:
        raise MissingError(
            f"cuDNN engines by note need cuDNN 9 and the packages cudnn and cuda-bindings ({error}); install "
            "them: pip install cuda-bindings && pip install --no-deps nvidia-cudnn-frontend==1.32.0, and "
            "cuDNN with PyTorch's CUDA build"
        ) from error
    library: ModuleType = cudnn
    return library
