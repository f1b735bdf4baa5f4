"""What every layer answers: its output shape, its parameters, and the cost of its phases."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from lamina.spec.cost import Cost, Phase
from lamina.spec.method import Method
from lamina.spec.shape import Shape, elements, show

Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]


class Layer(BaseModel, ABC):
    """One layer of a network: its own settings only; shapes come from the layers it reads.

    Subclasses say what they compute by ``output``, ``parameters`` and ``operations``. Impossible shapes
    raise ``ValueError`` with what was expected and got; the network collects them into one ``SpecError``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: ClassVar[str]
    arity: ClassVar[tuple[int, int | None]] = (1, 1)
    """Least and most number of inputs (``None``: any number)."""
    differentiable: ClassVar[bool] = True
    """Whether the layer's inputs can have a gradient (token indices cannot)."""
    view: ClassVar[bool] = False
    """Whether the layer only renames its input's memory and so costs nothing."""
    counted: ClassVar[bool] = True
    """Whether ``operations`` is a real count."""

    name: str = Field(min_length=1)
    inputs: tuple[str, ...] = ()
    method: Method | None = None
    """Implementation this layer asks for, overriding the run's."""
    propagate: bool = True
    """Whether the gradient with respect to the input is wanted."""

    @abstractmethod
    def output(self, *inputs: Shape) -> Shape:
        """Shape of the result."""

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        """Shapes of the trained parameters by name."""
        return {}

    def operations(self, phase: Phase, *inputs: Shape) -> int:
        """Operations of one phase, counted as :class:`Cost` says."""
        return 0

    def saved(self, *inputs: Shape) -> int:
        """Elements besides the output's gradient that ``backward_data`` must read."""
        return 0

    def phases(self, *inputs: Shape) -> tuple[Phase, ...]:
        """The phases this layer has at all; none where there is nothing to compute."""
        if self.view:
            return ()
        backward_data = (Phase.BACKWARD_DATA,) if self.differentiable and self.propagate else ()
        backward_weight = (Phase.BACKWARD_WEIGHT,) if self.parameters(*inputs) else ()
        return (Phase.FORWARD, *backward_data, *backward_weight)

    def cost(self, phase: Phase, *inputs: Shape, itemsize: int) -> Cost:
        """Operations and compulsory bytes of one phase with elements of ``itemsize`` bytes."""
        if self.view:
            return Cost(0, 0, 0)
        weights = elements(*self.parameters(*inputs).values())
        read, result = elements(*inputs), elements(self.output(*inputs))
        match phase:
            case Phase.FORWARD:
                moved = (read + weights, result)
            case Phase.BACKWARD_DATA:
                moved = (result + self.saved(*inputs), read)
            case Phase.BACKWARD_WEIGHT:
                moved = (result + read, weights)
        return Cost(self.operations(phase, *inputs), *(count * itemsize for count in moved))


def require(condition: bool, expected: str, got: Any) -> None:
    """Raise ``ValueError`` naming what a shape should have been and what it was."""
    if not condition:
        raise ValueError(f"expected {expected}, got {show(got) if isinstance(got, tuple) else got}")
