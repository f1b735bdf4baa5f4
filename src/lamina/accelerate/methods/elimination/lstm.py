"""An LSTM with pruned input features."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from lamina.accelerate.methods.elimination import reference
from lamina.accelerate.methods.elimination.config import Impl
from lamina.accelerate.methods.elimination.indexed import Index, Indexed
from lamina.errors import UnsupportedError, UsageError


class EliminatedLSTM(Indexed, nn.LSTM):
    """`torch.nn.LSTM` with pruned input features: ``(T, N, features)``.

    Its parameters are those of an LSTM with the remaining inputs. The library's recurrence takes no index table, so
    remaining inputs that are no prefix are copied first, once for all steps.

    Args:
        features: of each step, pruned ones included.
        hidden_size: of each layer.
        index: the remaining features.
        options: the other arguments of `torch.nn.LSTM`.
    """

    def __init__(self, features: int, hidden_size: int, index: Index, **options: Any) -> None:
        kept = len(index)
        nn.LSTM.__init__(self, kept, hidden_size, **options)
        self.features = features
        self._keep(index, features, "channel", 1, options.get("device"))

    def forward(self, input: Tensor, hx: Any = None) -> Any:  # type: ignore[override]
        """As the dense layer's; ``x (..., features)``."""
        if isinstance(input, PackedSequence):
            raise UnsupportedError(
                "EliminatedLSTM: expected a tensor, got a PackedSequence: pad the sequences (pad_packed_sequence), or "
                "keep this layer"
            )
        if not isinstance(input, Tensor) or input.shape[-1] != self.features:
            got = tuple(input.shape) if isinstance(input, Tensor) else type(input).__name__
            raise UsageError(f"EliminatedLSTM: expected a tensor of steps of {self.features} features, got {got}")
        at = self.at
        if not at.whole:
            input = input.narrow(-1, 0, len(self.index)) if at.prefix else input.index_select(-1, self.index)
        return nn.LSTM.forward(self, input, hx)

    @classmethod
    @torch.no_grad()
    def from_dense(cls, dense: nn.LSTM, index: Index, *, factor: float = 1.0, impl: Impl = "auto") -> Self:
        """The dense layer with only the features in ``index``, and their weights times ``factor``.

        Raises:
            UsageError: ``impl`` is neither auto nor gather.
        """
        if impl not in ("auto", "gather"):
            raise UsageError(f"impl: expected auto or gather for an LSTM, got {impl}")
        kept = torch.as_tensor(index, dtype=torch.int64, device=dense.get_parameter("weight_ih_l0").device)
        # As `nn.utils.skip_init`, which takes no LSTM: initialization would draw from the user's random state.
        layer = cls(dense.input_size, dense.hidden_size, kept, **_recurrence(dense)).to_empty(device=kept.device)
        layer._keep(kept, dense.input_size, "channel", 1, kept.device)
        for name, parameter in dense.named_parameters():
            value: Tensor = parameter
            if name in _FIRST_LAYER:
                value = parameter.index_select(1, kept)
                value = value if factor == 1.0 else value * factor
            layer.get_parameter(name).copy_(value).requires_grad_(parameter.requires_grad)
        return layer.train(dense.training)

    @torch.no_grad()
    def to_dense(self) -> nn.LSTM:
        """The dense layer that computes the same: the weights of pruned features are zeros."""
        device = self.get_parameter("weight_ih_l0").device
        dense = nn.LSTM(self.features, self.hidden_size, **_recurrence(self)).to_empty(device=device)
        for name, parameter in self.named_parameters():
            first = name in _FIRST_LAYER
            full = reference.dense_weight(parameter, self.index, self.features) if first else parameter
            dense.get_parameter(name).copy_(full).requires_grad_(parameter.requires_grad)
        return dense.train(self.training)

    def extra_repr(self) -> str:
        """As the dense layer's, with the number of remaining features."""
        return f"{self.features}, kept={super().extra_repr()}"


_FIRST_LAYER = ("weight_ih_l0", "weight_ih_l0_reverse")


def _recurrence(layer: nn.LSTM) -> dict[str, Any]:
    """The arguments of a layer's copy without storage."""
    names = ("num_layers", "bias", "batch_first", "dropout", "bidirectional", "proj_size")
    dtype = layer.get_parameter("weight_ih_l0").dtype
    return {name: getattr(layer, name) for name in names} | {"device": "meta", "dtype": dtype}
