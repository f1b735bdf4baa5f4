"""Memory formats of images."""

from torch import Tensor, channels_last


def is_channels_last(t: Tensor) -> bool:
    """Whether an image is channels-last and not also contiguous."""
    return t.dim() == 4 and not t.is_contiguous() and t.is_contiguous(memory_format=channels_last)
