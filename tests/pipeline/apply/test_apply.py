"""A model by a plan: equal to a conversion by hand, checked against the model, and unchanged by copies."""

import copy
import warnings
from collections import OrderedDict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lamina
from lamina.accelerate.methods.circulant.activation_fusion import FusedActivation
from lamina.accelerate.stand_ins import standardize
from lamina.errors import UsageError
from lamina.pipeline.apply import PlanMismatch, applied, describe_type, mismatches
from lamina.spec.plan import Plan, PlannedLayer, Run
from lamina.spec.plan_file import write_plan

METHOD = "circulant[block_size=4,impl=reference]"


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def plan_of(model: nn.Module, methods: dict[str, str], run: Run = Run(), goal: str = "infer") -> Plan:  # noqa: B008
    layers = tuple(
        PlannedLayer(name=name, type=describe_type(module), method=methods.get(name, "dense"))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.Conv2d)
    )
    return Plan.model_validate({"network": "net", "goal": goal, "batch": 2, "run": run, "layers": layers})


def quiet(model: nn.Module, plan: Plan | Path, **options: object) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlanMismatch)
        return lamina.apply(model, plan, **options)  # type: ignore[arg-type]


def test_it_is_the_conversion_by_hand() -> None:
    by_hand, _ = lamina.convert(net(), lamina.Circulant(4, impl="reference"), lambda name, layer: name == "0")
    x = torch.randn(3, 8)
    by_plan = quiet(net(), plan_of(net(), {"0": METHOD}))
    assert torch.equal(by_plan(x), by_hand(x))
    assert by_plan.state_dict().keys() == by_hand.state_dict().keys()


def test_projections_of_attention_are_layers_of_a_plan() -> None:
    def encoder() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), nn.Linear(8, 4))

    names, x = ("0.self_attn.in_proj", "0.linear1"), torch.randn(3, 5, 8)
    by_hand, record = lamina.convert(encoder(), lamina.Circulant(4, impl="reference"), lambda name, _: name in names)
    plan = plan_of(standardize(encoder()), dict.fromkeys(names, METHOD))
    by_plan = quiet(encoder(), plan)
    assert len(record.replaced) == 2
    assert torch.equal(by_plan(x), by_hand(x))
    assert by_plan.state_dict().keys() == by_hand.state_dict().keys()
    packed = encoder()
    assert not mismatches(packed, plan) and isinstance(packed.get_submodule("0.self_attn"), nn.MultiheadAttention)


@pytest.mark.parametrize("method", ["dense", "compressed-activations"])
def test_circulant_layers_compute_their_relu_unless_it_is_compressed(method: str) -> None:
    model = quiet(net(), plan_of(net(), {"0": METHOD}, Run(method=method), "train"))
    fused = method == "dense"
    assert type(model[1]) is (FusedActivation if fused else nn.ReLU)
    assert model[0].activation == ("relu" if fused else None)


def test_a_file_and_a_folder_are_read(tmp_path: Path) -> None:
    plan = plan_of(net(), {"0": METHOD})
    write_plan(plan, tmp_path / "plan.toml")
    x = torch.randn(3, 8)
    expected = quiet(net(), plan)(x)
    assert torch.equal(quiet(net(), tmp_path / "plan.toml")(x), expected)
    assert torch.equal(quiet(net(), tmp_path)(x), expected)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_to_infer_weights_have_the_type_of_the_plan(precision: str) -> None:
    model = quiet(net(), plan_of(net(), {}, Run(precision=precision)))  # type: ignore[arg-type]
    y = model(torch.randn(2, 8))
    expected = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    assert y.dtype == expected and all(one.dtype == expected for one in model.parameters())


def test_to_train_weights_stay_in_float32_under_autocast() -> None:
    model = quiet(net(), plan_of(net(), {}, Run(precision="bf16"), "train"))
    y = model(torch.randn(2, 8))
    assert y.dtype == torch.bfloat16 and all(one.dtype == torch.float32 for one in model.parameters())
    y.float().sum().backward()
    assert all(one.grad is not None for one in model.parameters())


def test_images_become_channels_last() -> None:
    model: Any = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten())
    seen: list[torch.Tensor] = []
    model[0].register_forward_hook(lambda module, args, y: seen.append(args[0]))
    quiet(model, plan_of(model, {}, Run(layout="nhwc")))(torch.randn(2, 3, 8, 8))
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("goal", ["infer", "train"])
def test_copies_and_state_dicts_run_the_same_way(goal: str) -> None:
    model = quiet(net(), plan_of(net(), {"2": METHOD}, Run(precision="bf16"), goal))
    x = torch.randn(2, 8)
    twin = copy.deepcopy(model)
    assert torch.equal(twin(x), model(x)) and twin(x).dtype == torch.bfloat16
    assert type(twin).__name__ == "PlannedSequential" and isinstance(twin, nn.Sequential)
    other = quiet(net(), plan_of(net(), {"2": METHOD}, Run(precision="bf16"), goal))
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x), model(x))
    with torch.no_grad():
        next(twin.parameters()).zero_()
    assert not torch.equal(twin(x), model(x))  # a copy has weights of its own


def test_a_plan_is_applied_over_another() -> None:
    model = quiet(net(), plan_of(net(), {}, Run(precision="bf16")))
    model = quiet(model, plan_of(net(), {}, Run(precision="fp32")))
    assert type(model).__mro__[2] is nn.Sequential and model(torch.randn(1, 8)).dtype == torch.float32


def test_layers_that_do_not_fit_stay_and_are_listed() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5))
    plan = plan_of(net(), {"0": METHOD, "2": METHOD})
    assert mismatches(model, plan) == {
        "2": "the plan is for Linear(in_features=16, out_features=4, bias=True), "
        "the model has Linear(in_features=16, out_features=5, bias=True): study this model"
    }
    with pytest.warns(PlanMismatch, match="layers kept as they are: 2: the plan is for"):
        found: Any = lamina.apply(model, plan)
    assert type(found[0]).__name__ == "BlockCirculantLinear" and type(found[2]) is nn.Linear
    with pytest.raises(UsageError, match="does not fit the model: 2"):
        lamina.apply(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5)), plan, strict=True)


def test_a_plan_of_another_network_is_refused() -> None:
    with pytest.raises(UsageError, match="the model has no layer 2: rename it"):
        lamina.apply(nn.Linear(3, 3), plan_of(net(), {"2": METHOD}))


def test_other_hardware_is_named() -> None:
    plan = plan_of(net(), {}).model_copy(update={"environment": {"device": "NVIDIA H200"}})
    with pytest.warns(PlanMismatch, match="measured on NVIDIA H200, the model is on"):
        lamina.apply(net(), plan)


def test_cuda_graphs_need_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.Module, "compile", lambda self, **_: None)
    with pytest.warns(PlanMismatch, match="it runs in eager mode"):
        lamina.apply(net(), plan_of(net(), {}, Run(mode="graph")))
    with pytest.warns(PlanMismatch, match="it is compiled without them"):
        lamina.apply(net(), plan_of(net(), {}, Run(mode="compiled-graph")))


@pytest.mark.skipif(find_spec("torchao") is None, reason="torchao is not installed: pip install lamina[rivals]")
def test_quantized_weights_run_in_graphs_of_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.Module, "compile", lambda self, **_: None)
    run = Run(mode="compiled-graph", method="torchao:int8-weight-only")
    _, done = applied(net(), plan_of(net(), {}, run))
    found = "lamina.graphed cannot capture weights by torchao:int8-weight-only: the mode is reduce-overhead"
    assert found in done.remarks


def test_compiled_models_keep_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(nn.Module, "compile", lambda self, **options: asked.append(options))
    model = quiet(net(), plan_of(net(), {}, Run(mode="compiled")))
    assert asked == [{"mode": "default"}]
    assert model.state_dict().keys() == net().state_dict().keys()


@pytest.mark.parametrize("goal", ["infer", "train"])
def test_compiled_models_are_one_graph(goal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = partial(nn.Module.compile, backend="eager", fullgraph=True)
    monkeypatch.setattr(nn.Module, "compile", lambda self, mode: whole(self))
    plan = plan_of(net(), {}, Run(mode="compiled", precision="bf16")).model_copy(update={"goal": goal})
    model, x = quiet(net(), plan), torch.randn(2, 8)
    assert torch.equal(model(x), quiet(net(), plan).forward(x))


def test_a_plan_of_another_network_is_refused_also_where_it_keeps_layers_dense() -> None:
    with pytest.raises(UsageError, match="the plan of net does not fit the model, which has none of its layers: 0, 2"):
        lamina.apply(nn.Sequential(OrderedDict(head=nn.Linear(8, 4))), plan_of(net(), {}))


def test_shared_weights_are_left_alone() -> None:
    layer = nn.Linear(8, 8)
    model = nn.Sequential(layer, nn.ReLU(), nn.Linear(8, 8))
    model[2].weight = layer.weight
    _, done = applied(model, plan_of(model, {"0": METHOD}))
    assert "shared with another layer" in done.refused["0"] and not done.replaced


def test_pruned_layers_without_the_fitted_weights_are_named() -> None:
    plan = plan_of(net(), {"2": "eliminated[recovery=least_squares,keep=0.5,impl=gather]"})
    with pytest.warns(PlanMismatch, match="1 pruned layers are not fitted to data"):
        model: Any = lamina.apply(net(), plan)
    assert type(model[2]).__name__ == "EliminatedLinear"


def test_dead_channels_of_producers_are_pruned() -> None:
    plan = plan_of(net(), {"2": "eliminated[recovery=least_squares,keep=0.5,fold=true]"})
    model: Any
    model, done = applied(net(), plan)
    assert (model[0].out_features, model[2].in_features) == (8, 8) and done.replaced


def test_an_unknown_method_leaves_the_layer() -> None:
    plan = plan_of(net(), {"0": METHOD, "2": "circulant[block_size=7]"})
    _, done = applied(net(), plan)
    assert done.replaced == {"0": METHOD} and "2" in done.refused


def test_lazy_parameters_need_a_size_first() -> None:
    plan, model = plan_of(net(), {"0": METHOD}), nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(4))
    with pytest.raises(UsageError, match="lazy parameters without a size"):
        lamina.apply(model, plan)
    model(torch.randn(2, 8))
    assert type(quiet(model, plan)[0]).__name__ == "BlockCirculantLinear"


def test_compiled_models_and_what_is_no_module_are_refused() -> None:
    plan = plan_of(net(), {"0": METHOD})
    compiled = torch.compile(net(), backend="eager")
    before = [*compiled.state_dict()]
    with pytest.raises(UsageError, match=r"model: expected what torch\.compile has not compiled yet"):
        lamina.apply(compiled, plan)
    assert [*compiled.state_dict()] == before
    with pytest.raises(UsageError, match=r"model: expected a torch\.nn\.Module, got function"):
        lamina.apply(lambda x: x, plan)  # type: ignore[arg-type]


def test_what_is_no_plan_is_refused() -> None:
    with pytest.raises(UsageError, match="plan: expected a Plan or a path, got None"):
        lamina.apply(net(), None)  # type: ignore[arg-type]


def test_the_documented_type_of_a_layer_is_one_that_fits() -> None:
    assert f"``{describe_type(nn.Linear(784, 512))}``" in str(PlannedLayer.__doc__)
