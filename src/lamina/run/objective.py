"""What a network is trained for: the loss of its outputs, and how often they are right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.errors import UsageError

Objective = Callable[[Any, Tensor, float], tuple[Tensor, Tensor]]
"""From a network's outputs, labels and label smoothing to the mean loss, and the number of right predictions."""


def classification(classes: int | None = None, otherwise: Objective | None = None) -> Objective:
    """Mean cross-entropy of class scores, which may stand in a dict, tuple or dataclass of outputs.

    The scores are the first output ``(*labels.shape, C)`` with at least ``classes`` columns. ``otherwise`` is the
    objective of outputs without any.

    Raises:
        UsageError: when it is called on outputs without class scores, and there is no other objective.
    """

    def objective(outputs: Any, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        scores = class_scores(outputs, labels, classes)
        if scores is None and otherwise is not None:
            return otherwise(outputs, labels, smoothing)
        if scores is None:
            found = ", ".join(str(tuple(one.shape)) for one in tensors(outputs)) or type(outputs).__name__
            raise UsageError(
                f"expected class scores {(*labels.shape, classes or 'C')} among the network's outputs, got {found}: "
                "a classifier can be trained on labels"
            )
        flat, wanted = scores.flatten(0, -2), labels.flatten()
        flat = flat.float() if flat.dtype.itemsize < 4 else flat
        return F.cross_entropy(flat, wanted, label_smoothing=smoothing), (flat.detach().argmax(-1) == wanted).sum()

    return objective


def mean_square(outputs: Any, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """The mean square of every output, which needs no labels; no prediction is right. Empty outputs count as 0.

    Raises:
        UsageError: no output has floating-point values.
    """
    found = [one for one in tensors(outputs) if one.is_floating_point() or one.is_complex()]
    if not found:
        got = ", ".join(str(one.dtype) for one in tensors(outputs)) or type(outputs).__name__
        raise UsageError(f"expected floating-point outputs to train on, got {got}")
    # Sums, since the mean of an empty output, such as the boxes of a detector that finds nothing, is not a number.
    loss = torch.stack([one.abs().float().square().sum() / max(1, one.numel()) for one in found]).mean()
    return loss, torch.zeros((), dtype=torch.int64, device=labels.device)


def class_scores(outputs: Any, labels: Tensor, classes: int | None = None) -> Tensor | None:
    """The first of a network's outputs that has a score of each class for each label, if any.

    In training, one that depends on parameters: a mask of patches is none.
    """
    found = [*tensors(outputs)]
    trained = [one for one in found if one.requires_grad] if torch.is_grad_enabled() else []
    for one in trained or found:
        if one.is_floating_point() and one.shape[:-1] == labels.shape and one.shape[-1] >= (classes or 1):
            return one
    return None


def tensors(outputs: Any) -> Iterator[Tensor]:
    """The tensors of nested outputs, in order."""
    if isinstance(outputs, Tensor):
        yield outputs
    elif isinstance(outputs, Mapping):
        for value in outputs.values():
            yield from tensors(value)
    elif isinstance(outputs, list | tuple):
        for value in outputs:
            yield from tensors(value)
    elif is_dataclass(outputs) and not isinstance(outputs, type):
        for field in fields(outputs):
            yield from tensors(getattr(outputs, field.name))
