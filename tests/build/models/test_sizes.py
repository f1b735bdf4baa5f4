"""Networks of other packages tell their input sizes; small stand-ins need none of these packages."""

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from torch import nn

from lamina.build.models.sizes import images_of, of_torchvision, of_transformers


@pytest.mark.parametrize(
    ("module", "transforms", "meta", "shape"),
    [
        ("torchvision.models.resnet", {"crop_size": [224], "resize_size": [256]}, {}, (3, 224, 224)),
        ("torchvision.models.vision_transformer", {"crop_size": [384, 320]}, {}, (3, 384, 320)),
        ("torchvision.models.video.resnet", {"crop_size": [112, 112]}, {"min_temporal_size": 1}, (3, 16, 112, 112)),
        ("torchvision.models.video.s3d", {"crop_size": [224, 224]}, {"min_temporal_size": 32}, (3, 32, 224, 224)),
        ("torchvision.models.segmentation.fcn", {"resize_size": [520]}, {}, (3, 520, 520)),
        ("torchvision.models.optical_flow.raft", {}, {}, (3, 224, 224)),
    ],
)
def test_torchvision_tells_by_its_weights(
    module: str, transforms: dict[str, Any], meta: dict[str, int], shape: Any
) -> None:
    def factory() -> None: ...

    factory.__module__ = module
    weights = SimpleNamespace(transforms=lambda: SimpleNamespace(**transforms), meta=meta)
    models = ModuleType("torchvision.models")
    models.get_model_weights = {factory: SimpleNamespace(DEFAULT=weights)}.__getitem__
    assert of_torchvision(models, factory) == shape
    assert of_torchvision(models, len) is None


def test_each_image_of_several_is_an_input() -> None:
    assert [one.name for one in images_of(network("first second updates=12"), (3, 8, 8))] == ["first", "second"]
    assert images_of(network("image targets=None"), (3, 8, 8)) == ()


def network(names: str, **config: Any) -> nn.Module:
    class Network(nn.Module):
        main_input_name = names.split()[0]

    exec(f"def forward(self, {', '.join(names.split())}): ...", scope := {})
    Network.forward = scope["forward"]
    module = Network()
    module.config = SimpleNamespace(**config)
    return module


@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (network("input_ids mask", vocab_size=9, max_position_embeddings=64), [("input_ids", (32,), 9)]),
        (network("input_ids mask", vocab_size=9, max_position_embeddings=-1), [("input_ids", (128,), 9)]),
        (network("input_ids mask", vocab_size=9, n_positions=512), [("input_ids", (128,), 9)]),
        (network("input_ids mask", vocab_size=9, max_seq_len=64), [("input_ids", (32,), 9)]),
        (network("input_ids mask", vocab_size=9, max_encoder_position_embeddings=48), [("input_ids", (24,), 9)]),
        (
            network("input_ids mask decoder_input_ids", vocab_size=9),
            [("input_ids", (128,), 9), ("decoder_input_ids", (128,), 9)],
        ),
        (
            network(
                "input_features mask decoder_input_ids",
                vocab_size=9,
                num_mel_bins=80,
                max_source_positions=15,
                max_target_positions=64,
            ),
            [("input_features", (80, 30), None), ("decoder_input_ids", (32,), 9)],
        ),
        (network("pixel_values", image_size=32, num_channels=1), [("pixel_values", (1, 32, 32), None)]),
        (network("pixel_values", image_size=(32, 48)), [("pixel_values", (3, 32, 48), None)]),
        (network("pixel_values"), [("pixel_values", (3, 224, 224), None)]),
        (network("input_features", num_mel_bins=80, max_source_positions=15), [("input_features", (80, 30), None)]),
        (network("input_ids mask", max_position_embeddings=64), [("input_ids", (32,), None)]),
        (
            network(
                "input_features mask decoder_input_ids", input_feat_per_channel=8, max_source_positions=15, vocab_size=9
            ),
            [("input_features", (128, 8), None), ("decoder_input_ids", (128,), 9)],
        ),
        (network("input_features", feature_projection_input_dim=8), [("input_features", (128, 8), None)]),
        (
            network("input_features mask", encoder_config=SimpleNamespace(num_mel_bins=8)),
            [("input_features", (128, 8), None)],
        ),
        (network("input_features mask decoder_input_ids", vocab_size=9), []),
        (network("pixel_values", image_size=8, num_frames=4), [("pixel_values", (4, 3, 8, 8), None)]),
        (network("input_values", num_mel_bins=8, max_length=20), [("input_values", (20, 8), None)]),
        (network("input_values"), [("input_values", (16_000,), None)]),
        (network("input_values", audio_channels=2), [("input_values", (2, 16_000), None)]),
        (network("input_values", codebook_size=9), [("input_values", (1, 16_000), None)]),
        (network("past_values", context_length=7, num_input_channels=2), [("past_values", (7, 2), None)]),
        (
            network(
                "input_ids pixel_values position_ids",
                text_config=SimpleNamespace(vocab_size=9, max_position_embeddings=7),
                vision_config=SimpleNamespace(image_size=8),
            ),
            [("input_ids", (4,), 9), ("pixel_values", (3, 8, 8), None)],
        ),
        (network("anything"), []),
        (nn.Linear(2, 2), []),
    ],
)
def test_transformers_tell_by_their_configuration(module: nn.Module, inputs: list[Any]) -> None:
    assert [(one.name, one.shape, one.vocabulary) for one in of_transformers(module)] == inputs
