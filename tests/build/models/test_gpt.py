import torch

from lamina.build.models.gpt import GPT, gpt


def test_no_token_sees_the_future() -> None:
    model = GPT(vocabulary=11, context=8, width=16, heads=2, depth=2).eval()
    tokens = torch.randint(0, 11, (1, 8))
    changed = tokens.clone()
    changed[0, 5] = (tokens[0, 5] + 1) % 11
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_positions_matter() -> None:
    model = GPT(vocabulary=11, context=8, width=16, heads=2, depth=1).eval()
    logits = model(torch.full((1, 8), 3))
    assert not torch.allclose(logits[0, 0], logits[0, 7])


def test_the_head_is_not_tied_and_positions_are_not_saved() -> None:
    model = gpt()
    assert model.head.weight is not model.token.weight
    assert "positions" not in model.state_dict()
    assert sum(parameter.numel() for parameter in model.parameters()) == 10_942_464
