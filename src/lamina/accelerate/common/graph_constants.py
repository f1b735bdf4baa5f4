"""Functions whose results `torch.compile` takes as constants of a graph.

The decorators of `torch.compiler` import the compiler, which would double the time that lamina takes to start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


def graph_constant(function: _Function) -> _Function:
    """What `torch.compiler.assume_constant_result` does, without importing the compiler.

    Graphs do not recompile when the result changes: it must follow from what they are guarded by, or from constants.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
