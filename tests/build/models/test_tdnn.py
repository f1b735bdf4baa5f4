import pytest
import torch

from lamina.build.models.tdnn import TDNN


@pytest.fixture
def frames() -> torch.Tensor:
    return torch.randn(1, 60, 40)


def test_an_output_frame_reads_exactly_its_context(frames: torch.Tensor) -> None:
    """Frame t of the output stands for frame t + 13: the published context is [-13, 9]."""
    model = TDNN(num_classes=3, width=8, pooled=False).eval()
    frames.requires_grad_()
    out = model(frames)
    assert out.shape == (1, 60 - 22, 3)
    out[0, 10].sum().backward()
    assert frames.grad is not None
    read = frames.grad[0].abs().sum(1).nonzero().flatten()
    assert (read.min(), read.max()) == (10, 10 + 22)


def test_contexts_are_peddintis(frames: torch.Tensor) -> None:
    """The same weights applied to frames gathered by the published offsets."""
    model = TDNN(num_classes=3, width=8, pooled=False).eval()
    contexts = [(-2, -1, 0, 1, 2), (-1, 2), (-3, 3), (-7, 2), (0,)]
    x, first, last = frames[0], 0, 59
    for place, offsets in enumerate(contexts):
        convolution = model.features[3 * place]
        start, stop = first - offsets[0], last - offsets[-1]
        at = torch.arange(start, stop + 1)
        gathered = torch.cat([x[at + offset - first] for offset in offsets], dim=1)
        weight = convolution.weight.permute(0, 2, 1).flatten(1)
        x = (gathered @ weight.T + convolution.bias).relu() / (1 + 1e-5) ** 0.5
        first, last = start, stop
    expected = x @ model.classifier.weight[:, :, 0].T + model.classifier.bias
    assert (first, last) == (13, 59 - 9)
    torch.testing.assert_close(model(frames)[0], expected)


def test_pooling_is_the_mean_over_frames(frames: torch.Tensor) -> None:
    model = TDNN(num_classes=3, width=8).eval()
    pooled = model(frames)
    model.pooled = False
    torch.testing.assert_close(pooled, model(frames).mean(1))
