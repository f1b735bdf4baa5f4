"""``lamina.convert`` times layers with the machine's own clocks."""

from importlib import import_module
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lamina import measure
from lamina.accelerate.methods.circulant import Circulant
from lamina.accelerate.methods.elimination import Eliminated
from lamina.accelerate.select import MIN_SPEEDUP
from lamina.errors import UsageError
from lamina.pipeline import whole_model
from lamina.pipeline.convert import convert, timer
from lamina.record import MODES, Timing
from lamina.record.roofs import Roofs
from lamina.spec.plan import CAPTURED

pipeline_convert = import_module("lamina.pipeline.convert")


def test_layers_are_timed_and_selections_kept(tmp_path: Path) -> None:
    x = torch.randn(4, 32)
    nets = [nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)) for _ in range(2)]
    records = [convert(net, Circulant(8), example=x, select="measure", cache=tmp_path)[1] for net in nets]
    first, second = (record.layers[0].selection for record in records)
    assert first is not None and first == second  # the second was read from the file
    assert (tmp_path / "selections.json").exists()
    assert first.mode == "eager" and first.times_us["dense"] > 0
    assert records[0].layers[2].refusal == "block size 8 exceeds its 4 output features"


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cache: .*selections\.json cannot be written \(.*; give another folder"):
        convert(nn.Linear(8, 8), Circulant(4), example=torch.randn(2, 8), select="measure", cache=tmp_path / "file/a")


def test_a_time_limit_leaves_three_rounds_to_each_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []

    def interleaved(*args: Any, **options: Any) -> Any:
        times = timed(*args, **options)
        rounds.extend(time.n for time in times.values())
        return times

    timed = measure.interleaved
    monkeypatch.setattr(measure, "interleaved", interleaved)
    net = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32, bias=False))
    convert(net, Circulant(8), example=torch.randn(4, 32), select="measure", limit_s=0.0)
    assert rounds and set(rounds) == {3}


def test_a_cost_model_selects_without_timing_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def peaks(device: torch.device, cache: Path) -> Roofs:
        asked.append(cache)
        return Roofs("a CPU", "2026-01-01", 1, {"torch": "2"}, 1e4, 1e4, {"fp32": 1.0}, 1e-3, 1e-3)  # few FLOPs win

    def clock(*args: object) -> None:
        raise AssertionError("nothing is to be timed")

    monkeypatch.setattr(measure, "roofs", peaks)
    monkeypatch.setattr(measure, "interleaved", clock)
    x = torch.randn(64, 512)
    net = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8), nn.LSTM(8, 8))
    net, record = convert(net, Eliminated(keep=0.25), example=x, select="model", cache=tmp_path)
    assert asked == [tmp_path]
    big, _, small, lstm = record.layers
    assert big.refusal is None and big.selection is not None and big.selection.predicted
    assert big.selection.impl.startswith("eliminated[") and big.selection.speedup == pytest.approx(4, rel=0.1)
    assert "predicted by the cost model of eliminated from peaks of a CPU" in big.selection.reason
    assert small.selection is not None and lstm.refusal == "no cost model for LSTM"
    assert not (tmp_path / "selections.json").exists()
    net[:3](x).sum().backward()


def test_layers_take_the_first_of_several_methods_that_can_replace_them() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 16, 3),
        nn.Flatten(), nn.Linear(16, 16), nn.Linear(16, 4),
    )  # fmt: skip
    first, x = net[0], torch.randn(2, 3, 9, 9)
    expected = first(x)
    net, record = convert(net, [Circulant(8), "dense:space_to_depth"], example=x)
    assert record.method == "circulant[block_size=8], dense:space_to_depth"
    replaced = {layer.layer: layer.method for layer in record.replaced}
    assert replaced == {"0": "dense:space_to_depth", "2": "circulant[block_size=8]", "4": "circulant[block_size=8]"}
    assert [layer.layer for layer in record.layers].count("0") == 1
    torch.testing.assert_close(net[0](x), expected)
    net(x).sum().backward()
    assert first.weight.grad is not None  # the same parameters
    kept = next(layer for layer in record.skipped if layer.layer == "5")
    assert kept.refusal == "block size 8 exceeds its 4 output features"


def test_layers_keep_the_reasons_of_all_methods_and_written_methods_convert() -> None:
    net, record = convert(nn.Sequential(nn.Conv2d(32, 4, 3)), ["circulant[block_size=16]", "dense:space_to_depth"])
    (layer,) = record.skipped
    assert layer.refusal is not None and type(net[0]) is nn.Conv2d
    assert "4 output channels; dense:space_to_depth: is for at most 16 input channels" in layer.refusal
    _, record = convert(nn.Conv2d(3, 4, 3), "dense:fft", where=lambda name, layer: False)
    assert [layer.refusal for layer in record.layers] == ["not selected"]
    with pytest.raises(UsageError, match="did you mean 'space_to_depth'"):
        convert(net, "dense:space_to_dept")
    model = nn.Sequential(nn.Linear(16, 16))
    with pytest.raises(UsageError, match="got 4"):
        convert(model, [Circulant(8), 4])
    assert type(model[0]) is nn.Linear
    with pytest.raises(UsageError, match="got none"):
        convert(net, [])
    with pytest.raises(UsageError, match="no cost model"):
        convert(model, [Circulant(8), "dense:fft"], example=torch.randn(1, 16), select="model")
    assert type(model[0]) is nn.Linear


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Microseconds of candidates, by the start of their names."""
    found: dict[str, float] = {}

    def fake(device: torch.device, mode: str, rounds: int = 9, limit_s: float = inf, **_: bool) -> Any:
        def time(steps: Any) -> Any:
            for step in steps.values():
                step()
            if "converted" in steps and "converted" not in found:
                return {name: RuntimeError("operation not permitted when stream is capturing") for name in steps}
            us = {name: found[name.partition("[")[0]] for name in steps}
            return {name: Timing("wall", "-", value, value, value, 9) for name, value in us.items()}

        return time

    monkeypatch.setattr(pipeline_convert, "timer", fake)
    return found


def nested() -> nn.Sequential:
    encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.Sequential(nn.BatchNorm1d(4), nn.Sequential(encoder, nn.Linear(16, 16)), nn.ReLU())


def test_a_model_whose_step_is_not_faster_keeps_its_own_layers(times: dict[str, float]) -> None:
    times |= {"dense": 100.0, "circulant": 50.0, "converted": 99.0}
    net, x = nested(), torch.randn(3, 4, 16)
    encoder: Any = net.get_submodule("1.0")
    before, flags = dict(net.named_modules()), encoder.activation_relu_or_gelu
    running = net.get_buffer("0.running_mean").clone()
    expected = net.eval()(x)
    out, record = convert(net.train(), Circulant(4), example=x, select="measure")
    assert out is net and dict(net.named_modules()) == before
    assert encoder.activation_relu_or_gelu == flags
    assert torch.equal(net.get_buffer("0.running_mean"), running)
    assert torch.equal(net.eval()(x), expected)
    assert not record.replaced and record.whole is not None and record.whole.impl == "dense"
    layer = next(layer for layer in record.layers if layer.layer == "1.1")
    assert layer.selection is not None and layer.selection.impl.startswith("circulant")
    assert str(layer.refusal).startswith("the whole model is not faster: dense: 100 us; converted 99 us")


def test_a_model_whose_step_is_faster_is_converted(times: dict[str, float]) -> None:
    times |= {"dense": 100.0, "circulant": 50.0, "converted": 80.0}
    net, x = nested(), torch.randn(3, 4, 16)
    _, record = convert(net, Circulant(4), example=x, select="measure")
    assert len(record.replaced) == 5
    assert record.whole is not None and record.whole.impl == "converted" and record.whole.speedup == 1.25
    net(x).sum().backward()


def test_a_compiled_model_is_refused_and_stays_as_it_is() -> None:
    whole, parts = nn.Sequential(nn.Linear(8, 8)), nn.Sequential(nn.Linear(8, 8))
    whole.compile(backend="eager")
    models = (torch.compile(nn.Sequential(nn.Linear(8, 8)), backend="eager"), whole, nn.Sequential(parts.append(whole)))
    for model in models:
        before = [*model.state_dict()]
        with pytest.raises(UsageError, match=r"model[.01]*: expected what torch\.compile has not compiled yet"):
            convert(model, Circulant(4))
        assert [*model.state_dict()] == before


@pytest.mark.parametrize("stage", ["a layer", "the whole model", "fewer layers"])
def test_an_interrupted_conversion_leaves_the_model_as_it_was(
    stage: str, times: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    times |= {"dense": 100.0, "circulant": 50.0, "converted": 99.0}
    wholes: list[str] = []

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    def whole(*asked: Any) -> Any:
        wholes.append(stage)
        return (interrupted if stage == "the whole model" or len(wholes) > 1 else select_whole)(*asked)

    select_whole = whole_model.select_whole
    monkeypatch.setattr(whole_model, "select_whole", whole)
    net, x = nested().train(), torch.randn(3, 4, 16)
    before, state = dict(net.named_modules()), {name: value.clone() for name, value in net.state_dict().items()}
    seen: list[str] = []

    def progress(layer: str, _: Any) -> None:
        seen.append(layer)
        if stage == "a layer" and len(seen) > 1:
            interrupted()

    with pytest.raises(KeyboardInterrupt):
        convert(net, Circulant(4), example=x, select="measure", progress=progress)
    assert len(wholes) == {"a layer": 0, "the whole model": 1, "fewer layers": 2}[stage]
    assert dict(net.named_modules()) == before
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())


def test_a_single_layer_is_its_own_model(times: dict[str, float]) -> None:
    times |= {"dense": 100.0, "circulant": 50.0, "converted": 100.0}
    layer, x = nn.Linear(16, 16), torch.randn(3, 16)
    assert convert(layer, Circulant(4), example=x, select="measure")[0] is layer
    times["converted"] = 50.0
    assert convert(layer, Circulant(4), example=x, select="measure")[0] is not layer


def test_a_step_that_cannot_be_timed_leaves_the_selections_of_layers(times: dict[str, float]) -> None:
    times |= {"dense": 100.0, "circulant": 50.0}
    net, x = nn.Sequential(nn.Linear(16, 16)), torch.randn(3, 16)
    _, record = convert(net, Circulant(4), example=x, select="measure")
    assert len(record.replaced) == 1
    assert record.whole is not None and "not compared as a whole" in record.whole.reason


def test_without_select_every_layer_is_replaced() -> None:
    _, record = convert(nn.Sequential(nn.Linear(8, 8)), Circulant(4))
    assert len(record.replaced) == 1 and record.replaced[0].selection is None


def test_what_cannot_be_is_refused() -> None:
    net, x = nn.Sequential(nn.Linear(8, 8)), torch.randn(2, 8)
    with pytest.raises(UsageError, match="'measured' is unknown"):
        convert(net, Circulant(4), example=x, select="measured")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="example="):
        convert(net, Circulant(4), select="measure")
    with pytest.raises(UsageError, match="did you mean 'graph'"):
        convert(net, Circulant(4), mode="graphs")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"model: expected a torch\.nn\.Module, got function"):
        convert(lambda x: x, Circulant(4))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="'lazy' is unknown"):
        convert(net, Circulant(4), example=x, select="measure", mode="lazy")  # type: ignore[arg-type]
    if not torch.cuda.is_available():
        for mode in CAPTURED:
            with pytest.raises(UsageError, match=f"mode '{mode}': CUDA graphs need a GPU"):
                convert(net, Circulant(4), example=x, select="measure", mode=mode)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"where": ["0"]}, "where: expected a function, got"),
        ({"progress": True}, "progress: expected a function, got True"),
        ({"training": "yes"}, "training: expected True, False or None, got 'yes'"),
        *(({"limit_s": wrong}, "limit_s: expected a number of seconds of at least 0") for wrong in (nan, None, -1)),
        ({"cache": 3}, "cache: expected a folder, got 3"),
        ({"cache": __file__}, "cache: expected a folder, got .*test_convert"),
    ],
)
@pytest.mark.parametrize("select", [None, "model", "measure"])
def test_wrong_options_are_refused(select: Any, option: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        convert(nn.Linear(8, 8), Circulant(4), example=torch.randn(2, 8), select=select, **option)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # the compiler's own, at its first capture
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_times_on_a_gpu(mode: str) -> None:
    x = torch.randn(64, 256, device="cuda")
    net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).cuda()
    net, record = convert(net, Circulant(64), example=x, select="measure", mode=mode)  # type: ignore[arg-type]
    assert all(layer.selection for layer in record.layers if layer.kind == "Linear")
    net(x).sum().backward()


def test_a_timer_gives_times_of_all() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x = torch.randn(32, 32, device=device)
    times = timer(device, "eager", rounds=3)({"a": lambda: x @ x, "b": lambda: x + x})
    assert {name: time.n for name, time in times.items() if not isinstance(time, Exception)} == {"a": 3, "b": 3}


def test_networks_that_the_compiler_replays_are_timed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[list[str]] = []

    def interleaved(clock: Any, steps: dict[str, Any], *, limit_s: float, **_: Any) -> dict[str, Timing]:
        assert limit_s == 3.0
        rounds.append([*steps])
        return {name: Timing("wall", "warm", 1.0, 1.0, 1.0, 9) for name in steps}

    monkeypatch.setattr(measure, "interleaved", interleaved)
    monkeypatch.setattr(measure, "clock", lambda *_: None)
    monkeypatch.setattr(pipeline_convert, "forget_compiled", lambda: rounds.append([]))
    steps = {"a": lambda: rounds.append(["compiled"]), "b": lambda: rounds.append(["compiled"])}
    times = timer(torch.device("cuda"), "reduce-overhead", limit_s=6.0, ready=True)(steps)
    once = [[], ["compiled"], ["a"], [], ["compiled"], ["b"]]
    assert rounds == once and times.keys() == {"a", "b"}
    rounds.clear()
    timer(torch.device("cuda"), "reduce-overhead", limit_s=6.0, ready=True, twice=True)(steps)
    assert rounds == [*once, *once[3:], *once[:3]]
    rounds.clear()
    timer(torch.device("cuda"), "reduce-overhead", limit_s=3.0, ready=True, twice=True)({"a": steps["a"]})
    assert rounds == once[:3]


@pytest.mark.parametrize("mode", MODES)
def test_what_python_launches_must_win_by_more(mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_convert, "timer", lambda *_, **__: None)
    monkeypatch.setattr(pipeline_convert, "provenance", lambda _: {})
    gpu = torch.device("cuda")
    of_layers = pipeline_convert.selector(gpu, mode, True)
    of_whole = pipeline_convert.selector(gpu, mode, True, twice=True)
    on_cpu = pipeline_convert.selector(torch.device("cpu"), mode, True, twice=True)
    least = {"eager": 1.05, "compiled": 1.05}.get(mode, MIN_SPEEDUP)
    assert (of_layers.min_speedup, of_whole.min_speedup, on_cpu.min_speedup) == (least, least, MIN_SPEEDUP)
    assert of_whole.short_speedup == (1.1 if mode == "reduce-overhead" else least)


def test_two_timings_of_a_step_spread_over_what_changed_between_them() -> None:
    slow, quick = (Timing("wall", "warm", us, us - 1, us + 1, 4) for us in (20.0, 10.0))
    assert pipeline_convert._both(slow, quick) == Timing("wall", "warm", 15.0, 9.0, 21.0, 8)
    failed = ValueError()
    assert pipeline_convert._both(slow, failed) is pipeline_convert._both(failed, quick) is failed


def test_what_does_not_compile_has_its_error() -> None:
    def fails() -> None:
        raise AssertionError("no kernel")

    times = timer(torch.device("cpu"), "compiled", rounds=3)({"fails": fails, "runs": lambda: None})
    assert isinstance(times["fails"], AssertionError) and isinstance(times["runs"], Timing)


@pytest.mark.parametrize("faster", [True, False])
def test_a_convolution_takes_the_algorithm_only_where_it_is_faster(times: dict[str, float], faster: bool) -> None:
    times |= {"dense:space_to_depth": 5.0 if faster else 20.0, "dense": 10.0, "converted": 8.0}
    first = nn.Conv2d(3, 8, 3, stride=2)
    net, seen = nn.Sequential(first, nn.ReLU()), dict[str, Any]()
    net, record = convert(
        net, "dense:space_to_depth", example=torch.randn(2, 3, 8, 8), select="measure", progress=seen.__setitem__
    )
    assert (net[0] is not first) == faster and bool(record.replaced) == faster
    assert record.layers[0].selection == seen["0"] and (record.whole is not None) == faster
