"""Small networks as users write them, each with something that a layer-by-layer view must cope with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 10


class Residual(nn.Module):
    """A residual block with a squeeze-and-excitation gate and a strided 1x1 shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.squeeze = nn.Conv2d(outputs, outputs // 4, 1)
        self.excite = nn.Conv2d(outputs // 4, outputs, 1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        return F.relu(y * gate + self.shortcut(x))


def residual_gates() -> nn.Module:
    return nn.Sequential(
        Residual(3, 16, 1), Residual(16, 32, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES)
    )


class SeveralInputs(nn.Module):
    """An image and features beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, 2)
        self.features = nn.Linear(12, 8)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, image: Tensor, features: Tensor) -> Tensor:
        seen = F.relu(self.conv(image)).mean((2, 3))
        return self.head(torch.cat([seen, F.relu(self.features(features))], 1))


class Denoiser(nn.Module):
    """A convolutional denoiser of a diffusion model: one time step per sample, embedded in sines and cosines."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16))
        self.enter, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16)
        self.down, self.up = nn.Conv2d(16, 16, 3, 2, 1), nn.ConvTranspose2d(16, 16, 4, 2, 1)
        self.leave = nn.Conv2d(32, 3, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[:, None] * torch.exp(-torch.arange(8, device=x.device))
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        entered = self.enter(x)
        inner = self.up(F.silu(self.down(F.silu(self.norm(entered) + time[:, :, None, None]))))
        return self.leave(torch.cat([entered, inner], 1))


class Scan(nn.Module):
    """A linear recurrence that keeps its last state, with its autograd graph, for the next call."""

    def __init__(self) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.zeros(16))
        self.state: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        state, states = self.state, torch.zeros_like(x)
        for step in range(x.shape[1]):
            state = x[:, step] if state is None else torch.sigmoid(self.decay) * state + x[:, step]
            states[:, step] = state
        self.state = state
        return states


class Recurrence(nn.Module):
    """Resets the state of its recurrence for every sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.scan, self.head = nn.Linear(12, 16), Scan(), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        self.scan.state = None
        return self.head(self.scan(self.enter(x)).mean(1))


class Heads(nn.Module):
    """Two heads whose outputs come as a dict, a tuple or a nest of both."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.body, self.label, self.size = nn.Linear(32, 16), nn.Linear(16, CLASSES), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> object:
        x = F.relu(self.body(x))
        label, size = self.label(x), self.size(x)
        if self.form == "dict":
            return {"label": label, "size": size}
        if self.form == "tuple":
            return label, size
        return {"label": label, "more": [size, (x, None)], "form": self.form}


def dict_output() -> nn.Module:
    return Heads("dict")


def tuple_output() -> nn.Module:
    return Heads("tuple")


def nested_output() -> nn.Module:
    return Heads("nested")


class SharedWeights(nn.Module):
    """One layer several times, and an embedding whose weight is the output layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.again = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)
        self.out = nn.Linear(16, 50, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for _ in range(3):
            x = self.norm(x + F.gelu(self.again(x)))
        return self.out(x)


class Attention(nn.Module):
    """`nn.MultiheadAttention` with a mask, whose second output goes unused."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(12, 16)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        y, _ = self.attention(x, x, x, attn_mask=hidden)
        return self.head((x + y).mean(1))


class Encoder(nn.Module):
    """PyTorch's transformer encoder, which has a fast path in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(12, 4, 32, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x)[:, 0])


class Recurrent(nn.Module):
    """A recurrent layer of any kind and a classifier of its last step."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.layer(x)
        return self.head(y[:, -1])


def gru() -> nn.Module:
    return Recurrent(nn.GRU(12, 16, 2, batch_first=True, dropout=0.1), 16)


def bidirectional_lstm() -> nn.Module:
    return Recurrent(nn.LSTM(12, 16, bidirectional=True, batch_first=True, proj_size=8), 16)


class Cells(nn.Module):
    """A recurrence that is unrolled by hand over a GRU cell."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(12, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(x.shape[0], 16)
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state)


class UNet(nn.Module):
    """Down, up by transposed convolution and interpolation, and skips; its output is an image."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.middle = nn.Conv2d(16, 16, 3, padding=2, dilation=2)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.down1(x))
        b = F.relu(self.down2(F.max_pool2d(a, 2)))
        b = b + F.interpolate(self.middle(F.avg_pool2d(b, 2)), size=b.shape[2:], mode="bilinear", align_corners=False)
        return self.out(torch.cat([a, self.up(b)], 1))


class ShapeBranch(nn.Module):
    """Branches on the shape of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.large, self.small, self.head = nn.Conv2d(3, 8, 5, 4), nn.Conv2d(3, 8, 3), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = self.large(x) if min(x.shape[2:]) > 16 else self.small(x)
        return self.head(y.flatten(2).amax(2))


class InPlace(nn.Module):
    """Operations that write into their operands."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn(self.conv(x))
        y += 0.5
        y = self.relu(y) * 1.5
        y[:, :, 0] = 0
        y.mul_(2).clamp_(max=6)
        return self.head(y.mean((2, 3)))


def weight_norm() -> nn.Module:
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(32, 16))
    spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16))
    orthogonal = nn.utils.parametrizations.orthogonal(nn.Linear(16, 16))
    return nn.Sequential(normed, nn.ReLU(), spectral, nn.ReLU(), orthogonal, nn.Linear(16, CLASSES))


class Complex(nn.Module):
    """A Fourier layer with complex parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(3, 16, 9, dtype=torch.complex64))
        self.head = nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.fft.irfft2(torch.fft.rfft2(x) * self.filter, s=x.shape[2:])
        return self.head(y.square().mean((2, 3)))


class Noise(nn.Module):
    """Draws random numbers in three ways, none of them `nn.Dropout`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(32, 16), nn.Linear(16, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x + 0.1 * torch.randn_like(x))
        if self.training:
            x = x + self.second(x) * torch.bernoulli(x.new_full((x.shape[0], 1), 0.8))
        return self.head(F.dropout(x, 0.2, self.training) * torch.rand(1, device=x.device))


class Counter(nn.Module):
    """Changes its buffers in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(32, 16), nn.Linear(16, CLASSES)
        self.mean: Tensor
        self.steps: Tensor
        self.register_buffer("mean", torch.zeros(16))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        self.steps += 1
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
        return self.head(x - self.mean)


class DataDependent(nn.Module):
    """Control flow that depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.head = nn.Linear(32, 16), nn.Linear(16, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(1 + int(x.abs().mean().item() * 2) % 3):
            x = F.relu(self.again(x))
        if x.sum() > 0:
            x = -x
        return self.head(x)


class Experts(nn.Module):
    """A mixture of experts: a router sends each row to one entry of a `ModuleList`."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(32, 4)
        self.experts = nn.ModuleList(nn.Linear(32, CLASSES) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = self.router(x).softmax(1).max(1)
        y = x.new_zeros(x.shape[0], CLASSES)
        for index, expert in enumerate(self.experts):
            rows = (chosen == index).nonzero()[:, 0]
            if len(rows):
                y = y.index_add(0, rows, expert(x[rows]) * weight[rows, None])
        return y


class Functional(nn.Module):
    """Parameters of its own and functional calls only, without a submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(8, 3, 3, 3) * 0.1)
        self.weight, self.bias = nn.Parameter(torch.randn(CLASSES, 8)), nn.Parameter(torch.zeros(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(F.group_norm(F.conv2d(x, self.kernel, stride=2, padding=1), 2))
        return torch.einsum("nchw,kc->nk", x, self.weight) / x[0, 0].numel() + self.bias


class Rotary(nn.Module):
    """A decoder block with rotary embeddings, grouped queries and functional attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.norm = nn.RMSNorm(32)
        self.query, self.key, self.value = nn.Linear(32, 32), nn.Linear(32, 16), nn.Linear(32, 16)
        self.gate, self.up, self.down = (nn.Linear(*shape, bias=False) for shape in ((32, 64), (32, 64), (64, 32)))
        self.head = nn.Linear(32, 50)

    def turned(self, x: Tensor) -> Tensor:
        angle = torch.arange(x.shape[2], device=x.device)[:, None] / 10 ** torch.arange(4, device=x.device)
        turn = torch.polar(torch.ones_like(angle), angle)
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], 4, 2))
        return torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        y = self.norm(x)
        query, key, value = (
            layer(y).unflatten(2, (-1, 8)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        key, value = (one.repeat_interleave(2, 1) for one in (key, value))
        y = F.scaled_dot_product_attention(self.turned(query), self.turned(key), value, is_causal=True)
        x = x + y.transpose(1, 2).flatten(2)
        y = self.norm(x)
        return self.head(x + self.down(F.silu(self.gate(y)) * self.up(y)))


class Siamese(nn.Module):
    """One network for both inputs, and their distance."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(16))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return F.cosine_similarity(self.body(a), self.body(b))


class Keywords(nn.Module):
    """Keyword-only and optional inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, CLASSES)

    def forward(self, tokens: Tensor, *, mask: Tensor | None = None, scale: float = 1.0) -> Tensor:
        x = self.embed(tokens) * scale
        if mask is not None:
            x = x * mask.to(x.dtype)[..., None]
        return self.head(x.mean(1))


def many_convolutions() -> nn.Module:
    """Convolutions of every kind in two dimensions."""
    return nn.Sequential(
        nn.Conv2d(3, 8, (1, 3), padding="same"), nn.Hardswish(),
        nn.Conv2d(8, 8, 3, groups=8, padding=1, padding_mode="reflect"), nn.PReLU(8),
        nn.Conv2d(8, 16, 3, groups=2, dilation=2), nn.InstanceNorm2d(16, affine=True), nn.SiLU(),
        nn.ConvTranspose2d(16, 8, 3, stride=2, output_padding=1), nn.PixelShuffle(2), nn.LeakyReLU(),
        nn.ZeroPad2d(1), nn.Conv2d(2, 4, 3, stride=(2, 1)), nn.Upsample(scale_factor=2), nn.LPPool2d(2, 2),
        nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(16, CLASSES),
    )  # fmt: skip


def sound() -> nn.Module:
    """Convolutions in one dimension, as for sound."""
    return nn.Sequential(
        nn.Conv1d(1, 8, 9, 4), nn.BatchNorm1d(8), nn.ReLU(), nn.MaxPool1d(2), nn.ConvTranspose1d(8, 8, 3),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, CLASSES), nn.LogSoftmax(1),
    )  # fmt: skip


def volume() -> nn.Module:
    """Convolutions in three dimensions, as for videos."""
    return nn.Sequential(
        nn.Conv3d(3, 8, 3, (1, 2, 2)), nn.BatchNorm3d(8), nn.ReLU(), nn.MaxPool3d(2), nn.Dropout3d(0.1),
        nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(8, CLASSES),
    )  # fmt: skip


class Warped(nn.Module):
    """A spatial transformer: `affine_grid` and `grid_sample` by predicted parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.where, self.conv, self.head = nn.Linear(3, 6), nn.Conv2d(3, 8, 3), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        grid = F.affine_grid(self.where(x.mean((2, 3))).unflatten(1, (2, 3)), list(x.shape), align_corners=False)
        return self.head(self.conv(F.grid_sample(x, grid, align_corners=False)).mean((2, 3)))


class Hyper(nn.Module):
    """Its convolution's weights are the output of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weights, self.head = nn.Linear(3, 8 * 3 * 9), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        kernels = self.weights(x.mean((2, 3))).reshape(-1, 3, 3, 3)
        y = F.conv2d(x.flatten(0, 1)[None], kernels, groups=len(x))
        return self.head(y.unflatten(1, (len(x), 8))[0].mean((2, 3)))


class StraightThrough(torch.autograd.Function):
    """Rounds, and hands gradients on."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        return gradients[0]


class Quantized(nn.Module):
    """A custom autograd function between layers."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(32, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(StraightThrough.apply(self.body(x) * 4) / 4)


class Autoencoder(nn.Module):
    """A variational autoencoder: a sample in the middle, an image and two vectors at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.mean, self.variance = nn.Linear(64, 16), nn.Linear(16, 4), nn.Linear(16, 4)
        self.decode = nn.Linear(4, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = F.relu(self.encode(x.flatten(1)))
        mean, variance = self.mean(hidden), self.variance(hidden)
        sample = mean + torch.randn_like(mean) * (variance / 2).exp()
        return torch.sigmoid(self.decode(sample)).view_as(x), mean, variance


class Graph(nn.Module):
    """A graph convolution over edges that are integer inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 16), nn.Linear(16, CLASSES)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        count = nodes.shape[1]
        source, target = edges.remainder(count).unbind(1)
        rows = torch.arange(len(nodes), device=nodes.device)[:, None]
        for layer in (self.first, self.second):
            nodes = layer(nodes)
            nodes = nodes.index_put((rows, target), nodes[rows, source], accumulate=True)
        return nodes.mean(1)


class Bags(nn.Module):
    """A recommender: embedding bags and dense features, with pairwise products."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.dense, self.head = nn.EmbeddingBag(50, 16), nn.Linear(12, 16), nn.Linear(17, 1)

    def forward(self, features: Tensor, items: Tensor) -> Tensor:
        dense, bag = F.relu(self.dense(features)), self.bag(items)
        return torch.sigmoid(self.head(torch.cat([dense, (dense * bag).sum(1, keepdim=True)], 1)))
