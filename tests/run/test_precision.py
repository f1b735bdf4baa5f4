"""The precision of a point, and the settings after it."""

import pytest
import torch

from lamina.run import precision_mode


def test_precision_mode_restores_the_settings() -> None:
    before = (
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        torch.backends.cudnn.benchmark,
    )
    with pytest.raises(RuntimeError, match="True, True"), precision_mode("tf32"):
        raise RuntimeError(torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    after = (
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        torch.backends.cudnn.benchmark,
    )
    assert before == after
