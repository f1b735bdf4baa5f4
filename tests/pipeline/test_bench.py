"""bench: rows for every phase, kept as they are measured, resumed where they ended."""

from pathlib import Path

import pytest
import torch

from lamina import pipeline
from lamina.build import Target, from_network
from lamina.errors import MissingError, UsageError
from lamina.record import LayerRun
from lamina.spec import Input, Method, Network, Phase, Workload
from lamina.spec import layers as spec
from lamina.store import Store

QUICK = Workload(repeat=2, batch=(2,))


def network(*layers: spec.Layer, mode: str = "composed") -> Target:
    source = Input(shape=(3, 8, 8))
    return from_network(Network(name="small", inputs=(source,), layers=layers, mode=mode))  # type: ignore[arg-type]


SMALL = network(
    spec.Convolution(name="conv", inputs=("input",), out_channels=4, kernel=3, padding=1),
    spec.Activation(name="relu", inputs=("conv",)),
    spec.Linear(name="fc", inputs=("relu",), out_features=5, spatial=True),
)
ROWS = {
    ("conv", "forward"),
    ("conv", "backward_weight"),
    ("relu", "forward"),
    ("relu", "backward_data"),
    ("fc", "forward"),
    ("fc", "backward_data"),
    ("fc", "backward_weight"),
    ("small", "step"),
}


@pytest.fixture(autouse=True)
def known_roofs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring a machine's roofs takes seconds; these tests are about rows."""
    from lamina import measure
    from lamina.record import Roofs

    roofs = Roofs("test", "2026-01-01", 1, {"torch": torch.__version__}, 10.0, 8.0, {"fp32": 100.0}, 5.0, 5.0)
    monkeypatch.setattr(measure, "roofs", lambda device, cache_dir, refresh=False: roofs)


def timed(rows: tuple[LayerRun, ...]) -> set[tuple[str, str]]:
    return {(row.layer, row.phase) for row in rows if row.timing}


def test_every_phase_and_the_whole_step_get_a_row(store: Store, tmp_path: Path) -> None:
    this = pipeline.bench(SMALL, QUICK, store, cache=tmp_path)
    rows = store.layers(this.id)
    assert this.status == "done" and timed(rows) == ROWS
    (skipped,) = [row for row in rows if row.timing is None]
    assert (skipped.layer, skipped.phase, skipped.outcome) == ("conv", "backward_data", "skipped")
    conv = next(row for row in rows if (row.layer, row.phase) == ("conv", "forward"))
    assert conv.flops == 2 * 2 * 4 * 3 * 9 * 64 and conv.rel_error is not None and conv.rel_error < 1e-5
    assert conv.peak_bytes is not None and conv.peak_bytes >= 2 * 4 * 64 * 4


def test_the_grid_is_every_combination(store: Store, tmp_path: Path) -> None:
    workload = QUICK.model_copy(
        update={
            "precision": ("fp32", "bf16"),
            "batch": (1, 2),
            "layout": ("nchw", "nhwc"),
            "phases": (Phase.FORWARD,),
        }
    )
    rows = store.layers(pipeline.bench(SMALL, workload, store, cache=tmp_path).id)
    assert len({(row.precision, row.batch, row.layout) for row in rows}) == 8
    assert len(rows) == 8 * 4


def test_a_killed_run_keeps_its_rows_and_resuming_completes_it(store: Store, tmp_path: Path) -> None:
    seen = []

    def stop(event: object) -> None:
        if isinstance(event, LayerRun):
            seen.append(event)
            if len(seen) == 4:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pipeline.bench(SMALL, QUICK, store, cache=tmp_path, watch=stop)
    (interrupted,) = store.runs()
    kept = store.layers(interrupted.id)
    assert interrupted.status == "interrupted" and len(kept) == 4

    resumed = pipeline.bench(SMALL, QUICK, store, cache=tmp_path, resume=True)
    rows = store.layers(resumed.id)
    assert resumed.id == interrupted.id and resumed.status == "done" and timed(rows) == ROWS
    assert set(kept) <= set(rows), "a row that was there was measured again"
    assert len(store.runs()) == 1


def test_other_work_is_not_resumed(store: Store, tmp_path: Path) -> None:
    def stop(event: object) -> None:
        if isinstance(event, LayerRun):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pipeline.bench(SMALL, QUICK, store, cache=tmp_path, watch=stop)
    other = QUICK.model_copy(update={"precision": ("bf16",)})
    pipeline.bench(SMALL, other, store, cache=tmp_path, resume=True)
    assert len(store.runs()) == 2


def test_algorithms_are_compared_and_layers_they_cannot_do_say_why(store: Store, tmp_path: Path) -> None:
    methods = tuple(Method.parse(text) for text in ("dense", "dense:winograd", "dense:fft", "dense:gemm"))
    this = pipeline.bench(SMALL, QUICK.model_copy(update={"impl": methods}), store, cache=tmp_path)
    rows = store.layers(this.id)
    conv = {row.impl: row for row in rows if (row.layer, row.phase) == ("conv", "forward")}
    assert set(conv) == {"dense", "dense:winograd", "dense:fft", "dense:gemm"}
    assert all(row.timing for row in conv.values())
    reasons = {row.reason for row in rows if row.layer == "fc" and row.impl == "dense:fft"}
    assert reasons == {"dense:fft is for convolutions, this is linear"}


def test_a_layer_that_fails_is_a_row_and_the_run_goes_on(store: Store, tmp_path: Path) -> None:
    # Average pooling over three axes, which local response normalisation uses, has no bf16 form on the CPU.
    lrn = network(
        spec.LocalResponseNorm(name="lrn", inputs=("input",)),
        spec.Linear(name="fc", inputs=("lrn",), out_features=5, spatial=True),
    )
    this = pipeline.bench(lrn, QUICK.model_copy(update={"precision": ("bf16",)}), store, cache=tmp_path)
    rows = {(row.layer, row.phase): row for row in store.layers(this.id)}
    assert rows["lrn", "forward"].outcome == "failed" and "BFloat16" in rows["lrn", "forward"].reason
    assert rows["fc", "backward_weight"].outcome == "ok" and this.status == "done"


def test_standalone_layers_have_input_gradients_and_no_whole_step(store: Store, tmp_path: Path) -> None:
    alone = from_network(
        Network(
            name="two",
            mode="standalone",
            inputs=(Input(name="a.input", shape=(3, 8, 8), gradient=True), Input(name="b.input", shape=(10,))),
            layers=(
                spec.Convolution(name="a", inputs=("a.input",), out_channels=4, kernel=3),
                spec.Linear(name="b", inputs=("b.input",), out_features=5),
            ),
        )
    )
    rows = store.layers(pipeline.bench(alone, QUICK, store, cache=tmp_path).id)
    assert ("a", "backward_data") in timed(rows) and ("b", "backward_data") not in timed(rows)
    assert not any(row.phase == "step" for row in rows)


@pytest.mark.parametrize(
    ("update", "error"),
    [
        ({"impl": (Method.parse("circulant[blocksize=8]"),)}, UsageError),
        ({"impl": (Method("dense", "winogard"),)}, UsageError),
        ({"clocks": ("events",)}, UsageError),
        ({"device": "cuda"}, MissingError),
        ({"data": "no-such-data"}, UsageError),
    ],
)
def test_what_cannot_be_done_is_refused_before_a_run_begins(
    store: Store, tmp_path: Path, update: dict[str, object], error: type[Exception]
) -> None:
    if update.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(error):
        pipeline.bench(SMALL, QUICK.model_copy(update=update), store, cache=tmp_path)
    assert store.runs() == ()


def test_a_layer_s_own_method_is_asked_for_before_the_run(store: Store, tmp_path: Path) -> None:
    own = spec.Linear(name="fc", inputs=("input",), out_features=5, spatial=True, method="sparse[blocks=8]")
    with pytest.raises(UsageError, match="option 'blocks' is unknown"):
        pipeline.bench(network(own), QUICK, store, cache=tmp_path)


def test_functions_between_modules_are_measured_too(store: Store, tmp_path: Path) -> None:
    target, _ = pipeline.find("resnet10_cifar")
    workload = QUICK.model_copy(update={"phases": (Phase.FORWARD,), "repeat": 1, "batch": (1,)})
    rows = {row.layer: row for row in store.layers(pipeline.bench(target, workload, store, cache=tmp_path).id)}
    assert rows["layer1.0.add"].outcome == "ok" and 0 < (rows["layer1.0.add"].rel_error or 1) < 1e-6


def test_circulant_layers_are_benched_beside_dense_ones(store: Store, tmp_path: Path) -> None:
    methods = tuple(Method.parse(text) for text in ("dense", "circulant[block_size=4]"))
    rows = store.layers(pipeline.bench(SMALL, QUICK.model_copy(update={"impl": methods}), store, cache=tmp_path).id)
    fc = {row.impl: row for row in rows if (row.layer, row.phase) == ("fc", "backward_weight")}
    assert fc["circulant[block_size=4]"].timing and fc["circulant[block_size=4]"].parameters == 2 * 64 * 4
    assert fc["dense"].parameters == 5 * 256 and fc["dense"].flops and fc["circulant[block_size=4]"].flops is None
    refused = {row.reason for row in rows if row.impl != "dense" and row.outcome == "skipped" and row.layer != "fc"}
    assert any("block size 4 exceeds its 3 input channels" in reason for reason in refused)
    assert any("has no weights" in reason for reason in refused)
