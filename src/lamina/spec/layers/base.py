"""Base class of layers: output shape, parameters, and cost of each phase."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar

from pydantic import Field

from lamina.spec.cost import Cost, Phase
from lamina.spec.method import Method
from lamina.spec.shape import Shape, elements, show
from lamina.spec.validated import Validated

Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]


class Layer(Validated, ABC):
    """One layer of a network, with its own settings only; shapes come from its inputs.

    Subclasses say what they compute by ``output``, ``parameters`` and ``operations``. Impossible shapes
    raise ``ValueError`` with the expected and actual value; the network collects them into one ``SpecError``.
    """

    kind: ClassVar[str]
    arity: ClassVar[tuple[int, int | None]] = (1, 1)
    """Minimum and maximum number of inputs (``None``: unlimited)."""
    differentiable: ClassVar[bool] = True
    """Whether the layer's inputs can have a gradient (token indices cannot)."""
    view: ClassVar[bool] = False
    """Whether the layer is a view of its input's memory, at no cost."""

    name: str = Field(min_length=1)
    inputs: tuple[str, ...] = ()
    method: Method | None = None
    """Implementation of this layer, which overrides that of the run."""
    propagate: bool = True
    """Whether to compute the gradient with respect to the input."""

    @property
    def counted(self) -> bool:
        """Whether ``operations`` is known."""
        return True

    @abstractmethod
    def output(self, *inputs: Shape) -> Shape:
        """Shape of the output."""

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        """Shapes of the trainable parameters by name."""
        return {}

    def operations(self, phase: Phase, *inputs: Shape) -> int:
        """Operations of one phase, counted as in :class:`Cost`."""
        return 0

    def saved(self, *inputs: Shape) -> int:
        """Elements that ``backward_data`` must read in addition to the output gradient."""
        return 0

    def phases(self, *inputs: Shape) -> tuple[Phase, ...]:
        """The phases of this layer; none if there is nothing to compute."""
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
    """Raise ``ValueError`` with the expected and actual value unless ``condition`` holds."""
    if not condition:
        raise ValueError(f"expected {expected}, got {show(got) if isinstance(got, tuple) else got}")
