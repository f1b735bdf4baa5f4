"""Networks: layers in order of execution, each with the names of its inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, SerializeAsAny

from lamina.errors import Fault, SpecError, nearest
from lamina.spec.cost import Cost, Phase
from lamina.spec.layers import Layer
from lamina.spec.layers.base import Positive
from lamina.spec.shape import Shape, elements
from lamina.spec.validated import Validated


class Input(Validated):
    """A network input; ``shape`` is that of one sample, without the batch.

    ``indices`` from ``low`` to below ``vocabulary`` stand for tokens; everything else is real or complex values.
    ``gradient`` says whether the gradient with respect to this input is wanted: training does not need it, a
    benchmark of one layer does. ``dtype`` is that of PyTorch where it is neither int64 nor that of the precision.
    """

    name: str = "input"
    shape: tuple[Positive, ...] = Field(min_length=1)
    content: Literal["real", "indices"] = "real"
    vocabulary: Positive | None = None
    low: int = Field(default=0, ge=0)
    dtype: Literal["complex64", "complex128", "int32", "int16", "int8", "uint8", "bool"] | None = None
    gradient: bool = False


class ScalarInput(Input):
    """An input of one value per sample, such as a time step or an item's id: ``shape`` is empty.

    Networks of packages have such inputs, those of files have none.
    """

    shape: tuple[()] = ()


@dataclass(frozen=True)
class ResolvedLayer:
    """A layer with its input and output shapes at one batch size."""

    layer: Layer
    inputs: tuple[Shape, ...]
    output: Shape

    @property
    def name(self) -> str:
        """Name of the layer."""
        return self.layer.name

    @property
    def parameters(self) -> int:
        """Number of trainable parameters."""
        return elements(*self.layer.parameters(*self.inputs).values())

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Phases of this layer."""
        return self.layer.phases(*self.inputs)

    def cost(self, phase: Phase, itemsize: int = 4) -> Cost:
        """Work of one phase."""
        return self.layer.cost(phase, *self.inputs, itemsize=itemsize)


class Network(Validated):
    """Layers in order of execution. ``batch`` is the default batch size.

    ``mode``: ``composed`` layers feed each other; ``standalone`` layers are separate benchmarks with an input each.
    The network keeps warnings about the file, such as ignored keys.
    """

    name: str
    inputs: tuple[Input, ...] = Field(min_length=1)
    layers: tuple[SerializeAsAny[Layer], ...] = Field(min_length=1)
    batch: Positive = 1
    mode: Literal["composed", "standalone"] = "composed"
    remarks: tuple[str, ...] = ()
    lines: dict[str, int] = Field(default={}, exclude=True)
    """First line of each layer in the file, for messages."""

    def resolve(self, batch: int | None = None) -> tuple[ResolvedLayer, ...]:
        """All layers with their shapes.

        Raises:
            SpecError: all faults at once: duplicate names, missing or later inputs, cycles, wrong arity,
                impossible shapes.
        """
        batch = batch or self.batch
        faults = list(self._wiring())
        if faults:
            raise SpecError(self.name, faults)
        shapes: dict[str, Shape] = {source.name: (batch, *source.shape) for source in self.inputs}
        resolved = []
        for layer in self.layers:
            if not all(name in shapes for name in layer.inputs):
                continue  # it reads a layer that is faulty
            inputs = tuple(shapes[name] for name in layer.inputs)
            try:
                shapes[layer.name] = layer.output(*inputs)
            except ValueError as error:
                faults.append(self._fault(layer, str(error)))
            else:
                resolved.append(ResolvedLayer(layer, inputs, shapes[layer.name]))
        if faults:
            raise SpecError(self.name, faults)
        return tuple(resolved)

    def outputs(self) -> tuple[str, ...]:
        """Names of the layers that no other layer reads: the outputs of the network."""
        read = {name for layer in self.layers for name in layer.inputs}
        return tuple(layer.name for layer in self.layers if layer.name not in read)

    def _fault(self, layer: Layer, message: str) -> Fault:
        return Fault(f"layer {layer.name!r} ({layer.kind}): {message}", self.lines.get(layer.name))

    def _wiring(self) -> Iterator[Fault]:
        sources = {source.name for source in self.inputs}
        places: dict[str, int] = {}
        for place, layer in enumerate(self.layers):
            if layer.name in places or layer.name in sources:
                yield self._fault(layer, "this name is already taken; give each layer a name of its own")
            places.setdefault(layer.name, place)
        known = sources | set(places)
        for place, layer in enumerate(self.layers):
            least, most = layer.arity
            if len(layer.inputs) < least or (most is not None and len(layer.inputs) > most):
                wanted = str(least) if least == most else f"{least} to {most}" if most else f"at least {least}"
                yield self._fault(layer, f"expected {wanted} inputs, got {len(layer.inputs)}")
            for name in layer.inputs:
                if name not in known:
                    yield self._fault(layer, f"input {name!r} does not exist: {nearest(name, known - {layer.name})}")
                elif name not in sources and places[name] >= place:
                    loop = self._loop(layer.name, places)
                    yield self._fault(
                        layer,
                        f"is part of a cycle: {' -> '.join(loop)}"
                        if loop
                        else f"input {name!r} comes later in the file; a layer reads earlier ones",
                    )

    def _loop(self, start: str, places: dict[str, int]) -> list[str]:
        """A cycle from ``start`` through its inputs, or nothing."""
        stack, seen = [[start]], {start}
        while stack:
            path = stack.pop()
            for name in self.layers[places[path[-1]]].inputs:
                if name == start:
                    return [*path, start]
                if name in places and name not in seen:
                    seen.add(name)
                    stack.append([*path, name])
        return []
