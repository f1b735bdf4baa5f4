"""Input sizes that networks of torchvision and of Hugging Face's transformers define themselves."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import nn

from lamina.spec import Input

TOKENS, FRAMES, SAMPLES, SIDE = 128, 16, 16_000, 224
"""Sizes of sequences, videos, sounds and images where a network defines none, or only a maximum."""

LENGTHS = (
    "max_position_embeddings", "max_target_positions", "n_positions", "max_seq_len", "max_encoder_position_embeddings",
)  # fmt: skip
"""What configurations call the greatest length of a sequence."""

WIDTHS = ("num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim")
"""What configurations call the number of features of a frame of sound."""


def of_torchvision(models: ModuleType, factory: Callable[..., Any]) -> tuple[int, ...] | None:
    """The shape of a sample that a network's pretrained weights were made for; ``None`` where it has no weights.

    Classifiers crop their images, networks for segmentation resize them, and those for optical flow do neither.
    """
    try:
        weights = models.get_model_weights(factory).DEFAULT
        transforms = weights.transforms()
    except (AttributeError, ValueError, TypeError, KeyError):
        return None
    sizes = getattr(transforms, "crop_size", None) or getattr(transforms, "resize_size", None) or [SIDE]
    height, width = (*sizes, *sizes)[:2]
    if not factory.__module__.startswith("torchvision.models.video"):
        return (3, height, width)
    return (3, max(FRAMES, weights.meta.get("min_temporal_size", 1)), height, width)


def images_of(module: nn.Module, shape: tuple[int, ...]) -> tuple[Input, ...]:
    """An input of this shape for each parameter without a default, where there are several: two for optical flow."""
    parameters = inspect.signature(module.forward).parameters.values()
    names = [one.name for one in parameters if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
    return tuple(Input(name=name, shape=shape) for name in names) if len(names) > 1 else ()


def of_transformers(module: nn.Module) -> tuple[Input, ...]:
    """The inputs of a network of Hugging Face's transformers, from its configuration.

    None for other networks, and where the configuration does not have the shape of the first input.
    """
    config = getattr(module, "config", None)
    if config is None or not hasattr(module, "main_input_name"):
        return ()
    names = [*inspect.signature(module.forward).parameters]
    several = hasattr(config, "text_config") and hasattr(config, "vision_config")
    wanted = names[: 2 if several else 1]
    if "decoder_input_ids" in names:
        wanted.append("decoder_input_ids")
    found = [_input(name, config) for name in wanted]
    return tuple(one for one in found if one is not None) if found and found[0] else ()


def _input(name: str, config: Any) -> Input | None:
    text, image, sound = (getattr(config, f"{part}_config", config) for part in ("text", "vision", "encoder"))
    width = next((getattr(sound, one) for one in WIDTHS if hasattr(sound, one)), None)
    match name:
        case "input_ids" | "decoder_input_ids":
            known = (getattr(text, limit, None) for limit in LENGTHS)
            most = next((one for one in known if one and one > 0), 2 * TOKENS)  # XLNet's is -1: any length
            length = min(TOKENS, -(-most // 2))  # some count positions from behind that of padding
            vocabulary = getattr(text, "vocab_size", None)  # CANINE reads characters, and hashes them
            return Input(name=name, shape=(length,), content="indices", vocabulary=vocabulary)
        case "pixel_values":
            side = getattr(image, "image_size", SIDE)
            sides = tuple(side) if isinstance(side, list | tuple) else (side, side)
            frames = getattr(image, "num_frames", None)  # of a video
            shape = (getattr(image, "num_channels", 3), *sides)
            return Input(name=name, shape=(frames, *shape) if frames else shape)
        case "input_features" if hasattr(config, "num_mel_bins") and hasattr(config, "max_source_positions"):
            return Input(name=name, shape=(config.num_mel_bins, 2 * config.max_source_positions))
        case "input_features" if width:
            return Input(name=name, shape=(TOKENS, width))
        case "input_values" if hasattr(config, "num_mel_bins") and hasattr(config, "max_length"):
            return Input(name=name, shape=(config.max_length, config.num_mel_bins))
        case "input_values":
            codec = hasattr(config, "audio_channels") or hasattr(config, "codebook_size")
            return Input(name=name, shape=(getattr(config, "audio_channels", 1), SAMPLES) if codec else (SAMPLES,))
        case "past_values" if hasattr(config, "num_input_channels"):
            return Input(name=name, shape=(config.context_length, config.num_input_channels))
    return None
