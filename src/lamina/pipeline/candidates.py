"""The networks that a Python file can build, read from its text: none of its code runs."""

from __future__ import annotations

import ast
from pathlib import Path

from lamina.errors import nearest


def candidates(path: Path) -> tuple[list[str], list[str]]:
    """The classes of modules, and the functions that return something, that can be called without arguments.

    Nothing for a file that cannot be read, or that makes its names as it runs (``__getattr__``).
    """
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return [], []
    functions = {one.name: one for one in body if isinstance(one, ast.FunctionDef)}
    if "__getattr__" in functions:
        return [], []
    modules: dict[str, ast.arguments | None] = {}  # with the arguments of their constructors
    for one in body:
        if isinstance(one, ast.ClassDef) and _is_module(one, modules):
            methods = {method.name: method for method in one.body if isinstance(method, ast.FunctionDef)}
            inherited = next((modules[base] for base in _bases(one) if base in modules), None)
            modules[one.name] = methods["__init__"].args if "__init__" in methods else inherited
    return (
        [name for name, args in modules.items() if name[0] != "_" and (args is None or _required(args) <= 1)],
        [name for name, one in functions.items() if name[0] != "_" and not _required(one.args) and _returns(one)],
    )


def nearest_network(path: Path, name: str) -> str:
    """The hint that ends a message about a name that the file does not have; nothing where it has no network."""
    modules, functions = candidates(path)
    return nearest(name, known) if (known := [*modules, *functions]) else ""


def _is_module(one: ast.ClassDef, modules: dict[str, ast.arguments | None]) -> bool:
    bases = _bases(one)
    if not bases or any(base.endswith("Function") for base in bases):  # of torch.autograd
        return False
    forward = any(isinstance(method, ast.FunctionDef) and method.name == "forward" for method in one.body)
    return forward or any(base in modules or base.endswith(("Module", "Sequential")) for base in bases)


def _bases(one: ast.ClassDef) -> list[str]:
    return [ast.unparse(base).rpartition(".")[2] for base in one.bases]


def _required(args: ast.arguments) -> int:
    positional = len(args.posonlyargs) + len(args.args) - len(args.defaults)
    return positional + sum(default is None for default in args.kw_defaults)


def _returns(function: ast.FunctionDef) -> bool:
    return any(isinstance(one, ast.Return) and one.value is not None for one in ast.walk(function))
