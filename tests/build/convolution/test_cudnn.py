"""The choice of cuDNN engines; without a GPU, with the real graph builder where that is installed."""

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest
import torch

from lamina.build.convolution import ALGORITHMS, Geometry, PhaseAlgorithms, convolve, cudnn
from lamina.errors import MissingError, UnsupportedError, UsageError
from lamina.spec.cost import Phase

PLANE = Geometry((1, 1), (1, 1), (1, 1))
X, W = (2, 8, 9, 7), (16, 8, 3, 3)
Y = (2, 16, 9, 7)


def request(phase=Phase.FORWARD, note="implicit_gemm", dtype=torch.float32, channels_last=False, tf32=True):
    shapes = {
        Phase.FORWARD: (X, W, Y),
        Phase.BACKWARD_DATA: (Y, W, X),
        Phase.BACKWARD_WEIGHT: (X, Y, W),
    }[phase]
    return cudnn.Request(phase, shapes, channels_last, dtype, PLANE, note, tf32, 0)


class NotSupported(Exception):
    pass


class Graph:
    """A stand-in for a cuDNN graph with listed plans, some of which do not build; ``workspaces`` in bytes."""

    def __init__(self, faults, refuses=None, workspaces=None):
        self.faults, self.refuses = faults, refuses
        self.workspaces = workspaces or [0] * len(faults)
        self.selected = self.deselected = ()
        self.done = []

    def validate(self):
        self.done.append("validate")

    def build_operation_graph(self):
        self.done.append("build_operation_graph")

    def select_numeric_notes(self, notes):
        self.selected = notes

    def deselect_numeric_notes(self, notes):
        self.deselected = notes

    def create_execution_plans(self, modes):
        self.done.append(modes)
        if self.refuses:
            raise self.refuses

    def get_execution_plan_count(self):
        return len(self.faults)

    def build_plan_at_index(self, index):
        if self.faults[index]:
            raise self.faults[index]

    def get_workspace_size_plan_at_index(self, index):
        return self.workspaces[index]


@pytest.fixture
def library():
    names = {name: name for notes in cudnn.NOTES.values() for kind in notes for name in kind}
    return SimpleNamespace(
        cudnnGraphNotSupportedError=NotSupported,
        numerical_note=SimpleNamespace(**names),
        heur_mode=SimpleNamespace(A="A", B="B", FALLBACK="FALLBACK"),
    )


def test_plans_that_do_not_build_are_skipped(library):
    graph = Graph([RuntimeError("deselected"), NotSupported("no"), None, None])
    assert cudnn.choose(graph, request(), library) == 2
    assert graph.deselected == ["FFT", "WINOGRAD"]
    assert graph.done == ["validate", "build_operation_graph", ["A", "B", "FALLBACK"]]


def test_no_engine_with_the_note_is_unsupported(library):
    graph = Graph([RuntimeError("deselected"), RuntimeError("deselected")])
    with pytest.raises(UnsupportedError, match=r"cudnn:winograd: forward of 2x8x9x7 and 16x8x3x3.*with notes WINOGRAD"):
        cudnn.choose(graph, request(note="winograd"), library)
    assert graph.selected == ["WINOGRAD"]


@pytest.mark.parametrize(("limit", "index"), [(None, 0), (4096, 0), (4095, 2), (16, 2), (0, 3)])
def test_the_first_plan_within_the_workspace_limit_is_used(limit, index, library):
    graph = Graph([None, RuntimeError("does not build"), None, None], workspaces=[4096, 0, 16, 0])
    limited = replace(request(note=cudnn.ANY), workspace_limit=limit)
    assert cudnn.choose(graph, limited, library) == index
    assert graph.selected == [] and graph.deselected == []


def test_no_plan_within_the_workspace_limit_is_unsupported(library):
    limited = replace(request(note=cudnn.ANY), workspace_limit=8)
    with pytest.raises(UnsupportedError, match=r"16 bytes of workspace, over the limit of 8.*a larger workspace limit"):
        cudnn.choose(Graph([None], workspaces=[16]), limited, library)


def test_a_limit_without_tf32_excludes_tensor_cores():
    assert request(note=cudnn.ANY, tf32=False).notes() == ((), ("TENSOR_CORE", "DOWN_CONVERT_INPUTS"))


def test_each_phase_has_its_own_limit(monkeypatch):
    passed = {}

    def run(phase, a, b, shape, geometry, note, limit):
        passed[phase] = (note, limit)
        return torch.zeros(shape)

    monkeypatch.setattr(cudnn, "_run", run)
    monkeypatch.setattr(cudnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda self: True))
    algorithms = PhaseAlgorithms("direct", "cudnn:fft", "direct", (0, 512, None))
    y = algorithms.of(Phase.FORWARD).forward(torch.zeros(X), torch.zeros(W), PLANE)
    algorithms.of(Phase.BACKWARD_DATA).backward_data(y, torch.zeros(W), PLANE, X)
    assert passed == {Phase.FORWARD: ("any", 0), Phase.BACKWARD_DATA: ("fft", 512)}
    assert algorithms.of(Phase.BACKWARD_WEIGHT) is ALGORITHMS["direct"]


def test_a_limit_has_no_effect_on_the_cpu_or_on_other_algorithms(by, sample):
    assert PhaseAlgorithms("gemm", workspace_limits=(0, 0, 0)).of(Phase.FORWARD) is ALGORITHMS["gemm"]
    x, w, gy = sample(X, W, PLANE)
    x, w = x.requires_grad_(), w.requires_grad_()
    y = convolve(x, w, PLANE, PhaseAlgorithms(workspace_limits=(0, 0, 0)))
    y.backward(gy)
    for mine, plain in zip((y, x.grad, w.grad), by("direct", x.detach(), w.detach(), PLANE, gy), strict=True):
        torch.testing.assert_close(mine, plain, rtol=0, atol=0)


@pytest.mark.parametrize("error", [NotSupported("no engine at all"), RuntimeError("bad parameter")])
def test_a_graph_cudnn_cannot_do_is_unsupported_in_its_own_words(error, library):
    with pytest.raises(UnsupportedError, match=f"has no execution plan for it .{error}") as refused:
        cudnn.choose(Graph([], refuses=error), request(), library)
    assert refused.value.__cause__ is error


@pytest.mark.parametrize(
    ("asked", "notes"),
    [
        (request(note="fft", tf32=True), (("FFT",), ())),
        (request(note="fft", tf32=False), (("FFT",), ("TENSOR_CORE", "DOWN_CONVERT_INPUTS"))),
        (request(note="fft", tf32=False, dtype=torch.float16), (("FFT",), ())),
        (request(note="tensor_core", tf32=False), (("TENSOR_CORE",), ())),
        (request(note="strict_fp32", tf32=True), ((), ("TENSOR_CORE", "DOWN_CONVERT_INPUTS"))),
        (request(note="strict_fp32", tf32=False), ((), ("TENSOR_CORE", "DOWN_CONVERT_INPUTS"))),
    ],
)
def test_float32_stays_float32_unless_tf32_is_allowed(asked, notes):
    assert asked.notes() == notes


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("phase", list(Phase))
def test_the_graph_describes_the_convolution(phase, channels_last):
    library = pytest.importorskip("cudnn", reason="needs nvidia-cudnn-frontend")
    asked = request(phase, dtype=torch.bfloat16, channels_last=channels_last)
    graph, tensors = cudnn.describe(asked, library)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    for tensor, shape in zip(tensors, asked.shapes, strict=True):
        assert tuple(tensor.dim) == shape
        assert tuple(tensor.stride) == torch.empty(shape, memory_format=layout).stride()
        assert tensor.data_type == library.data_type.BFLOAT16
        assert not tensor.is_virtual
    (node,) = graph.nodes
    assert node.compute_data_type == library.data_type.FLOAT
    assert node.params["pre_padding"] == node.params["post_padding"] == [1, 1]
    assert node.params["stride"] == node.params["dilation"] == [1, 1]
    operation = {
        Phase.FORWARD: ("CONV_FPROP", ["image", "weight"]),
        Phase.BACKWARD_DATA: ("CONV_DGRAD", ["loss", "filter"]),
        Phase.BACKWARD_WEIGHT: ("CONV_WGRAD", ["image", "loss"]),
    }[phase]
    assert (node.node_type.name, list(node.inputs)) == operation
    assert [port.uid for port in node.inputs.values()] == [t.uid for t in tensors[:2]]
    assert {"select_numeric_notes", "deselect_numeric_notes", "execute_plan_at_index"} <= set(dir(graph))


def test_the_notes_are_those_of_the_library():
    library = pytest.importorskip("cudnn", reason="needs nvidia-cudnn-frontend")
    for selected, deselected in cudnn.NOTES.values():
        assert all(hasattr(library.numerical_note, name) for name in (*selected, *deselected))


def test_an_unknown_note_comes_with_the_closest_match():
    with pytest.raises(UsageError, match="did you mean 'winograd'"):
        cudnn.forward(torch.zeros(X), torch.zeros(W), PLANE, note="winogard")


def test_transposed_is_rejected():
    transposed = Geometry((1, 1), (0, 0), (1, 1), transposed=True)
    with pytest.raises(UnsupportedError, match="backward_data by 'cudnn:fft': does not support transposed"):
        PhaseAlgorithms(backward_data="cudnn:fft").check(transposed, W)


def test_without_a_gpu_it_raises_missing_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MissingError, match="expected a CUDA device, got none"):
        convolve(torch.zeros(X), torch.zeros(W), PLANE, PhaseAlgorithms(forward="cudnn:implicit_gemm"))


def test_tensors_must_be_on_the_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UsageError, match="expected tensors on a CUDA device, got cpu"):
        cudnn.forward(torch.zeros(X), torch.zeros(W), PLANE, note="fft")


@pytest.fixture
def packages(monkeypatch):
    """Empty packages in place of the real ones, and nothing remembered from an earlier import."""
    fakes = {name: ModuleType(name) for name in ("cuda", "cuda.bindings", "cudnn")}
    for name, module in fakes.items():
        monkeypatch.setitem(sys.modules, name, module)
    fakes["cudnn"].backend_version = lambda: 91900
    cudnn._library.cache_clear()
    yield fakes
    cudnn._library.cache_clear()


def test_the_package_is_found(packages):
    assert cudnn._library() is packages["cudnn"]


@pytest.mark.parametrize("absent", ["cudnn", "cuda.bindings"])
def test_a_missing_package_is_named_with_its_remedy(absent, packages, monkeypatch):
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(MissingError, match=rf"{absent}.*pip install --no-deps nvidia-cudnn-frontend"):
        cudnn._library()


def test_a_package_without_its_library_is_missing(packages):
    def backend_version():
        raise RuntimeError("Unable to find symbol cudnnGetVersion")

    packages["cudnn"].backend_version = backend_version
    with pytest.raises(MissingError, match=r"need cuDNN 9 .*Unable to find symbol"):
        cudnn._library()


GPU_CASES = {
    "3x3": ((4, 16, 14, 14), (32, 16, 3, 3), PLANE),
    "5x5, stride 2": ((4, 16, 15, 13), (32, 16, 5, 5), Geometry((2, 2), (2, 2), (1, 1))),
    "sequence": ((4, 16, 64), (32, 16, 3), Geometry((1,), (1,), (1,))),
}


@pytest.mark.gpu
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("case", GPU_CASES.values(), ids=GPU_CASES.keys())
@pytest.mark.parametrize("note", cudnn.NOTES)
def test_engines_compute_the_convolution(note, case, layout, definition, sample):
    """An engine with the note either computes all it is asked for, or is reported not to exist."""
    pytest.importorskip("cudnn", reason="needs nvidia-cudnn-frontend")
    g = case[2]
    x, w, gy = sample(*case, torch.float32)
    exact = definition(x, w, g, gy)
    x, w, gy = (t.cuda() for t in (x, w, gy))
    if x.dim() == 4:
        x = x.contiguous(memory_format=layout)
    algorithm = ALGORITHMS[f"cudnn:{note}"]
    calls = {
        "y": lambda: algorithm.forward(x, w, g),
        "gx": lambda: algorithm.backward_data(gy, w, g, x.shape),
        "gw": lambda: algorithm.backward_weight(gy, x, g, w.shape),
    }
    done = 0
    # TF32 keeps 10 bits of each factor; the sums here are of at most a few thousand products.
    tolerance = 2**-9 if note == "tensor_core" else 2**-18
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for part, call in calls.items():
            try:
                result = call().double().cpu()
            except UnsupportedError:
                continue
            truth = getattr(exact, part)
            assert (result - truth).abs().max() <= tolerance * truth.abs().max(), (note, part)
            done += 1
    if note in ("implicit_gemm", "strict_fp32"):
        assert done == 3


@pytest.mark.gpu
def test_autograd_runs_engines_from_its_own_thread(definition, sample):
    pytest.importorskip("cudnn", reason="needs nvidia-cudnn-frontend")
    case = GPU_CASES["3x3"]
    x, w, gy = sample(*case, torch.bfloat16)
    exact = definition(x, w, case[2], gy)
    x, w = x.cuda().requires_grad_(), w.cuda().requires_grad_()
    name = "cudnn:implicit_gemm"
    y = convolve(x, w, case[2], PhaseAlgorithms(name, name, name))
    y.backward(gy.cuda())
    for mine, truth in zip((y.detach(), x.grad, w.grad), exact, strict=True):
        assert (mine.double().cpu() - truth).abs().max() <= 2**-7 * truth.abs().max()
