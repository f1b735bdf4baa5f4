"""Zero masks of what a network's convolutions read, taken while it trains, for the simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Self

from torch import Tensor, nn

from lamina.errors import UsageError, nearest
from lamina.simulate.workloads import GRADIENT, RecordedMask


@dataclass
class MaskRecorder:
    """Keeps which values of each convolution's input are not zero, at every ``every``-th iteration.

    With ``gradients``, also those of the gradient of its output, which backward products read; their names end in
    ``GRADIENT``.

    Args:
        model: a network with convolutions over images.
        iteration: says which iteration is under way.
        every: iterations from one recording to the next.
        images: how many of a batch are kept; all of a smaller one.
        layers: names, or patterns of names, of the convolutions that are recorded; by default all.

    Raises:
        UsageError: the model has no two-dimensional convolution of these names, or a number is below one.
    """

    model: nn.Module
    iteration: Callable[[], int]
    every: int
    images: int
    layers: Sequence[str] = ("*",)
    gradients: bool = False
    masks: list[RecordedMask] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.every < 1 or self.images < 1:
            raise UsageError(f"masks: expected at least 1 iteration and 1 image, got {self.every} and {self.images}")
        convolutions = [(n, module) for n, module in self.model.named_modules() if isinstance(module, nn.Conv2d)]
        if not convolutions:
            raise UsageError(f"masks: expected a network with nn.Conv2d layers, got a {type(self.model).__name__}")
        names = [name for name, _ in convolutions]
        for pattern in self.layers:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise UsageError(f"masks: layer {pattern!r} is no convolution: {nearest(pattern, names)}")
        convolutions = [each for each in convolutions if any(fnmatchcase(each[0], one) for one in self.layers)]
        self._seen: set[tuple[str, int]] = set()
        self._handles = [module.register_forward_pre_hook(self._watch(name)) for name, module in convolutions]
        if self.gradients:
            self._handles += [module.register_forward_hook(self._follow(name)) for name, module in convolutions]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _due(self) -> bool:
        return self.model.training and (self.iteration() + 1) % self.every == 0

    def _follow(self, name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        """A hook of the output's gradient, which autograd calls before the convolution's own backward pass."""

        def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            if self._due() and output.requires_grad:
                now = self.iteration()
                output.register_hook(lambda gradient: self._keep(name + GRADIENT, now, gradient))

        return hook

    def _watch(self, name: str) -> Callable[[nn.Module, Any], None]:
        def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            if self._due():
                self._keep(name, self.iteration(), args[0])

        return hook

    def _keep(self, layer: str, iteration: int, x: Tensor) -> None:
        call = 1
        while (name := layer if call == 1 else f"{layer}:{call}", iteration) in self._seen:
            call += 1
        self._seen.add((name, iteration))
        images = x.detach()[: self.images].reshape(-1, *x.shape[-3:])
        if images.numel():
            self.masks.append(RecordedMask(name, iteration, (images != 0).cpu().numpy()))
