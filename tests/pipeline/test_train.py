"""train: learns, records, and resumes to the very same weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lamina import pipeline
from lamina.accelerate.methods.circulant import Circulant
from lamina.accelerate.methods.circulant.nn import BlockCirculantLinear
from lamina.build import Target, from_external
from lamina.build.inputs import Made
from lamina.build.models.external import External
from lamina.errors import LaminaError, UsageError
from lamina.pipeline import find
from lamina.pipeline.sparsity import sparsity
from lamina.run import Progress
from lamina.run.checkpoint import load, save
from lamina.spec import Input, Method
from lamina.spec.plan import Plan
from lamina.spec.plan_file import write_plan
from lamina.spec.training import Training
from lamina.store import Store

SETTINGS = Training(epochs=3, batch=20, learning_rate=0.05, warmup_steps=0)
NO_SCORES = "the network has no class scores: the loss is the mean square of its outputs; there is no accuracy"


def weights(network: torch.nn.Module) -> list[torch.Tensor]:
    return list(network.state_dict().values())


def test_it_learns_and_every_epoch_is_stored(store: Store, data: str) -> None:
    pipeline.train(find("lenet5")[0], data, SETTINGS, store)
    (this,) = store.runs()
    epochs = store.epochs(this.id)
    assert this.status == "done" and [epoch.epoch for epoch in epochs] == [0, 1, 2]
    assert epochs[-1].test_accuracy > 0.95
    assert this.config["data"] == data and this.config["learning_rate"] == 0.05


@pytest.mark.parametrize("impl", ["circulant[block_size=4]", "sparse", "eliminated", "weight-only", "fused"])
def test_a_converted_network_trains_and_the_run_says_by_what(store: Store, data: str, impl: str) -> None:
    settings = SETTINGS.model_copy(update={"epochs": 1})
    trained = pipeline.train(find("lenet5")[0], data, settings, store, impl=Method.parse(impl))
    (this,) = store.runs()
    assert this.status == "done" and this.config["impl"] == impl and store.epochs(this.id)
    converted, ran = this.remarks[-2:]
    assert converted.startswith(f"{impl}: ") and converted.endswith(" of 5 layers converted") and ran.startswith("ran ")
    assert {type(layer) for layer in trained.modules()} - {type(layer) for layer in find("lenet5")[0].make(2).modules()}


@pytest.mark.parametrize("impl", ["circulant[block_size=4]", Circulant(4)])
def test_a_method_may_be_written_or_a_configuration(store: Store, data: str, impl: object) -> None:
    pipeline.train(find("lenet5")[0], data, SETTINGS.model_copy(update={"epochs": 1}), store, impl=impl)
    assert store.runs()[0].config["impl"] == "circulant[block_size=4]"


def test_paths_may_be_text(store: Store, tmp_path: Path) -> None:
    path, page = str(tmp_path / "last.safetensors"), str(tmp_path / "report.html")
    write_plan(Plan(network="net", goal="train", batch=4), tmp_path / "plan.toml")
    target, _ = find(nn.Linear(8, 4), input_size=(8,))
    pipeline.train(target, "synthetic", Training(epochs=1), store, checkpoint=path, plan=str(tmp_path / "plan.toml"))
    assert Path(path).is_file() and pipeline.report(store, "latest", page) == Path(page)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"mode": "grph"}, "mode 'grph' is unknown: did you mean 'graph'"),
        ({"layout": "nhcw"}, "layout 'nhcw' is unknown: did you mean 'nhwc'"),
        ({"parallel": "fsdpp"}, "parallel 'fsdpp' is unknown: did you mean 'fsdp'"),
        ({"impl": "circulnt"}, "'circulnt' is unknown: did you mean 'circulant'"),
        ({"plan": 3}, "plan: expected a Plan or a path, got 3"),
        ({"checkpoint": 3}, "checkpoint: expected a path, got 3"),
    ],
)
def test_unknown_options_are_refused(store: Store, option: dict[str, Any], message: str) -> None:
    target, _ = find(nn.Linear(8, 4), input_size=(8,))
    with pytest.raises(UsageError, match=message):
        pipeline.train(target, "synthetic", SETTINGS, store, **option)


@pytest.mark.skipif(torch.cuda.is_available(), reason="it is computed in TF32")
def test_tf32_on_the_cpu_is_told(store: Store, data: str) -> None:
    for precision in ("fp32", "tf32"):
        settings = SETTINGS.model_copy(update={"epochs": 1, "precision": precision})
        pipeline.train(find("lenet5")[0], data, settings, store)
    told, plain = (run.remarks for run in store.runs())
    assert plain == () and told == ("tf32 is a mode of tensor cores: on the CPU it is computed in fp32",)


def test_what_cannot_be_trained_is_one_message(store: Store, data: str) -> None:
    target = find("lenet5")[0]
    with pytest.raises(UsageError, match="supports no layer of lenet5: block size 256 exceeds"):
        pipeline.train(target, data, SETTINGS, store, impl=Method.parse("circulant[block_size=256]"))
    two = Target("two", (Input(shape=(1, 28, 28)), Input(name="mask", shape=(4,))), lambda classes: nn.Linear(4, 4))
    with pytest.raises(UsageError, match="a dataset fills one input, two has 2: input, mask"):
        pipeline.train(two, data, SETTINGS, store)

    class Broken(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if type(x) is torch.Tensor and x.device.type == "cpu":  # not while it is traced
                raise TypeError("no such thing")
            return super().forward(x[..., :4])

    broken = Target("broken", (Input(shape=(1, 28, 28)),), lambda classes: Broken(4, 4))
    with pytest.raises(LaminaError, match="broken: a training step failed: TypeError: no such thing"):
        pipeline.train(broken, data, SETTINGS, store)
    with pytest.raises(LaminaError, match="broken: a training step failed: TypeError: no such thing"):
        sparsity(broken, data, SETTINGS, store, iterations=1, modules=[""])


def test_sparse_gradients_are_trained(store: Store) -> None:
    bag = Input(name="input", shape=(4,), content="indices")
    target = from_external("bag", lambda: External(nn.EmbeddingBag(5, 3, sparse=True)), [bag])
    pipeline.train(target, "synthetic", SETTINGS.model_copy(update={"clip_norm": 1.0}), store)
    assert store.runs()[0].status == "done"


class Joined(nn.Module):
    """An image, and tokens passed by name; ``classes`` scores of a sample, or a map of its pixels."""

    def __init__(self, classes: int | None) -> None:
        super().__init__()
        self.body, self.embed, self.classes = nn.Conv2d(1, 6, 3, padding=1), nn.Embedding(5, 6), classes
        self.head = nn.Linear(6, classes or 1)

    def forward(self, image: torch.Tensor, *, tokens: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.body(image) + self.embed(tokens).mean(1)[:, :, None, None])
        scores: torch.Tensor = self.head(y.mean((2, 3)) if self.classes else y.movedim(1, -1))
        return scores


INPUTS = (Input(name="image", shape=(1, 6, 6)), Input(name="tokens", shape=(3,), content="indices"))


@pytest.mark.parametrize("classes", [10, None])
def test_networks_of_several_inputs_train_on_synthetic_data(store: Store, classes: int | None) -> None:
    target = from_external("joined", lambda: External(Joined(classes)), INPUTS)
    pipeline.train(target, "synthetic", SETTINGS, store)
    (this,) = store.runs()
    first, *_, last = store.epochs(this.id)
    assert last.train_loss < first.train_loss
    assert this.remarks == (() if classes else (NO_SCORES,))
    settings = SETTINGS.model_copy(update={"epochs": 1})
    trained = pipeline.train(target, "synthetic", settings, store, impl=Method.parse("weight-only"))
    assert not isinstance(trained.head, nn.Linear)


def test_inputs_that_a_function_makes_train_the_network(store: Store) -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Conv2d(3, 2, 1)

        def forward(self, images: list[torch.Tensor]) -> list[torch.Tensor]:
            return [self.body(image) for image in images]

    made = Made(lambda batch: ([torch.rand(3, 4 + sample, 5) for sample in range(batch)],))
    pipeline.train(from_external("listed", lambda: External(Listed()), made), "synthetic", SETTINGS, store)
    assert store.runs()[0].remarks == (NO_SCORES,)


def test_attention_trains_with_converted_projections(store: Store, data: str) -> None:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(28, 4, batch_first=True)
            self.head = nn.Linear(28, 12)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.squeeze(1)
            scores: torch.Tensor = self.head(self.attention(x, x, x)[0].mean(1))
            return scores

    target = Target("attending", (Input(shape=(1, 28, 28)),), lambda classes: Attending())
    settings = SETTINGS.model_copy(update={"epochs": 1})
    trained = pipeline.train(target, data, settings, store, impl=Method.parse("circulant[block_size=4]"))
    layers: Any = trained.attention.in_proj, trained.attention.out_proj, trained.head
    assert all(isinstance(layer, BlockCirculantLinear) for layer in layers)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("stop", [3, 5, 7])
def test_a_killed_run_resumes_to_the_same_weights(
    store: Store, data: str, tmp_path: Path, optimizer: str, stop: int
) -> None:
    settings = SETTINGS.model_copy(update={"optimizer": optimizer, "epochs": 2, "learning_rate": 0.01})
    target = find("lenet5")[0]
    whole = pipeline.train(target, data, settings, store)
    checkpoint = tmp_path / "state.safetensors"

    from lamina.run import training

    original = training.train

    def every_step(*args: object, **options: object) -> object:
        return original(*args, **options, save_every=2, report_every=1)  # type: ignore[arg-type]

    class Killed(BaseException):
        pass

    def kill(event: object) -> None:
        if isinstance(event, Progress) and event.step == stop:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lamina.run.train", every_step)
        with pytest.raises(Killed):
            pipeline.train(target, data, settings, store, checkpoint=checkpoint, watch=kill)
        resumed = pipeline.train(target, data, settings, store, checkpoint=checkpoint, resume=True)
    for a, b in zip(weights(whole), weights(resumed), strict=True):
        assert torch.equal(a, b)
    assert store.runs()[0].status == "done"


def test_dropout_resumes_to_the_same_weights(store: Store, data: str, tmp_path: Path) -> None:
    target = Target(
        "dropping", (Input(shape=(1, 28, 28)),),
        lambda classes: nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.Dropout(), nn.Linear(16, classes or 2)),
    )  # fmt: skip
    settings = SETTINGS.model_copy(update={"epochs": 2, "batch": 50})
    whole = pipeline.train(target, data, settings, store)
    checkpoint = tmp_path / "state.safetensors"

    class Killed(BaseException):
        pass

    def kill(event: object) -> None:
        if isinstance(event, Progress) and event.test_loss is not None and event.epoch == 1:
            raise Killed

    with pytest.raises(Killed):
        pipeline.train(target, data, settings, store, checkpoint=checkpoint, watch=kill)
    resumed = pipeline.train(target, data, settings, store, checkpoint=checkpoint, resume=True)
    for a, b in zip(weights(whole), weights(resumed), strict=True):
        assert torch.equal(a, b)
    # The second epoch had ended but was not stored: the checkpoint may not have been beyond it.
    assert [epoch.epoch for epoch in store.epochs(store.runs()[0].id)] == [0, 1]


def test_training_that_has_ended_is_resumed_without_an_empty_run(store: Store, data: str, tmp_path: Path) -> None:
    settings, checkpoint = SETTINGS.model_copy(update={"epochs": 1}), tmp_path / "state.safetensors"
    target = find("lenet5")[0]
    told: list[object] = []
    trained = pipeline.train(target, data, settings, store, checkpoint=checkpoint)
    again = pipeline.train(target, data, settings, store, checkpoint=checkpoint, resume=True, watch=told.append)
    assert all(map(torch.equal, weights(trained), weights(again)))
    assert len(store.runs()) == 1 and "trained to the end" in str(told[-1])


def test_a_checkpoint_of_other_settings_is_refused(store: Store, data: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "state.safetensors"
    settings = SETTINGS.model_copy(update={"epochs": 1})
    pipeline.train(find("lenet5")[0], data, settings, store, checkpoint=checkpoint)
    with pytest.raises(UsageError, match=r"trained with epochs=1.*use the same"):
        pipeline.train(find("lenet5")[0], data, SETTINGS, store, checkpoint=checkpoint, resume=True)
    with pytest.raises(UsageError, match="another network"):
        pipeline.train(find("cifarnet")[0], data, settings, store, checkpoint=checkpoint, resume=True)


def test_a_checkpoint_from_before_a_setting_was_there_had_its_default(store: Store, data: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "state.safetensors"
    settings = SETTINGS.model_copy(update={"epochs": 1})
    pipeline.train(find("lenet5")[0], data, settings, store, checkpoint=checkpoint)
    tensors, facts = load(checkpoint)
    del facts["settings"]["clip_norm"]
    save(checkpoint, tensors, facts)
    pipeline.train(find("lenet5")[0], data, settings, store, checkpoint=checkpoint, resume=True)
    clipped = settings.model_copy(update={"clip_norm": 1.0})
    with pytest.raises(UsageError, match="trained with clip_norm=None"):
        pipeline.train(find("lenet5")[0], data, clipped, store, checkpoint=checkpoint, resume=True)


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"{}" * 1000])
def test_a_damaged_checkpoint_is_one_clear_error(store: Store, data: str, tmp_path: Path, content: bytes) -> None:
    checkpoint = tmp_path / "state.safetensors"
    checkpoint.write_bytes(content)
    with pytest.raises(UsageError, match="expected a lamina checkpoint"):
        pipeline.train(find("lenet5")[0], data, SETTINGS, store, checkpoint=checkpoint, resume=True)


def test_an_exploding_loss_ends_the_run_as_failed(store: Store, data: str) -> None:
    settings = SETTINGS.model_copy(update={"learning_rate": 1e30})
    with pytest.raises(LaminaError, match="lower the learning rate"):
        pipeline.train(find("lenet5")[0], data, settings, store)
    assert store.runs()[0].status == "failed"


def test_cosine_schedule_with_a_warm_up() -> None:
    settings = Training(learning_rate=1.0, warmup_steps=4)
    rates = [settings.rate(step, 104) for step in range(104)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0] and rates[4] == 1.0
    assert rates[54] == pytest.approx(0.5) and rates[-1] < 0.001
    assert rates[4:] == sorted(rates[4:], reverse=True)


def test_lenet5_reads_the_shipped_pictures(store: Store) -> None:
    pipeline.train(find("lenet5")[0], "fashion-mnist", Training(epochs=9), store)
    (this,) = store.runs()
    assert store.epochs(this.id)[-1].test_accuracy >= 0.85


class OnValues(nn.Module):
    """Its path depends on values, which only a pass over real inputs follows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.layer(x)
        return {"scores": -x if float(x.sum().detach()) > 0 else x, "hidden": x}


class Raises(OnValues):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        raise ValueError("never runs")


def test_synthetic_data_train_networks_of_any_input_and_output(store: Store) -> None:
    settings = SETTINGS.model_copy(update={"epochs": 1})
    pipeline.train(
        Target("values", (Input(shape=(6,)),), lambda classes: OnValues(), classes=3), "synthetic", settings, store
    )
    (epoch,) = store.epochs(store.runs()[0].id)
    assert 0 < epoch.test_accuracy < 1
    image = Target("image", (Input(shape=(2, 5, 6, 6)),), lambda classes: nn.Conv3d(2, 3, 3))
    seen: list[object] = []
    pipeline.train(image, "synthetic", settings, store, watch=seen.append)
    assert any("no class scores" in str(event) for event in seen)


def test_a_network_that_raises_is_refused_in_its_own_words(store: Store) -> None:
    target = Target("raises", (Input(shape=(6,)),), lambda classes: Raises())
    with pytest.raises(LaminaError, match="ValueError: never runs"):
        pipeline.train(target, "synthetic", SETTINGS, store)


def test_weights_of_another_dtype_train_in_float32_with_a_note(store: Store) -> None:
    settings = SETTINGS.model_copy(update={"epochs": 1})
    target = from_external("double", lambda: External(nn.Linear(6, 10).double()), (6,))
    trained = pipeline.train(target, "synthetic", settings, store)
    note = "double: its weights are float64 and are converted to fp32"
    assert trained.weight.dtype == torch.float32 and store.runs()[0].remarks == (note,)
    seen: list[object] = []
    sparsity(target, "synthetic", settings, store, iterations=1, watch=seen.append)
    assert note in seen
