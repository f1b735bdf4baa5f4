"""An LSTM with block-circulant weights (Wang et al., "C-LSTM", FPGA 2018)."""

from __future__ import annotations

import math
import warnings
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from lamina.accelerate.common.operands import compute_dtype
from lamina.accelerate.methods.circulant import functional
from lamina.accelerate.methods.circulant.config import Impl, Selectable, check_block_size, check_impl
from lamina.accelerate.methods.circulant.projection import coverage, project
from lamina.accelerate.methods.circulant.reference import dense_matrix, lstm_cell
from lamina.errors import UnsupportedError, UsageError

# Dense weights of blocks are made in each call, and the user cannot flatten them.
warnings.filterwarnings("ignore", "RNN module weights are not part of", UserWarning, __name__.replace(".", r"\."))

State = tuple[Tensor, Tensor]
_GATES = 4


class BlockCirculantLSTM(Selectable, nn.Module):
    """`torch.nn.LSTM` with block-circulant weights: ``(T, N, input_size)`` to ``(T, N, directions * hidden_size)``.

    ``weight_ih_l*`` and ``weight_hh_l*`` are ``(4 * ceil(hidden_size / k), ceil(width / k), k)``: the blocks of the
    input, forget, cell and output gate, concatenated. Biases and parameter names are those of the dense layer.

    Args:
        input_size: features of each time step.
        hidden_size: features of the hidden state.
        num_layers: stacked layers.
        bias: whether to use biases.
        batch_first: inputs and outputs are ``(N, T, features)``.
        dropout: probability of zeroing an output between stacked layers, in training.
        bidirectional: whether to add a layer that runs over the reversed sequence.
        block_size: ``k``, from 2 to 256.
        impl: the implementation; see `functional`.

    Raises:
        UsageError: an argument is invalid.
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
                raise UsageError(f"{name}: expected an integer of at least 1, got {size!r}")
        if not 0 <= dropout <= 1:
            raise UsageError(f"dropout: expected a probability from 0 to 1, got {dropout!r}")
        check_block_size(block_size)
        self.input_size, self.hidden_size, self.num_layers, self.bias = input_size, hidden_size, num_layers, bias
        self.batch_first, self.dropout, self.bidirectional = batch_first, dropout, bidirectional
        self.block_size = block_size
        self.impl: Impl = check_impl(impl)
        self.kept_energy: float | None = None
        self._gate_blocks = -(-hidden_size // block_size)
        matrices = self._matrices()
        for pair in zip(matrices[::2], matrices[1::2], strict=True):  # in the parameter order of the dense layer
            for name, width in pair:
                shape = _GATES * self._gate_blocks, -(-width // block_size), block_size
                self.register_parameter(name, nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))
            for name, _ in pair if bias else ():
                vector = torch.empty(_GATES * hidden_size, device=device, dtype=dtype)
                self.register_parameter(name.replace("weight", "bias"), nn.Parameter(vector))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialize all parameters uniformly, as the dense layer does."""
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            parameter.uniform_(-bound, bound)
        for name, width in self._matrices():
            weight = self.get_parameter(name)
            ragged = self.hidden_size % self.block_size or width % self.block_size
            if ragged and not weight.is_meta:
                used = coverage(weight.new_ones(_GATES * self.hidden_size, width), self.block_size, _GATES) > 0
                weight.mul_(used)

    def forward(self, input: Tensor, hx: State | None = None) -> tuple[Tensor, State]:
        """The outputs of the last layer at every time step, and the final ``(h, c)`` of every layer and direction.

        Args:
            x: ``(T, N, input_size)``, ``(N, T, input_size)`` with ``batch_first``, or unbatched ``(T, input_size)``.
            hx: the initial ``(h, c)``, each ``(num_layers * directions, N, hidden_size)``; zeros if not given.
        """
        if isinstance(input, PackedSequence):
            raise UnsupportedError(
                "BlockCirculantLSTM: expected a tensor, got a PackedSequence: pad the sequences (pad_packed_sequence), "
                "or keep this layer"
            )
        if not isinstance(input, Tensor) or input.dim() not in (2, 3) or input.shape[-1] != self.input_size:
            got = tuple(input.shape) if isinstance(input, Tensor) else type(input).__name__
            raise UsageError(f"BlockCirculantLSTM: expected {self.input_size} features in each time step, got {got}")
        if input.dim() == 2:
            start = None if hx is None else (hx[0][:, None], hx[1][:, None])
            y, (h, c) = self(input[:, None].transpose(0, 1) if self.batch_first else input[:, None], start)
            return (y[0] if self.batch_first else y[:, 0]), (h[:, 0], c[:, 0])
        input = input.transpose(0, 1) if self.batch_first else input
        if not len(input):
            raise UsageError("BlockCirculantLSTM: expected at least one time step, got none")
        hx = self._initial_state(input, hx)
        y, last = self._forward_dense(input, hx) if self.impl == "dense" else self._forward_layers(input, hx)
        return (y.transpose(0, 1) if self.batch_first else y), last

    def _initial_state(self, x: Tensor, hx: State | None) -> State:
        expected = (self.num_layers * (1 + self.bidirectional), x.shape[1], self.hidden_size)
        if hx is None:
            zeros = x.new_zeros(expected)
            return zeros, zeros
        if any(tuple(state.shape) != expected for state in hx):
            raise UsageError(f"hx: expected two tensors of {expected}, got {[tuple(s.shape) for s in hx]}")
        return hx

    def _forward_dense(self, x: Tensor, hx: State) -> tuple[Tensor, State]:
        """The vendor library's LSTM on the materialized dense weights."""
        dtype, widths = compute_dtype(x), dict(self._matrices())
        weights = [
            self._dense_weight(values, widths[name], dtype) if name in widths else values.to(dtype)
            for name, values in self.named_parameters()
        ]
        # The library saves tensors for backward in training mode only; without dropout, the result is the same.
        dropout = self.dropout if self.training else 0.0
        h, c = (state.to(dtype) for state in hx)
        y, h, c = torch.lstm(
            x.to(dtype), (h, c), weights, self.bias, self.num_layers, dropout, True, self.bidirectional, False
        )
        return y, (h, c)

    def _dense_weight(self, weight: Tensor, width: int, dtype: torch.dtype) -> Tensor:
        return functional.dense_matrix(weight[:, None], None, _GATES * self.hidden_size, width, _GATES, dtype).squeeze(
            -1
        )

    def _forward_layers(self, x: Tensor, hx: State) -> tuple[Tensor, State]:
        directions = 2 if self.bidirectional else 1
        last: list[State] = []
        for layer in range(self.num_layers):
            if layer and self.dropout:
                x = F.dropout(x, self.dropout, self.training)
            outputs = []
            for direction in range(directions):
                index = layer * directions + direction
                suffix = f"l{layer}" + ("_reverse" if direction else "")
                y, state = self._forward_direction(x.flip(0) if direction else x, hx[0][index], hx[1][index], suffix)
                outputs.append(y.flip(0) if direction else y)
                last.append(state)
            x = torch.cat(outputs, -1)
        return x, (torch.stack([h for h, _ in last]), torch.stack([c for _, c in last]))

    def _forward_direction(self, x: Tensor, h: Tensor, c: Tensor, suffix: str) -> tuple[Tensor, State]:
        """One layer in one direction: the input projection of all time steps at once, then the recurrence.

        Parameters are looked up by name, since ``torch.func.functional_call`` replaces them.
        """
        padded = _GATES * self._gate_blocks * self.block_size
        bias = None
        if self.bias:
            total = getattr(self, f"bias_ih_{suffix}") + getattr(self, f"bias_hh_{suffix}")
            missing = padded // _GATES - self.hidden_size
            bias = F.pad(total.view(_GATES, -1), (0, missing)).flatten() if missing else total
        weight_ih, weight = getattr(self, f"weight_ih_{suffix}"), getattr(self, f"weight_hh_{suffix}")
        impl = functional.impl_for(self.impl, x, self.fallback)
        inputs = functional.linear(x, weight_ih, bias, out_features=padded, impl=impl)
        if impl == "kernel":
            return functional.recurrence(inputs, weight, h, c)
        outputs = []
        for step in inputs:
            gates = step + functional.linear(h, weight, out_features=padded, impl=impl)
            h, c = lstm_cell(torch.unflatten(gates, -1, (_GATES, -1))[..., : self.hidden_size], c)
            outputs.append(h)
        # Under autocast the gates have its dtype, which the states do not take on by themselves, but the results do.
        dtype = inputs.dtype
        return torch.stack(outputs).to(dtype), (h.to(dtype), c.to(dtype))

    def _matrices(self) -> list[tuple[str, int]]:
        """The names of all weight matrices, and the features that they multiply."""
        directions = ("", "_reverse") if self.bidirectional else ("",)
        outputs = self.hidden_size * len(directions)
        return [
            (f"weight_{side}_l{layer}{direction}", width)
            for layer in range(self.num_layers)
            for direction in directions
            for side, width in (("ih", outputs if layer else self.input_size), ("hh", self.hidden_size))
        ]

    @classmethod
    def from_dense(
        cls, dense: nn.LSTM, block_size: int = 64, *,
        init: Literal["project", "fresh"] = "project", rescale: bool = False, impl: Impl = "auto",
    ) -> Self:  # fmt: skip
        """The projection of a dense layer, or with ``init="fresh"`` a newly initialized layer of its sizes.

        ``kept_energy`` of the result is the fraction of the squared Frobenius norm that the projection keeps.

        Raises:
            UsageError: the dense weights are not finite, or ``proj_size`` is not 0.
        """
        if dense.proj_size:
            raise UsageError(f"LSTM: expected proj_size=0, got {dense.proj_size}")
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
        """The equivalent dense layer."""
        weight = self.get_parameter("weight_ih_l0")
        dense = nn.LSTM(
            self.input_size, self.hidden_size, self.num_layers, self.bias, self.batch_first, self.dropout,
            self.bidirectional, device="meta", dtype=weight.dtype,
        ).to_empty(device=weight.device)  # fmt: skip
        widths = dict(self._matrices())
        for name, values in self.named_parameters():
            matrix = name in widths
            dense.get_parameter(name).requires_grad_(values.requires_grad).copy_(
                dense_matrix(values, _GATES * self.hidden_size, _GATES * widths[name], _GATES) if matrix else values
            )
        dense.train(self.training)
        return dense

    def executed(self, phase: str) -> tuple[str, str]:
        """The implementation that computes the layer: ``impl``, or what ``auto`` stands for on its device."""
        return functional.executed(self)

    def extra_repr(self) -> str:
        """Arguments, and the kept energy of a projection."""
        names = ("num_layers", "bias", "batch_first", "dropout", "bidirectional", "block_size", "impl")
        options = ", ".join(f"{name}={getattr(self, name)}" for name in names)
        kept = "" if self.kept_energy is None else f", kept_energy={self.kept_energy:.3g}"
        return f"{self.input_size}, {self.hidden_size}, {options}{kept}"
