"""Captured passes and steps on a GPU, beside the ordinary loop."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lamina
from lamina.errors import LaminaError, UnsupportedError

pytestmark = pytest.mark.gpu

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "plain sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "fused adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),  # cannot be captured
}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        # No bias: before a normalization its gradient is rounding alone, which Adam scales up.
        nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Dropout(0.2), nn.Linear(16 * 16, 64), nn.GELU(), nn.Linear(64, 10),
    ).cuda()  # fmt: skip


def batches(count: int, rows: int = 16) -> list[tuple[Tensor, Tensor]]:
    own = torch.Generator("cuda").manual_seed(1)
    make: Any = {"device": "cuda", "generator": own}
    return [(torch.randn(rows, 3, 8, 8, **make), torch.randint(10, (rows,), **make)) for _ in range(count)]


def close(ours: nn.Module, theirs: nn.Module, tolerance: float) -> None:
    for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, msg=name)


def ordinary(
    model: nn.Module, optimizer: Any, data: Any, autocast: torch.dtype | None, scaler: Any, clip: float | None, n: int
) -> None:
    for i, (x, y) in enumerate(data):
        if i % n == 0:
            optimizer.zero_grad()
        with torch.autocast("cuda", autocast, enabled=autocast is not None):
            loss = nn.functional.cross_entropy(model(x), y)
        (scaler.scale(loss / n) if scaler else loss / n).backward()
        if (i + 1) % n == 0:
            if clip is not None:
                if scaler:
                    scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            if scaler:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("accumulate", "clip"), [(1, None), (1, 0.5), (3, 0.5)])
@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16])
def test_steps_are_those_of_the_ordinary_loop(
    optimizer: str, accumulate: int, clip: float | None, autocast: torch.dtype | None
) -> None:
    if autocast is torch.float16 and optimizer not in ("sgd", "adam"):
        pytest.skip("one of each kind is enough")
    ours = network()
    theirs = copy.deepcopy(ours)
    mine, other = OPTIMIZERS[optimizer](ours.parameters()), OPTIMIZERS[optimizer](theirs.parameters())
    scalers = [torch.amp.GradScaler("cuda", init_scale=64.0) if autocast is torch.float16 else None for _ in range(2)]
    data = batches(12)
    step = lamina.graphed_step(
        ours, nn.functional.cross_entropy, mine,
        autocast=autocast, scaler=scalers[0], clip_norm=clip, accumulate=accumulate,
    )  # fmt: skip
    torch.manual_seed(3)
    for x, y in data:
        step(x, y)
    torch.manual_seed(3)
    ordinary(theirs, other, data, autocast, scalers[1], clip, accumulate)
    assert step.captured == 1
    close(ours, theirs, 1e-4 if autocast is None else 2e-2)


def test_learning_rates_and_shapes_change() -> None:
    ours = network()
    theirs = copy.deepcopy(ours)
    mine, other = OPTIMIZERS["sgd"](ours.parameters()), OPTIMIZERS["sgd"](theirs.parameters())
    step = lamina.graphed_step(ours, nn.functional.cross_entropy, mine)
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(each, 16) for each in (mine, other)]
    for i in range(16):
        batch = batches(1, 8 if i % 3 else 12)[0]
        torch.manual_seed(i)
        step(*batch)
        torch.manual_seed(i)
        ordinary(theirs, other, [batch], None, None, None, 1)
        for schedule in schedules:
            schedule.step()
    assert step.captured == 2
    close(ours, theirs, 1e-4)


def test_batches_on_the_cpu_and_channels_last() -> None:
    model = network().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    step = lamina.graphed_step(model, nn.functional.cross_entropy, OPTIMIZERS["sgd"](model.parameters()))
    x, y = batches(1)[0]
    x = x.contiguous(memory_format=torch.channels_last).cpu()
    losses = [step(x, y.cpu()).item() for _ in range(30)]
    assert step.captured == 1 and losses[-1] < 0.5 * losses[0]


def test_a_converted_network_trains_in_graphs() -> None:
    model: nn.Module = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 128)).cuda()
    model, _ = lamina.convert(model, lamina.Circulant(32))
    theirs = copy.deepcopy(model)
    mine, other = OPTIMIZERS["sgd"](model.parameters()), OPTIMIZERS["sgd"](theirs.parameters())
    data = [(torch.randn(32, 256, device="cuda"), torch.randint(128, (32,), device="cuda")) for _ in range(8)]
    step = lamina.graphed_step(model, nn.functional.cross_entropy, mine)
    for x, y in data:
        step(x, y)
    ordinary(theirs, other, data, None, None, None, 1)
    assert step.captured == 1
    close(model, theirs, 1e-3)


def test_what_synchronizes_is_refused_with_its_line_and_the_device_goes_on() -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            if x.sum().item() > 0:  # the line that is named
                x = -x
            return self.linear(x)  # type: ignore[no-any-return]

    model = Branch().cuda()
    step = lamina.graphed_step(model, nn.functional.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1))
    x, y = torch.randn(4, 4, device="cuda"), torch.tensor([0, 1, 2, 0], device="cuda")
    step(x, y)
    step(x, y)
    with pytest.raises(UnsupportedError, match="the line that is named"):
        step(x, y)
    with pytest.raises(UnsupportedError, match="cannot be captured"):
        lamina.graphed(model, x)
    assert torch.isfinite(model(x)).all()


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_passes_train_in_an_ordinary_loop(set_to_none: bool, accumulate: int, autocast: torch.dtype | None) -> None:
    ours = network()
    theirs = copy.deepcopy(ours)
    fast = lamina.graphed(ours)
    mine, other = OPTIMIZERS["sgd"](ours.parameters()), OPTIMIZERS["sgd"](theirs.parameters())
    for i, (x, y) in enumerate(batches(12)):
        for model, optimizer in ((fast, mine), (theirs, other)):
            torch.manual_seed(i)
            if i % accumulate == 0:
                optimizer.zero_grad(set_to_none=set_to_none)
            with torch.autocast("cuda", autocast, enabled=autocast is not None):
                loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            if (i + 1) % accumulate == 0:
                optimizer.step()
    assert fast.captured == 1
    close(ours, theirs, 1e-4 if autocast is None else 2e-2)


def test_gradients_of_inputs() -> None:
    model = network().eval()
    fast = lamina.graphed(model)
    for _ in range(5):
        x = torch.randn(4, 3, 8, 8, device="cuda", requires_grad=True)
        (ours,) = torch.autograd.grad(fast(x).square().sum(), x)
        (theirs,) = torch.autograd.grad(model(x).square().sum(), x)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert fast.captured == 1


def test_a_backward_pass_after_another_forward_pass_is_refused() -> None:
    model = network()
    fast = lamina.graphed(model, batches(1)[0][0])
    first, second = fast(batches(1)[0][0]), fast(batches(2)[1][0])
    with pytest.raises(LaminaError, match="overwritten the activations"):
        first.sum().backward()
    second.sum().backward()


def test_dropout_draws_anew() -> None:
    model = nn.Dropout(0.5)
    holder = nn.Sequential(nn.Linear(8, 64).cuda(), model)
    with torch.no_grad():
        fast = lamina.graphed(holder)
        x = torch.randn(4, 8, device="cuda")
        masks = [(fast(x) == 0).float().mean(-1) for _ in range(6)]
    assert fast.captured == 1 and not torch.equal(masks[-1], masks[-2])


def test_inference_of_a_compiled_model() -> None:
    model = network().eval()
    fast = lamina.graphed(torch.compile(model))  # type: ignore[arg-type]
    with torch.inference_mode():
        for x, _ in batches(5):
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
    assert fast.captured == 1


def test_training_steps_of_a_compiled_model() -> None:
    ours = network()
    ours[5] = nn.Identity()  # compiled code draws other dropout masks than eager mode
    theirs = copy.deepcopy(ours)
    mine, other = (torch.optim.SGD(each.parameters(), lr=0.05, momentum=0.9) for each in (ours, theirs))
    fast: Any = torch.compile(ours)
    step = lamina.graphed_step(fast, nn.functional.cross_entropy, mine)
    for seed, (x, y) in enumerate(batches(6)):
        torch.manual_seed(seed)
        loss = step(x, y)
        other.zero_grad()
        torch.manual_seed(seed)
        expected = nn.functional.cross_entropy(theirs(x), y)
        expected.backward()
        other.step()
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-3, atol=1e-3)
    assert step.captured == 1


class Causal(nn.Module):
    """Attention as Transformers calls it: with ``is_causal``, but with a mask in a capture."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(256, 768), nn.Linear(256, 256)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one.unflatten(-1, (4, 64)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        capturing = torch.cuda.is_current_stream_capturing()
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril() if capturing else None
        y = nn.functional.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
        projected: Tensor = self.out(y.transpose(1, 2).flatten(-2))
        return projected


@pytest.mark.parametrize("tokens", [128, 512])  # of 512, the backward pass of cuDNN's is nondeterministic
@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16])
def test_other_kernels_may_compute_the_same_in_a_capture(autocast: torch.dtype, tokens: int) -> None:
    torch.manual_seed(0)
    model, x = Causal().cuda(), torch.randn(4, tokens, 256, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    step = lamina.graphed_step(model, nn.functional.mse_loss, optimizer, autocast=autocast)
    losses = [step(x, x).item() for _ in range(6)]
    assert step.captured == 1 and losses == sorted(losses, reverse=True)


def test_a_graph_owns_the_workspaces_of_cublas() -> None:
    """Others' captures free the workspaces that PyTorch keeps: as reduce-overhead does after each of its own."""
    torch.manual_seed(0)
    ours = nn.Linear(9216, 4096, bias=False).cuda()
    theirs = copy.deepcopy(ours)
    batch = torch.randn(64, 9216, device="cuda"), torch.randint(4096, (64,), device="cuda")
    mine, other = (torch.optim.SGD(each.parameters(), lr=0.05, momentum=0.9) for each in (ours, theirs))
    step = lamina.graphed_step(ours, nn.functional.cross_entropy, mine, autocast=torch.bfloat16)
    for _ in range(4):
        step(*batch)
    assert step.captured == 1
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    filled = [torch.full((1 << 22,), float("nan"), device="cuda") for _ in range(64)]
    for _ in range(4):
        step(*batch)
    torch.cuda.synchronize()
    assert all(bool(each.isnan().all()) for each in filled)  # the graph writes to no memory of others
    ordinary(theirs, other, [batch] * 8, torch.bfloat16, None, None, 1)
    close(ours, theirs, 1e-2)
