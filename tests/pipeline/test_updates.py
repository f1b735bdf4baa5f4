"""Training in a mode: the same weights as in eager mode, and eager mode with the reason where a mode does not run."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lamina import pipeline, run
from lamina.accelerate.training.compressed_activations import saving
from lamina.build import Target, from_external
from lamina.build.models.external import External
from lamina.errors import UsageError
from lamina.pipeline import updates
from lamina.pipeline.apply import describe_type
from lamina.pipeline.updates import fastest, updates_in
from lamina.spec import Input
from lamina.spec.plan import Plan, PlannedLayer, Run
from lamina.spec.training import Training
from lamina.store import Store

CPU = torch.device("cpu")


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 5, stride=4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(4 * 36, 2)
    )  # fmt: skip


def target(make: Any = small) -> Target:
    return Target("small", (Input(shape=(1, 28, 28)),), lambda classes: make())


def test_a_mode_without_cuda_is_refused_before_anything_is_stored(store: Store, data: str) -> None:
    for mode in ("graph", "reduce-overhead", "compiled-graph"):
        with pytest.raises(UsageError, match=f"mode {mode}: CUDA graphs need a CUDA device, this is cpu; use eager"):
            pipeline.train(target(), data, Training(epochs=1), store, mode=mode)
    assert not store.runs()
    assert fastest(CPU) == "eager"


@pytest.fixture
def plain_code() -> Iterator[None]:
    """The compiler makes code without vectors, whose headers and trial programs take most of its time."""
    from torch._inductor import config

    with config.patch({"cpp.vec_isa_ok": False, "cpp_cache_precompile_headers": False, "compile_threads": 1}):
        yield


@pytest.mark.usefixtures("plain_code")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`")  # as the compiler is imported
def test_a_compiled_network_learns_what_it_learns_in_eager_mode(store: Store, data: str) -> None:
    settings = Training(epochs=1, batch=20, warmup_steps=0)

    def no_dropout() -> nn.Module:  # its random numbers are others in compiled code
        return nn.Sequential(*(part for part in small() if not isinstance(part, nn.Dropout)))

    found = [pipeline.train(target(no_dropout), data, settings, store, mode=mode) for mode in ("eager", "compiled")]
    eager, compiled, before = (model.state_dict().values() for model in (*found, no_dropout()))
    for a, b, c in zip(eager, compiled, before, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        assert not torch.equal(a, c)
    assert [one.config.get("mode") for one in store.runs()] in (["compiled", None], [None, "compiled"])


def planned(mode: Any) -> Plan:
    dense = small()
    layer = PlannedLayer(name="4", type=describe_type(dense[4]), method="circulant[block_size=2]", reason="faster")
    how = Run(precision="fp32", layout="nhwc", mode=mode)
    return Plan(network="small", goal="train", batch=20, run=how, layers=(layer,))


def test_a_plan_trains_in_its_layout_and_mode(store: Store, data: str) -> None:
    settings = Training(epochs=1, batch=20)
    trained = pipeline.train(target(), data, settings, store, plan=planned("graph"))
    (this,) = store.runs()
    assert "the plan's mode is graph, but CUDA graphs need a CUDA device, this is cpu: updates run in eager mode" in (
        this.remarks
    )
    assert this.config["layout"] == "nhwc" and "mode" not in this.config
    assert trained[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert type(trained[4]).__name__ == "BlockCirculantLinear"
    pipeline.train(target(), data, settings, store, plan=planned("graph"), mode="eager", layout="nchw")
    assert not any("mode" in remark for remark in store.runs()[0].remarks if "plan:" not in remark)


def test_a_plan_trains_with_compressed_activations(store: Store, data: str) -> None:
    settings = Training(epochs=1, batch=20)
    wanted = [*pipeline.train(target(), data, settings, store).parameters()]
    compressed = Plan(network="small", goal="train", batch=20, run=Run(method="compressed-activations"))
    kept: list[int] = []

    def watched(*args: Any, **options: Any) -> Any:
        kept.append(1)
        return saving(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(updates, "saving", watched)
        found = pipeline.train(target(), data, settings, store, plan=compressed)
        passes = len(kept)
        patch.setattr(updates, "compiled", lambda model, mode: model)  # another test compiles
        pipeline.train(target(), data, settings, store, plan=compressed, mode="compiled")
    assert passes and all(torch.equal(a, b) for a, b in zip(found.parameters(), wanted, strict=True))
    assert len(kept) == passes
    assert "activations are compressed in eager mode only, not in mode compiled" in store.runs()[0].remarks


def test_a_graph_of_compiled_code_captures_the_compiled_network(
    store: Store, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured: list[tuple[nn.Module, Any]] = []

    def graphed_step(model: nn.Module, loss: Any, optimizer: Any, **options: Any) -> Any:
        captured.append((model, options))

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            found: Tensor = loss(model(x), y)
            found.backward()
            optimizer.step()
            return found.detach()

        return step

    monkeypatch.setattr(updates, "refusal", lambda mode, device: None)
    monkeypatch.setattr(updates, "graphed_step", graphed_step)
    wrap = {"compiled-graph": nn.Sequential}
    monkeypatch.setattr(updates, "compiled", lambda model, mode: wrap[mode](model))
    settings = Training(epochs=1, batch=20, clip_norm=1e9)
    found = [pipeline.train(target(), data, settings, store, mode=mode) for mode in ("graph", "compiled-graph")]
    (plain, _), (wrapped, options) = captured
    assert isinstance(wrapped, nn.Sequential) and type(wrapped[0]) is type(plain) and len(wrapped) == 1
    assert options["clip_norm"] == 1e9
    assert all(map(torch.equal, *(model.state_dict().values() for model in found)))
    assert [one.config["mode"] for one in store.runs()] in (["compiled-graph", "graph"], ["graph", "compiled-graph"])


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_updates_in_cuda_graphs_learn_what_eager_ones_do(
    store: Store, data: str, precision: str, layout: Any, tmp_path: Path
) -> None:
    settings = Training(epochs=3, batch=24, precision=precision, clip_norm=1.0)  # the last batch is a smaller one
    found = [
        pipeline.train(target(), data, settings, store, mode=mode, layout=layout, device="cuda", checkpoint=path)
        for mode, path in (("eager", None), ("graph", tmp_path / "state.safetensors"))
    ]
    tolerance = 1e-4 if precision == "fp32" else 3e-2
    for a, b in zip(*(model.state_dict().values() for model in found), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    graph, eager = (store.epochs(one.id)[-1] for one in store.runs())
    assert abs(graph.test_accuracy - eager.test_accuracy) < 0.02 and graph.train_accuracy > 0.8
    assert not any("eager" in remark for one in store.runs() for remark in one.remarks)


class Synchronizing(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1)) * (1.0 if x.sum().item() > 0 else 0.5)


@pytest.mark.gpu
def test_what_cannot_be_captured_trains_in_eager_mode_with_the_reason(store: Store, data: str) -> None:
    settings = Training(epochs=2, batch=20)
    dense = Synchronizing(784, 2)
    found = [
        pipeline.train(target(lambda: copy.deepcopy(dense)), data, settings, store, mode=mode, device="cuda")
        for mode in ("graph", "eager")
    ]
    for a, b in zip(*(model.state_dict().values() for model in found), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert any("updates run in eager mode, not as CUDA graphs: " in remark for remark in store.runs()[1].remarks)
    indices = Input(name="input", shape=(4,), content="indices")
    bag = from_external("bag", lambda: External(nn.EmbeddingBag(5, 3, sparse=True)), [indices])
    pipeline.train(bag, "synthetic", settings, store, mode="graph", device="cuda")
    assert any("its embeddings are sparse" in remark for remark in store.runs()[0].remarks)


def test_every_mode_has_updates() -> None:
    assert updates_in("eager", CPU, print) is run.eager_update


@pytest.mark.gpu
def test_updates_in_graphs_of_compiled_code_learn_what_eager_ones_do(store: Store, data: str) -> None:
    def no_dropout() -> nn.Module:  # its random numbers are others in compiled code
        return nn.Sequential(*(part for part in small() if not isinstance(part, nn.Dropout)))

    settings = Training(epochs=2, batch=24)
    found = [
        pipeline.train(target(no_dropout), data, settings, store, mode=mode, device="cuda")
        for mode in ("eager", "compiled-graph")
    ]
    for a, b in zip(*(model.state_dict().values() for model in found), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    assert not any("eager" in remark for one in store.runs() for remark in one.remarks)
