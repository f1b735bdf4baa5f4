"""How images lie in memory."""

from torch import Tensor, channels_last


def is_channels_last(t: Tensor) -> bool:
    """Whether an image lies with its channels last, and could not as well be read with its width last."""
    return t.dim() == 4 and not t.is_contiguous() and t.is_contiguous(memory_format=channels_last)
