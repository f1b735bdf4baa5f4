"""Filters of a grid: comparisons of settings, such as ``batch_size * 3 < 1000``, evaluated without ``eval``."""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

LONGEST = 500
"""Maximum number of characters of a filter."""
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}
EXPECTED = "a comparison of settings such as 'batch_size * 3 < 1000' or 'impl == \"dense\" or batch_size in [16, 32]'"


@dataclass(frozen=True)
class Filter:
    """A condition on the settings of a configuration.

    It has comparisons (also ``in``), ``and``, ``or``, ``not``, arithmetic of numbers, strings, numbers, lists of them,
    and settings by name; a dotted name is one setting.

    Raises:
        ValueError: the text is anything else.
    """

    text: str

    def __post_init__(self) -> None:
        _check(self._tree)

    @cached_property
    def _tree(self) -> ast.expr:
        if len(self.text) > LONGEST:
            raise ValueError(f"expected at most {LONGEST} characters, got {len(self.text)}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ast.parse(self.text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise ValueError(f"expected {EXPECTED}") from None

    @property
    def names(self) -> frozenset[str]:
        """The settings that the filter needs."""
        return frozenset(_names(self._tree))

    def accepts(self, settings: Mapping[str, Any]) -> bool:
        """Whether a configuration satisfies the filter.

        Raises:
            ValueError: values of different types are ordered, a string is part of arithmetic, or a number is divided
                by zero.
        """
        try:
            return bool(_value(self._tree, settings))
        except TypeError:
            raise ValueError("expected values of one type on both sides") from None
        except ArithmeticError as error:
            raise ValueError(str(error)) from None


def _check(node: ast.expr) -> None:
    """Refuse what :func:`_value` does not evaluate."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str()) | ast.Name():
            inner: list[ast.expr] = []
        case ast.Attribute() if _dotted(node):
            inner = []
        case ast.List(elts=inner) | ast.Tuple(elts=inner) | ast.BoolOp(values=inner):
            pass
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            inner = [operand]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            inner = [left, right]
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _COMPARISONS for op in ops):
            inner = [left, *others]
        case _:
            raise ValueError(f"expected {EXPECTED}")
    for each in inner:
        _check(each)


def _value(node: ast.expr, settings: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name() | ast.Attribute():
            return settings[_dotted(node)]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item, settings) for item in items]
        case ast.BoolOp(op=op, values=values):
            results = (_value(value, settings) for value in values)
            return all(results) if isinstance(op, ast.And) else any(results)
        case ast.UnaryOp(op=op, operand=operand):
            value = _value(operand, settings)
            return not value if isinstance(op, ast.Not) else -_number(value)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = (_number(_value(side, settings)) for side in (left, right))
            return _ARITHMETIC[type(op)](a, b)
        case ast.Compare(left=left, ops=ops, comparators=others):
            sides = [_value(side, settings) for side in (left, *others)]
            return all(_COMPARISONS[type(op)](a, b) for op, a, b in zip(ops, sides, sides[1:], strict=False))
    raise AssertionError(node)  # refused by _check


def _number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return value


def _names(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Name | ast.Attribute):
        return [_dotted(node)]
    return [name for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr) for name in _names(each)]


def _dotted(node: ast.expr) -> str:
    """The name of ``device.l2.bytes``; empty for anything else."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            before = _dotted(value)
            return f"{before}.{name}" if before else ""
    return ""
