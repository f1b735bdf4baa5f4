import torch

from lamina.build.models.lstm import LSTMAcoustic


def test_it_is_the_textbook_recurrence() -> None:
    """Hochreiter and Schmidhuber 1997 with a forget gate; gates in torch's order i, f, g, o."""
    model = LSTMAcoustic(num_classes=3, width=4, layers=1, pooled=False)
    x = torch.randn(2, 5, 40)
    lstm = model.lstm
    h = c = torch.zeros(2, 4)
    outputs = []
    for step in range(5):
        gates = x[:, step] @ lstm.weight_ih_l0.T + h @ lstm.weight_hh_l0.T + lstm.bias_ih_l0 + lstm.bias_hh_l0
        i, f, g, o = gates.chunk(4, dim=1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(model.classifier(h))
    torch.testing.assert_close(model(x), torch.stack(outputs, dim=1))


def test_pooling_is_the_mean_over_frames() -> None:
    model = LSTMAcoustic(num_classes=3, width=4)
    x = torch.randn(2, 5, 40)
    pooled = model(x)
    model.pooled = False
    torch.testing.assert_close(pooled, model(x).mean(1))
