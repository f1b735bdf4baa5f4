"""Targets of commands: a network from a file, the model zoo or another package, in one form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from numbers import Integral
from typing import cast

import torch
from torch import Tensor, nn

from lamina.build.data import Data, Dataset, Drawn, as_batch, synthetic, train_test
from lamina.build.eager import COMPILED, eager, is_compiled
from lamina.build.inputs import Made, dtype_of, in_range, named, require_names
from lamina.build.models import Entry, create
from lamina.build.models.external import External
from lamina.build.network import DTYPES, SpecModule, conversion, stored_precision, to_precision
from lamina.build.trace import trace
from lamina.errors import UnsupportedError, UsageError
from lamina.spec import Input, Network, ResolvedLayer, ScalarInput
from lamina.spec.zoo import DEFAULT_BATCH

CLASSES, ELEMENTS, SAMPLES = 10, 1 << 24, 128
"""Classes of synthetic data for networks of an unknown number, the most elements of a split of one input, and the
samples of a split of several."""


@dataclass(frozen=True)
class Target:
    """A network that can be built repeatedly, with its inputs.

    ``make`` builds it for a number of classes (``None``: its own). ``batch`` is the default batch size. ``network`` is
    the description, for targets from a file.
    """

    name: str
    inputs: tuple[Input, ...]
    make: Callable[[int | None], nn.Module]
    batch: int = DEFAULT_BATCH
    classes: int | None = None
    network: Network | None = None
    remarks: tuple[str, ...] = field(default=())
    made: Made | None = None
    """Makes the inputs instead of ``inputs``."""

    @property
    def standalone(self) -> bool:
        """Whether the layers are separate benchmarks instead of one network."""
        return self.network is not None and self.network.mode == "standalone"

    @property
    def input_gradients(self) -> tuple[bool, ...]:
        """For each input, whether to compute the gradient with respect to it."""
        return tuple(source.gradient for source in self.inputs)

    def resolve(self, batch: int | None = None) -> tuple[ResolvedLayer, ...]:
        """The layers with their shapes, without computation unless control flow depends on values.

        Raises:
            UnsupportedError: the network cannot be traced.
        """
        if self.network is not None:
            return self.network.resolve(batch)
        size = batch or self.batch
        try:
            with torch.device("meta"):
                network = self.make(None)
                return trace(network, *self.empty(size, stored_precision(network) or "fp32")).layers
        except (UnsupportedError, UsageError):  # it computes with values, in its constructor or its forward pass
            network = self.make(None)
            return trace(network, *self.example_for(network, size)).layers

    def in_float32(self, classes: int | None, warn: Callable[[str], object]) -> nn.Module:
        """The network with its parameters in float32, as optimizers and autocast need them, on the CPU.

        One that mixes dtypes, or casts its inputs to the one of its parameters, stays as it is.

        Args:
            classes: as of ``make``.
            warn: is called with what is converted.
        """
        network = self.make(classes)
        note = conversion(network, "fp32")
        if not note or not self._runs_in_float32(classes):
            return network
        warn(f"{self.name}: {note}")
        return to_precision(network, "fp32", torch.device("cpu"), "nchw")

    def _runs_in_float32(self, classes: int | None) -> bool:
        """Whether it does if converted, tried with a twin: a forward pass may change buffers."""
        with torch.random.fork_rng([]), torch.no_grad(), suppress(Exception):
            twin = to_precision(self.make(classes), "fp32", torch.device("cpu"), "nchw")
            twin(*self.example_for(twin, 2))
            return True
        return False

    def example_for(self, network: nn.Module, batch: int) -> list[Tensor]:
        """Random inputs on the CPU, floating point in the dtype of the network's parameters if all have one."""
        precision = stored_precision(network) or "fp32"
        inputs, _, _ = self.example(batch, None, precision, torch.device("cpu"), "nchw", 0)
        return inputs

    def empty(self, batch: int, precision: str) -> list[Tensor]:
        """Uninitialized inputs of the right shape and dtype, on the default device."""
        if self.made is not None:
            with torch.device("cpu"):
                tensors = self.made.tensors(batch)
            return [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in tensors]
        return [torch.empty((batch, *source.shape), dtype=dtype_of(source, precision)) for source in self.inputs]

    def example(
        self, batch: int, data: Dataset | None, precision: str, device: torch.device, layout: str, seed: int
    ) -> tuple[list[Tensor], Tensor, tuple[str, ...]]:
        """A batch for each input, labels, and warnings for inputs that ``data`` cannot fill.

        Inputs that are neither images of one or three channels, nor frames or tokens of ``data``, are feature maps of
        inner layers: they get normally distributed random values.
        """
        if self.made is not None:
            torch.manual_seed(seed)
            made = [_moved(tensor, precision, device, layout) for tensor in self.made.tensors(batch)]
            return made, torch.randint(self.classes or CLASSES, (batch,)).to(device), ()
        tensors, warnings, labels = [], [], None
        for source in self.inputs:
            real = data is not None and _fits(source, data)
            if data is not None and not real:
                warnings.append(
                    f"input {source.name!r} {source.shape} cannot be filled from {data.name}: random values"
                )
            x, y = (
                as_batch(data, batch, source.shape, seed)
                if real and data
                else _random(source, self.classes, batch, seed)
            )
            labels = y if labels is None else labels
            x = x if source.dtype is None else x.to(dtype_of(source, precision))
            tensors.append(_moved(x, precision, device, layout))
        if labels is None:
            raise UsageError(f"{self.name}: expected at least one input, got none")
        return tensors, labels.to(device), tuple(warnings)

    def train_test(self, source: str) -> tuple[Data, Data]:
        """The train and test splits of a dataset; synthetic samples are those of the network's inputs.

        Raises:
            UsageError: there is no such dataset, or its samples are none of the network's.
        """
        if not self.inputs:
            raise UsageError(f"{self.name}: expected at least one input, got none")
        first = self.inputs[0]
        indices = first.content == "indices"
        one = len(self.inputs) == 1 and self.made is None
        if source == "synthetic" and not (one and _plain(first)):
            return self._drawn("train"), self._drawn("test")
        if not one:
            names = ", ".join(one.name for one in self.inputs)
            raise UsageError(
                f"{source}: a dataset fills one input, {self.name} has {len(self.inputs)}: {names}; "
                "--data synthetic draws random ones"
            )
        if dtype_of(first, "fp32").is_complex:
            raise UsageError(
                f"{self.name}: no dataset has complex values, as its input {first.name!r} needs; "
                "--data synthetic draws random ones"
            )
        if source == "synthetic" and (indices or len(first.shape) != 3 or first.shape[0] not in (1, 3)):
            classes = (first.vocabulary if indices else None) or self.classes or CLASSES
            items = max(32, min(512, ELEMENTS // prod(first.shape)))
            train, test = (
                synthetic(first.shape, classes, items, split=split, indices=indices) for split in ("train", "test")
            )
            return self._labelled(train), self._labelled(test)
        found = train_test(source)
        if (found[0].kind == "tokens") != indices and len(first.shape) == 1:
            raise UsageError(
                f"{source}: expected a dataset of {'tokens' if indices else 'values'} for the input "
                f"{first.name!r} {first.shape}, got {found[0].kind} of shape {found[0].shape}"
            )
        return found

    def _drawn(self, split: str) -> Drawn:
        """Samples of any inputs, drawn as those of a benchmark."""
        classes = self.classes or CLASSES
        _, labels = self._draw(1, 0)
        if labels.dim() > 1:  # each token is followed by one of the vocabulary
            classes = self.inputs[0].vocabulary or classes
        return Drawn(self._draw, split, SAMPLES, tuple(map(str, range(classes))))

    def _draw(self, batch: int, seed: int) -> tuple[tuple[Tensor, ...], Tensor]:
        inputs, labels, _ = self.example(batch, None, "fp32", torch.device("cpu"), "nchw", seed)
        if labels.dim() > 1 and self.classes not in (None, self.inputs[0].vocabulary):
            labels = labels[:, 0] % self.classes
        return tuple(inputs), labels

    def _labelled(self, tokens: Dataset) -> Dataset:
        """Tokens with one label a sample, where the network classifies sequences instead of continuing them."""
        if tokens.kind != "tokens" or self.classes in (None, len(tokens.classes)):
            return tokens
        return replace(tokens, y=tokens.y[:, 0] % self.classes, classes=tokens.classes[: self.classes])


def from_network(network: Network) -> Target:
    """A target from a description."""
    return Target(
        network.name,
        network.inputs,
        lambda classes: SpecModule(network),
        batch=network.batch,
        network=network,
        remarks=network.remarks,
    )


def from_zoo(entry: Entry) -> Target:
    """A target from the zoo."""
    make = partial(create, entry.name)
    return Target(entry.name, entry.inputs, make, batch=DEFAULT_BATCH, classes=entry.classes)


def from_external(
    name: str, load: Callable[[], External], shape: Sequence[int] | Sequence[Input] | Made | None = None
) -> Target:
    """A target from any package.

    Args:
        name: of the network.
        load: builds it.
        shape: the shape of a sample, or the inputs, or what makes them, if the package does not define them.

    Raises:
        UsageError: the input shape is unknown, or no shape.
    """
    _require_sample(shape)
    found = load()
    remarks = (COMPILED,) if is_compiled(found.module) else ()
    load = partial(_eager, load)
    if found.samples and not isinstance(shape, Made) and not (shape and isinstance(shape[0], Input)):
        size = tuple(cast(Sequence[int], shape or found.input))
        shape = Made(partial(found.samples, shape=size))
    if isinstance(shape, Made):
        made = shape
        inputs = tuple(Input(shape=tuple(t.shape[1:])) if t.dim() > 1 else ScalarInput() for t in made.tensors(1))
        return Target(
            name, inputs, lambda classes: made.adapt(load().module), classes=found.classes, made=made, remarks=remarks
        )
    if shape and isinstance(shape[0], Input):
        own = in_range([one for one in shape if isinstance(one, Input)], found.module)
        names = [one.name for one in own]
        require_names(found.module, names)
        return Target(name, own, lambda classes: named(load().module, names), classes=found.classes, remarks=remarks)
    shape = cast(Sequence[int] | None, shape)
    if shape is None and found.inputs:
        own, names = in_range(found.inputs, found.module), [one.name for one in found.inputs]
        return Target(name, own, lambda classes: named(load().module, names), classes=found.classes, remarks=remarks)
    shape = shape or found.input
    if shape is None:
        known = "--input-size 3x224x224, or input_size=(3, 224, 224)"
        raise UsageError(f"{name}: its input shape is unknown; set it, such as {known}")
    source = (Input(shape=tuple(shape)),)
    return Target(name, source, lambda classes: load().module, classes=found.classes, remarks=remarks)


def _require_sample(shape: object) -> None:
    """Refuse what describes no sample: neither sizes of at least 1, nor inputs."""
    if shape is None or isinstance(shape, Made):
        return
    if not isinstance(shape, Sequence) or not (
        all(isinstance(size, Integral) and int(size) > 0 for size in shape)
        or all(isinstance(one, Input) for one in shape)
    ):
        raise UsageError(f"input_size: expected sizes of at least 1, such as (3, 224, 224), or Inputs, got {shape!r}")


def _eager(load: Callable[[], External]) -> External:
    found = load()
    return replace(found, module=eager(found.module))


def _plain(source: Input) -> bool:
    """Whether a synthetic dataset holds such an input: real values, or a sequence of tokens."""
    if source.content == "indices":
        return source.dtype in (None, "int64") and len(source.shape) == 1 and not source.low
    return source.dtype is None


def _fits(source: Input, data: Dataset) -> bool:
    if (source.content == "indices") != (data.kind == "tokens") or len(source.shape) != len(data.shape):
        return False
    if dtype_of(source, "fp32").is_complex or source.low:
        return False
    return data.kind != "image" or source.shape[0] in (1, 3) or source.shape[0] == data.shape[0]


def _random(source: Input, classes: int | None, batch: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random tokens with next-token labels, or normally distributed values with random labels."""
    if source.content == "indices" and (len(source.shape) != 1 or source.low):
        drawn = torch.Generator().manual_seed(seed)
        indices = torch.randint(
            source.low, source.vocabulary or source.low + 2, (batch, *source.shape), generator=drawn
        )
        return indices, torch.randint(classes or CLASSES, (batch,), generator=drawn)
    if source.content == "indices":
        return as_batch(
            synthetic(source.shape, source.vocabulary or classes or 2, batch, seed), batch, source.shape, seed
        )
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.complex64 if dtype_of(source, "fp32").is_complex else torch.float32
    x = torch.randn((batch, *source.shape), generator=generator, dtype=dtype)
    return x, torch.randint(classes or 10, (batch,), generator=generator)


def _moved(x: Tensor, precision: str, device: torch.device, layout: str) -> Tensor:
    if not x.is_floating_point():
        return x.to(device)
    x = x.to(device=device, dtype=DTYPES[precision])
    return x.to(memory_format=torch.channels_last) if layout == "nhwc" and x.dim() == 4 else x
