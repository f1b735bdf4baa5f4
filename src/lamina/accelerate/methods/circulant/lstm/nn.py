"""A long short-term memory whose matrices are block-circulant (Wang et al., "C-LSTM", FPGA 2018)."""

from __future__ import annotations

import math
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamina.accelerate.common.operands import compute_dtype
from lamina.accelerate.methods.circulant import functional
from lamina.accelerate.methods.circulant.config import Impl, check_block_size, check_impl
from lamina.accelerate.methods.circulant.projection import coverage, project
from lamina.accelerate.methods.circulant.reference import dense_matrix, lstm_cell
from lamina.errors import UsageError

State = tuple[Tensor, Tensor]
_GATES = 4


class BlockCirculantLSTM(nn.Module):
    """`torch.nn.LSTM` with block-circulant matrices: ``(T, N, input_size)`` to ``(T, N, directions * hidden_size)``.

    ``weight_ih_l*`` and ``weight_hh_l*`` are ``(4 * ceil(hidden_size / k), ceil(width / k), k)``: the blocks of the
    input, forget, cell and output gate in turn. Biases and names are the dense layer's.

    Args:
        input_size: features of each step.
        hidden_size: cells of each level.
        num_layers: levels.
        bias: whether to add one.
        batch_first: steps come as ``(N, T, input_size)``.
        dropout: share of a level's outputs dropped before the next level, in training.
        bidirectional: also run backwards over the steps.
        block_size: ``k``, from 2 to 256.
        impl: how to compute the products; see `functional`.

    Raises:
        UsageError: a size or share that no layer can have.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        block_size: int = 64,
        impl: Impl = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, size in (("input_size", input_size), ("hidden_size", hidden_size), ("num_layers", num_layers)):
            if not isinstance(size, int) or size < 1:
                raise UsageError(f"{name}: expected a whole number of at least 1, got {size!r}")
        if not 0 <= dropout <= 1:
            raise UsageError(f"dropout: expected a share from 0 to 1, got {dropout!r}")
        check_block_size(block_size)
        check_impl(impl)
        self.input_size, self.hidden_size, self.num_layers, self.bias = input_size, hidden_size, num_layers, bias
        self.batch_first, self.dropout, self.bidirectional = batch_first, dropout, bidirectional
        self.block_size = block_size
        self.impl: Impl = impl
        self.kept_energy: float | None = None
        self._gate_blocks = -(-hidden_size // block_size)
        matrices = self._matrices()
        for pair in zip(matrices[::2], matrices[1::2], strict=True):  # in the order of the dense layer's parameters
            for name, width in pair:
                shape = _GATES * self._gate_blocks, -(-width // block_size), block_size
                self.register_parameter(name, nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))
            for name, _ in pair if bias else ():
                vector = torch.empty(_GATES * hidden_size, device=device, dtype=dtype)
                self.register_parameter(name.replace("weight", "bias"), nn.Parameter(vector))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw new weights, as uniform as the dense layer draws its own."""
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            parameter.uniform_(-bound, bound)
        for name, width in self._matrices():
            weight = self.get_parameter(name)
            ragged = self.hidden_size % self.block_size or width % self.block_size
            if ragged and not weight.is_meta:
                used = coverage(weight.new_ones(_GATES * self.hidden_size, width), self.block_size, _GATES) > 0
                weight.mul_(used)

    def forward(self, x: Tensor, hx: State | None = None) -> tuple[Tensor, State]:
        """Outputs of the last level at every step, and the last ``(h, c)`` of every level and direction.

        Args:
            x: ``(T, N, input_size)``, ``(N, T, input_size)`` if ``batch_first``, or ``(T, input_size)``.
            hx: ``(h, c)`` to start from, each ``(num_layers * directions, N, hidden_size)``; zeros if left out.
        """
        if not isinstance(x, Tensor) or x.dim() not in (2, 3) or x.shape[-1] != self.input_size:
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise UsageError(f"BlockCirculantLSTM: expected steps of {self.input_size} features, got {got}")
        if x.dim() == 2:
            start = None if hx is None else (hx[0][:, None], hx[1][:, None])
            y, (h, c) = self(x[:, None].transpose(0, 1) if self.batch_first else x[:, None], start)
            return (y[0] if self.batch_first else y[:, 0]), (h[:, 0], c[:, 0])
        x = x.transpose(0, 1) if self.batch_first else x
        if not len(x):
            raise UsageError("BlockCirculantLSTM: expected at least one step, got none")
        y, last = self._library(x, self._start(x, hx)) if self.impl == "dense" else self._run(x, self._start(x, hx))
        return (y.transpose(0, 1) if self.batch_first else y), last

    def _start(self, x: Tensor, hx: State | None) -> State:
        expected = (self.num_layers * (1 + self.bidirectional), x.shape[1], self.hidden_size)
        if hx is None:
            zeros = x.new_zeros(expected)
            return zeros, zeros
        if any(tuple(state.shape) != expected for state in hx):
            raise UsageError(f"hx: expected two tensors of {expected}, got {[tuple(s.shape) for s in hx]}")
        return hx

    def _library(self, x: Tensor, hx: State) -> tuple[Tensor, State]:
        """All matrices written out, and the vendor's layer on them."""
        dtype, widths = compute_dtype(x), dict(self._matrices())
        weights = [
            self._written_out(values, widths[name], dtype) if name in widths else values.to(dtype)
            for name, values in self.named_parameters()
        ]
        # The library keeps what gradients need in training mode alone; without dropout it computes the same there.
        dropout = self.dropout if self.training else 0.0
        h, c = (state.to(dtype) for state in hx)
        y, h, c = torch.lstm(
            x.to(dtype), (h, c), weights, self.bias, self.num_layers, dropout, True, self.bidirectional, False
        )
        return y, (h, c)

    def _written_out(self, weight: Tensor, width: int, dtype: torch.dtype) -> Tensor:
        return functional.dense_matrix(
            weight[:, None], None, _GATES * self.hidden_size, width, _GATES, dtype
        ).squeeze(-1)

    def _run(self, x: Tensor, hx: State) -> tuple[Tensor, State]:
        directions = 2 if self.bidirectional else 1
        last: list[State] = []
        for level in range(self.num_layers):
            if level and self.dropout:
                x = F.dropout(x, self.dropout, self.training)
            ways = []
            for direction in range(directions):
                index = level * directions + direction
                suffix = f"l{level}" + ("_reverse" if direction else "")
                way, state = self._sweep(x.flip(0) if direction else x, hx[0][index], hx[1][index], suffix)
                ways.append(way.flip(0) if direction else way)
                last.append(state)
            x = torch.cat(ways, -1)
        return x, (torch.stack([h for h, _ in last]), torch.stack([c for _, c in last]))

    def _sweep(self, x: Tensor, h: Tensor, c: Tensor, suffix: str) -> tuple[Tensor, State]:
        """One level in one direction: all steps' input products at once, then the recurrence.

        Parameters are asked for by name, since ``torch.func`` puts other tensors in their place.
        """
        wide = _GATES * self._gate_blocks * self.block_size
        bias = None
        if self.bias:
            both = getattr(self, f"bias_ih_{suffix}") + getattr(self, f"bias_hh_{suffix}")
            missing = wide // _GATES - self.hidden_size
            bias = F.pad(both.view(_GATES, -1), (0, missing)).flatten() if missing else both
        weight_ih, weight = getattr(self, f"weight_ih_{suffix}"), getattr(self, f"weight_hh_{suffix}")
        inputs = functional.linear(x, weight_ih, bias, out_features=wide, impl=self.impl)
        if functional.resolve_impl(self.impl, x) == "kernel":
            return functional.recurrence(inputs, weight, h, c)
        outputs = []
        for step in inputs:
            gates = step + functional.linear(h, weight, out_features=wide, impl=self.impl)
            h, c = lstm_cell(torch.unflatten(gates, -1, (_GATES, -1))[..., : self.hidden_size], c)
            outputs.append(h)
        return torch.stack(outputs), (h, c)

    def _matrices(self) -> list[tuple[str, int]]:
        """Every matrix by name, and the width of what it multiplies."""
        directions = ("", "_reverse") if self.bidirectional else ("",)
        above = self.hidden_size * len(directions)
        return [
            (f"weight_{kind}_l{level}{direction}", width)
            for level in range(self.num_layers)
            for direction in directions
            for kind, width in (("ih", above if level else self.input_size), ("hh", self.hidden_size))
        ]

    @classmethod
    def from_dense(
        cls, dense: nn.LSTM, block_size: int = 64, *,
        init: Literal["project", "fresh"] = "project", rescale: bool = False, impl: Impl = "auto",
    ) -> Self:  # fmt: skip
        """The nearest block-circulant layer, or a fresh one of its sizes; ``kept_energy`` says how near.

        Raises:
            UsageError: the dense weights are not finite, or outputs are projected.
        """
        if dense.proj_size:
            raise UsageError(f"LSTM: expected one without output projection, got proj_size={dense.proj_size}")
        weight = dense.get_parameter("weight_ih_l0")
        layer: Self = nn.utils.skip_init(
            cls, dense.input_size, dense.hidden_size, dense.num_layers, dense.bias, dense.batch_first, dense.dropout,
            dense.bidirectional, block_size=block_size, impl=impl, device=weight.device, dtype=weight.dtype,
        )  # fmt: skip
        kept, total = 0.0, 0.0
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                source = dense.get_parameter(name)
                parameter.requires_grad_(source.requires_grad)
                if name.startswith("bias"):
                    parameter.copy_(source)
                    continue
                projection = project(source, block_size, groups=_GATES, rescale=rescale)
                energy = float(source.double().square().sum())
                kept, total = kept + projection.kept_energy * energy, total + energy
                parameter.copy_(projection.weight)
        layer.kept_energy = kept / total if total else 1.0
        if init == "fresh":
            layer.kept_energy = None
            layer.reset_parameters()
        layer.train(dense.training)
        return layer

    @torch.no_grad()
    def to_dense(self) -> nn.LSTM:
        """The dense layer that computes the same."""
        weight = self.get_parameter("weight_ih_l0")
        dense = nn.LSTM(
            self.input_size, self.hidden_size, self.num_layers, self.bias, self.batch_first, self.dropout,
            self.bidirectional, device=weight.device, dtype=weight.dtype,
        )  # fmt: skip
        widths = dict(self._matrices())
        for name, values in self.named_parameters():
            matrix = name in widths
            dense.get_parameter(name).copy_(
                dense_matrix(values, _GATES * self.hidden_size, _GATES * widths[name], _GATES) if matrix else values
            )
        dense.train(self.training)
        return dense

    def executed(self, phase: str) -> tuple[str, str]:
        """The implementation that computes the layer: ``impl``, or what ``auto`` stands for on its device."""
        return executed_impl(self)

    def extra_repr(self) -> str:
        """Sizes, and what a projection kept."""
        names = ("num_layers", "bias", "batch_first", "dropout", "bidirectional", "block_size", "impl")
        options = ", ".join(f"{name}={getattr(self, name)}" for name in names)
        kept = "" if self.kept_energy is None else f", kept_energy={self.kept_energy:.3g}"
        return f"{self.input_size}, {self.hidden_size}, {options}{kept}"
