"""Layers as PyTorch's tools meet them: skip_init, safetensors, export, compile, several processes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_model, save_model
from tests import forked
from torch import Tensor, nn
from torch._dynamo.backends.debugging import aot_eager

from lamina.accelerate.methods.circulant import functional
from lamina.accelerate.methods.circulant.config import Impl
from lamina.accelerate.methods.circulant.nn import (
    BlockCirculantConv1d,
    BlockCirculantConv2d,
    BlockCirculantLinear,
    BlockCirculantLSTM,
)
from lamina.errors import UsageError

MAKERS: dict[str, Any] = {
    "linear": (BlockCirculantLinear, (10, 7, 4), {}),
    "conv1d": (BlockCirculantConv1d, (6, 5, 3), {"block_size": 4}),
    "conv2d": (BlockCirculantConv2d, (8, 6, 3, 1, 1, 1, 2), {"block_size": 3}),
    "lstm": (BlockCirculantLSTM, (5, 6), {"block_size": 4}),
}


@pytest.mark.parametrize("name", MAKERS)
def test_factory_arguments_and_skip_init(name: str) -> None:
    kind, args, options = MAKERS[name]
    assert all(p.dtype == torch.float64 for p in kind(*args, **options, dtype=torch.float64).parameters())
    layer = nn.utils.skip_init(kind, *args, **options)
    assert {p.device.type for p in layer.parameters()} == {"cpu"}
    layer.reset_parameters()
    assert all(p.isfinite().all() and p.any() for p in layer.parameters())


@pytest.mark.parametrize("name", MAKERS)
def test_safetensors_round_trip(name: str, tmp_path: Path) -> None:
    kind, args, options = MAKERS[name]
    saved, loaded = kind(*args, **options), kind(*args, **options)
    save_model(saved, str(tmp_path / "layer.safetensors"))
    load_model(loaded, str(tmp_path / "layer.safetensors"))
    for key, value in saved.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], value)


@pytest.mark.parametrize("name", MAKERS)
def test_new_weights_have_the_variance_of_dense_ones(name: str) -> None:
    sizes = {"linear": (256, 128), "conv1d": (64, 64, 3), "conv2d": (64, 64, 3), "lstm": (64, 64)}[name]
    layer = MAKERS[name][0](*sizes, block_size=8)
    dense = layer.to_dense()
    fresh = type(dense)(*sizes)
    for (key, ours), theirs in zip(dense.named_parameters(), fresh.parameters(), strict=True):
        if key.startswith("weight"):
            assert ours.std().item() == pytest.approx(theirs.std().item(), rel=0.1)


def test_only_numbers_in_use_are_drawn() -> None:
    layer = BlockCirculantLinear(5, 5, 4)
    assert torch.equal(layer.weight[1, 1] != 0, torch.tensor([True, False, False, False]))


def test_parameters_are_k_times_fewer() -> None:
    assert BlockCirculantLinear(128, 256, 64, bias=False).weight.numel() == 128 * 256 // 64
    assert BlockCirculantConv2d(128, 64, 3, bias=False, block_size=32).weight.numel() == 128 * 64 * 9 // 32


def test_padding_same_is_the_dense_layer_s() -> None:
    x = torch.randn(1, 4, 5, 6)
    layer = BlockCirculantConv2d(4, 6, (2, 3), padding="same", dilation=(1, 2), block_size=2)
    dense = layer.to_dense()
    expected = nn.functional.conv2d(nn.functional.pad(x, (2, 2, 0, 1)), dense.weight, dense.bias, dilation=(1, 2))
    torch.testing.assert_close(layer(x), expected)


def test_one_image_without_a_batch() -> None:
    layer = BlockCirculantConv1d(4, 6, 3, block_size=2)
    x = torch.randn(4, 7)
    torch.testing.assert_close(layer(x), layer(x[None])[0])


@pytest.mark.parametrize("axes", [1, 2])
def test_a_network_of_pictures_in_another_layout_keeps_its_blocks(axes: int) -> None:
    kind = (BlockCirculantConv1d, BlockCirculantConv2d)[axes - 1]
    layer = kind(8, 8, 3, block_size=4)
    before = layer.weight.detach().clone()
    layer.to(memory_format=torch.channels_last)
    assert layer.weight.is_contiguous() and torch.equal(layer.weight, before)
    assert layer.double().weight.dtype == torch.float64


def test_a_frozen_dense_layer_stays_frozen_and_evaluating() -> None:
    dense = nn.Linear(8, 8).eval()
    dense.weight.requires_grad_(False)
    layer = BlockCirculantLinear.from_dense(dense, 4)
    assert (layer.weight.requires_grad, layer.bias.requires_grad, layer.training) == (False, True, False)


def test_fresh_and_rescaled_initialisation() -> None:
    dense = nn.Linear(64, 64)
    plain, rescaled = (BlockCirculantLinear.from_dense(dense, 8, rescale=r) for r in (False, True))
    assert plain.kept_energy == rescaled.kept_energy == pytest.approx(1 / 8, rel=0.2)
    ratio = rescaled.weight / plain.weight
    torch.testing.assert_close(ratio, torch.full_like(ratio, plain.kept_energy**-0.5))
    fresh = BlockCirculantLinear.from_dense(dense, 8, init="fresh")
    assert fresh.kept_energy is None
    assert "kept_energy=0.1" in repr(plain) and "kept_energy" not in repr(fresh)


SIGNED: list[tuple[Any, tuple[int, ...]]] = [
    (nn.Linear(6, 8), (3, 6)),
    (nn.Conv1d(4, 6, 3), (2, 4, 7)),
    (nn.Conv2d(8, 4, 3, padding=1, groups=2), (2, 8, 5, 4)),
]
"""Dense layers and inputs for them."""


@pytest.mark.parametrize(("dense", "shape"), SIGNED)
@pytest.mark.parametrize("init", ["project", "fresh"])
def test_signs_belong_to_the_inputs(dense: Any, shape: tuple[int, ...], init: Any) -> None:
    kind = {nn.Linear: BlockCirculantLinear, nn.Conv1d: BlockCirculantConv1d, nn.Conv2d: BlockCirculantConv2d}
    layer: Any = kind[type(dense)].from_dense(dense, 2, init=init, signs=True)
    assert layer.signs.shape == (2,) and set(layer.signs.tolist()) <= {-1, 1} and "signs=True" in repr(layer)
    x = torch.randn(shape)
    torch.testing.assert_close(layer(x), layer.to_dense()(x))
    plain: Any = kind[type(dense)].from_dense(dense, 2)
    plain.load_state_dict({name: value for name, value in layer.state_dict().items() if name != "signs"})
    signs = layer.signs.repeat(shape[1] // 2).view(-1, *(1,) * (len(shape) - 2))
    torch.testing.assert_close(layer(x), plain(x * signs))


def test_a_circulant_matrix_is_found_behind_its_signs() -> None:
    layer = BlockCirculantLinear(8, 8, 4, signs=True)
    dense = layer.to_dense()
    assert layer.signs is not None
    dense.weight.data *= layer.signs.repeat(2)
    assert BlockCirculantLinear.from_dense(dense, 4).kept_energy == pytest.approx(1)


def test_signs_give_each_output_of_a_block_a_mean_of_its_own() -> None:
    torch.manual_seed(0)
    layers = [BlockCirculantLinear(64, 64, 64, bias=False, signs=signs) for signs in (False, True)]
    without, with_signs = (layer(torch.ones(1, 64)).detach() for layer in layers)
    torch.testing.assert_close(without, without.mean().expand_as(without))
    assert float(with_signs.std()) > 0.3


def test_export_holds_standard_operators_only() -> None:
    layer = nn.Sequential(BlockCirculantConv2d(4, 4, 3, block_size=2, impl="reference"), nn.Flatten(),
                          BlockCirculantLinear(16, 6, 4, impl="reference"))  # fmt: skip
    x = torch.randn(2, 4, 4, 4)
    program = torch.export.export(layer, (x,))
    called = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert called
    assert all(name.startswith(("aten.", "<built-in")) for name in called), called
    torch.testing.assert_close(program.module()(x), layer(x))


DYNAMIC: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: BlockCirculantLinear(8, 12, 4, signs=True, impl="kernel"), (8,)),
    "conv": (lambda: BlockCirculantConv2d(8, 4, 3, padding=1, block_size=4, impl="kernel"), (8, 3, 2)),
}


@pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning")  # of Inductor itself
@pytest.mark.usefixtures("where_kernels_run")
@pytest.mark.parametrize("name", DYNAMIC)
def test_kernels_are_exported_with_a_dynamic_batch(name: str, tmp_path: Path) -> None:
    make, shape = DYNAMIC[name]
    layer, batch = nn.Sequential(make(), nn.ReLU()), torch.export.Dim("batch", min=2)
    program = torch.export.export(layer, (torch.randn(3, *shape),), dynamic_shapes=({0: batch},))
    runs = [program.module()]
    if torch.cuda.is_available():  # on the CPU Inductor compiles C++ for too long
        with torch.no_grad():
            package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "layer.pt2"))
        runs.append(torch._inductor.aoti_load_package(package))
    for rows in (2, 5):
        x = torch.randn(rows, *shape)
        for run in runs:
            torch.testing.assert_close(run(x), layer(x))


@pytest.mark.usefixtures("where_kernels_run")
@pytest.mark.parametrize("name", DYNAMIC)
def test_a_dynamic_batch_compiles_once(name: str) -> None:
    torch.compiler.reset()
    make, shape = DYNAMIC[name]
    layer, graphs = make(), list[object]()

    def counting(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return aot_eager(graph, inputs)

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counting)
    for rows in (7, 5, 9, 5):  # none equals another size, which would become the same symbol
        x = torch.randn(rows, *shape)
        ours, theirs = (function(x) for function in (compiled, layer))
        torch.testing.assert_close(ours, theirs)
        for one, other in zip(*(torch.autograd.grad(y.sum(), layer.parameters()) for y in (ours, theirs)), strict=True):
            torch.testing.assert_close(one, other)
    assert len(graphs) == 1


def test_compiled_layers_trace_no_checks_but_raise_their_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each function that is traced is a guard at each call: what is known ahead is decided outside of the graph."""
    torch.compiler.reset()
    checked = functional._checked
    sizes: list[Any] = []

    def counting(x: Tensor, *rest: Any) -> Any:
        sizes.append(x.shape[0])
        return checked(x, *rest)

    monkeypatch.setattr(functional, "_checked", counting)
    layer = BlockCirculantLinear(8, 4, 4)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(torch.ones(2, 8)), layer(torch.ones(2, 8)))
    assert 2 not in sizes[:-1] and len(sizes) == 2  # fake operands, and those of eager mode
    for wrong in (torch.ones(2, 8, dtype=torch.int64), torch.ones(2, 8, dtype=torch.float16)):
        with pytest.raises(UsageError, match="expected"):
            torch.compile(layer, backend="aot_eager")(wrong)


@pytest.mark.usefixtures("where_kernels_run")
@pytest.mark.parametrize("impl", ["kernel", "materialized", "dense"])
def test_every_implementation_compiles_to_one_graph(impl: Any) -> None:
    torch.compiler.reset()
    x = torch.randn(2, 6)
    layer = BlockCirculantLinear(6, 5, 4, impl=impl).to(x.device)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    grads = []
    for function in (layer, compiled):
        with torch.autocast(x.device.type, torch.bfloat16):
            y = function(x)
        grads.append([y, *torch.autograd.grad(y.float().square().sum(), list(layer.parameters()))])
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (BlockCirculantLinear(6, 5, 4, impl="reference"), (2, 6)),
        (BlockCirculantConv2d(8, 6, 3, groups=2, block_size=2, impl="reference"), (1, 8, 4, 3)),
        (BlockCirculantConv2d(8, 6, 3, groups=2, block_size=2, impl="dense"), (1, 8, 4, 3)),
    ],
)
def test_layers_are_traced_where_a_default_device_is_set(layer: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    torch.compiler.reset()
    with torch.device("cpu"):
        y = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(y, layer(x))


RANK = """
import sys, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from lamina.accelerate.methods.circulant.nn import BlockCirculantLinear
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
x = torch.arange(24.0).view(4, 6).sin()

def network(name):
    model = torch.nn.Sequential(BlockCirculantLinear(6, 8, 4), torch.nn.Tanh(), BlockCirculantLinear(8, 3, 2))
    if rank == 0:
        torch.save(model.state_dict(), f"{folder}/{name}.pt")
    return model

torch.manual_seed(rank)
model = network("replicated")
parallel = torch.nn.parallel.DistributedDataParallel(model)
parallel(x[2 * rank : 2 * rank + 2]).square().mean().backward()
torch.save([p.grad for p in model.parameters()], f"{folder}/replicated{rank}.pt")
del parallel  # before the process group, whose thread it would join with the GIL

torch.manual_seed(0)
model = network("shared")
mesh = init_device_mesh("cpu", (2,))
for layer in (model[0], model[2], model):
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
held = sum(p.to_local().numel() for p in model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(x[2 * rank : 2 * rank + 2]).square().mean().backward()
    optimizer.step()
torch.save((held, {name: p.full_tensor() for name, p in model.named_parameters()}), f"{folder}/shared{rank}.pt")
dist.barrier()  # nobody leaves while the other still speaks
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what two processes saved, with the same weights in both and with half of them in each."""
    folder = tmp_path_factory.mktemp("ranks")
    told = [folder / f"error{rank}" for rank in range(2)]
    ranks = [forked.program(RANK, str(rank), str(folder), error=told[rank]) for rank in range(2)]
    for rank in ranks:
        rank.join(120)
    assert [rank.exitcode for rank in ranks] == [0, 0], "\n".join(error.read_text() for error in told)
    return folder


def test_two_processes_have_the_gradient_of_one(two_processes: Path) -> None:
    model = nn.Sequential(BlockCirculantLinear(6, 8, 4), nn.Tanh(), BlockCirculantLinear(8, 3, 2))
    model.load_state_dict(torch.load(two_processes / "replicated.pt"))
    model(torch.arange(24.0).view(4, 6).sin()).square().mean().backward()
    first, second = (torch.load(two_processes / f"replicated{rank}.pt") for rank in range(2))
    for parameter, ours, theirs in zip(model.parameters(), first, second, strict=True):
        assert torch.equal(ours, theirs)
        torch.testing.assert_close(ours, parameter.grad)


def test_two_processes_that_share_the_weights_train_as_one(two_processes: Path) -> None:
    model = nn.Sequential(BlockCirculantLinear(6, 8, 4), nn.Tanh(), BlockCirculantLinear(8, 3, 2))
    model.load_state_dict(torch.load(two_processes / "shared.pt"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.arange(24.0).view(4, 6).sin()).square().mean().backward()
        optimizer.step()
    (first, ours), (second, _) = (torch.load(two_processes / f"shared{rank}.pt") for rank in range(2))
    assert first + second == sum(parameter.numel() for parameter in model.parameters())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(ours[name], parameter.detach())


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("impl", ["kernel", "reference", "dense"])
def test_what_follows_a_convolution_may_change_its_output_in_place(impl: Impl, last: bool) -> None:
    layer = BlockCirculantConv1d(8, 8, 3, padding=1, block_size=4, impl=impl)
    x = torch.randn(2, 5, 8).mT if last else torch.randn(2, 8, 5)
    (expected,) = torch.autograd.grad(layer(x.requires_grad_()).relu().sum(), x)
    (found,) = torch.autograd.grad(layer(x).relu_().sum(), x)
    assert torch.equal(found, expected)
