"""Networks of transformers from configurations, with a small stand-in for the package."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from torch import Tensor, nn

from lamina.build import from_external
from lamina.build.models import external, huggingface
from lamina.errors import UsageError


class BertConfig:
    def __init__(self, num_hidden_layers: int = 3, vocab_size: int = 11, text: dict[str, int] | None = None) -> None:
        if not isinstance(num_hidden_layers, int):
            raise TypeError(f"num_hidden_layers: expected int, got {num_hidden_layers!r}")
        self.num_hidden_layers, self.vocab_size = num_hidden_layers, vocab_size
        self.text = SimpleNamespace(**{"size": 1, **(text or {})})
        self.text.to_dict = lambda: {"size": 1}

    def to_dict(self) -> dict[str, Any]:
        return vars(self)


class BertModel(nn.Module):
    config_class, main_input_name = BertConfig, "input_ids"

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(config.num_hidden_layers))

    def forward(self, input_ids: Tensor, mask: Tensor | None = None, decoder_input_ids: Tensor | None = None) -> Tensor:
        assert decoder_input_ids is not None and mask is None
        return self.embed(input_ids) + self.embed(decoder_input_ids)


class HeadlessConfig(BertConfig):
    pass


@pytest.fixture(autouse=True)
def transformers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("transformers")
    module.CONFIG_MAPPING = {"bert": BertConfig, "headless": HeadlessConfig}
    module.MODEL_MAPPING = {BertConfig: BertModel}
    module.AutoModel = SimpleNamespace(from_config=BertModel)
    module.BertModel, module.BertConfig = BertModel, BertConfig
    monkeypatch.setitem(sys.modules, "transformers", module)
    return module


@pytest.mark.parametrize("name", ["bert", "BertModel"])
def test_a_type_and_a_class_are_built_from_configurations(name: str) -> None:
    def load() -> external.External:
        return external.load(f"transformers:{name}", {"num_hidden_layers": "2", "text.size": "5"})

    module = load().module
    assert len(module.layers) == 2 and module.config.text.size == 5
    target = from_external(name, load)
    assert [(one.name, one.vocabulary) for one in target.inputs] == [("input_ids", 11), ("decoder_input_ids", 11)]
    assert "embed" in {layer.name for layer in target.resolve(2)}


@pytest.mark.parametrize(
    ("source", "settings", "message"),
    [
        ("transformers:bret", {}, "'transformers' has no 'bret': did you mean 'bert'"),
        ("transformers:BertModell", {}, "has no 'BertModell': did you mean 'BertModel'"),
        ("transformers:BertConfig", {}, "'transformers:BertConfig' is no network; expected a model type such as bert"),
        ("transformers:headless", {}, "no base network of type 'headless'"),
        ("transformers:bert", {"num_layers": "2"}, "BertConfig has no 'num_layers': did you mean 'num_hidden_layers'"),
        ("transformers:bert", {"text.sise": "2"}, "BertConfig has no 'text.sise': did you mean 'size'"),
        ("transformers:bert", {"num_hidden_layers": "x"}, "BertConfig cannot have num_hidden_layers=x: .*expected int"),
        ("torchvision:resnet18", {"a": "1"}, "--set: 'torchvision:resnet18' has no configuration, got a"),
        ("torch.nn:Identity", {"a": "1"}, "--set: 'torch.nn:Identity' has no configuration, got a"),
    ],
)
def test_a_wrong_name_or_setting_is_explained(source: str, settings: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        external.load(source, settings)


def test_a_network_beyond_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface.os, "sysconf", lambda name: 10)
    with pytest.raises(UsageError, match="for weights and gradients, this machine has 0 GB; make it smaller"):
        external.load("transformers:bert")


def test_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch, transformers: ModuleType) -> None:
    hub = ModuleType("huggingface_hub")
    hub.constants = SimpleNamespace(HF_HUB_OFFLINE=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    offline = []

    def from_config(config: BertConfig) -> nn.Module:
        offline.append(hub.constants.HF_HUB_OFFLINE)
        return BertModel(config)

    transformers.AutoModel = SimpleNamespace(from_config=from_config)
    external.load("transformers:bert")
    assert set(offline) == {True} and not hub.constants.HF_HUB_OFFLINE


@pytest.mark.parametrize(
    ("text", "value"), [("2", 2), ("0.5", 0.5), ("True", True), ("false", False), ("[1, 2]", [1, 2]), ("gelu", "gelu")]
)
def test_values_are_json_or_text(text: str, value: Any) -> None:
    assert huggingface._value(text) == value
