"""Triton's interpreter with the same results in less time.

At every operation it computes again types, shapes, what a module has, and a sanitizer's condition that only debug mode
reads. Written for Triton 3.6; another version runs as it is.
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

import triton
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton.runtime.interpreter import GridExecutor, InterpretedFunction

Tensors = tuple[tl.tensor, tl.tensor]


def speed_up() -> None:
    """Replace the functions that take the time; once in a process."""
    if not triton.__version__.startswith("3.6."):
        return
    builder = interpreter.interpreter_builder
    # The sanitizer computes each operation again in int64, and compares only in debug mode.
    builder.options = replace(builder.options, sanitize_overflow=builder.options.debug)
    np_dtype = interpreter._get_np_dtype
    by_name = cache(lambda name: np_dtype(tl.dtype(name)))
    interpreter._get_np_dtype = lambda type: np_dtype(type) if type.scalar.is_ptr() else by_name(type.scalar.name)
    interpreter._patch_builtin = patch_builtins
    GridExecutor.__call__ = run_grid(GridExecutor.__call__)
    InterpretedFunction.__call__ = call_function
    tl.block_type.__init__ = make_block_type
    tl.tensor.__init__ = make_tensor
    TritonSemantic.binary_op_type_checking_impl = operands(TritonSemantic.binary_op_type_checking_impl)
    TritonSemantic.broadcast_impl_value = broadcast(TritonSemantic.broadcast_impl_value)


init_block_type = tl.block_type.__init__


@lru_cache(typed=True)
def block_shape(*sizes: Any) -> tuple[tl.tuple, int, str]:
    """A block's shape, its number of elements and its name; raises what Triton raises."""
    made = object.__new__(tl.block_type)
    init_block_type(made, tl.float32, [*sizes])
    return made.shape, made.numel, str(made.shape)


def make_block_type(self: tl.block_type, element_ty: tl.dtype, shape: Any) -> None:
    assert isinstance(shape, (list, tl.tuple))
    self.element_ty = element_ty
    sizes = (size.value if isinstance(size, tl.constexpr) else size for size in shape)
    self.shape, self.numel, name = block_shape(*sizes)
    self.name = f"<{name}, {element_ty}>"


@cache
def tensor_shape(sizes: tuple[int, ...]) -> tuple[tl.tuple, tl.constexpr]:
    """A tensor's shape, and its number of elements."""
    elements = 1
    for size in sizes:
        elements *= size
    return tl.tuple([tl.constexpr(size) for size in sizes]), tl.constexpr(elements)


def make_tensor(self: tl.tensor, handle: Any, type: tl.dtype) -> None:
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = tensor_shape((*type.shape.values,) if type.is_block() else ())


def operands(check: Callable[..., Tensors]) -> Callable[..., Tensors]:
    """Promote types only where they are different."""

    def run(self: Any, lhs: Any, rhs: Any, *args: Any, **kwargs: Any) -> Tensors:
        if type(lhs) is tl.tensor:
            name = lhs.dtype.name
            if type(rhs) is tl.tensor:
                if name in PROMOTED and name == rhs.dtype.name:
                    return self.broadcast_impl_value(lhs, rhs)
            elif type(rhs) in PROMOTED.get(name, ()) and abs(rhs) < 2**31:
                return self.broadcast_impl_value(lhs, self.scalar_constant(rhs, lhs.dtype))
        return check(self, lhs, rhs, *args, **kwargs)

    return run


PROMOTED = {"int32": (int,), "int64": (int,), "fp32": (int, float), "fp64": (int, float)}
"""Types in which any operation on two of one is computed, and the numbers that become one of it."""


def broadcast(values: Callable[..., Tensors]) -> Callable[..., Tensors]:
    """Broadcast only where shapes are different; equal ones are one object."""

    def run(self: Any, lhs: tl.tensor, rhs: tl.tensor) -> Tensors:
        return (lhs, rhs) if lhs.shape is rhs.shape else values(self, lhs, rhs)

    return run


@cache
def builtins_of(package: Any) -> list[str]:
    return [name for name, member in inspect.getmembers(package) if tl.core.is_builtin(member)]


@cache
def with_semantic(member: Callable[..., Any], builder: Any) -> Callable[..., Any]:
    semantic = TritonSemantic(builder)

    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = semantic
        return member(*args, **kwargs)

    return call


def patch_builtins(package: Any, builder: Any, scope: Any) -> None:
    for name in builtins_of(package):
        member = getattr(package, name)
        if tl.core.is_builtin(member):
            scope.set_attr(package, name, with_semantic(member, builder))


patched: set[str] = set()
"""The modules of Triton that are patched while the grid runs."""


@cache
def modules_of(function: Any) -> frozenset[str]:
    found = [value for value in function.__globals__.values() if inspect.ismodule(value)]
    return frozenset(module.__name__ for module in found if module in (tl, tl.core))


def run_grid(run: Callable[..., None]) -> Callable[..., None]:
    def call(self: GridExecutor, *args: Any, **kwargs: Any) -> None:
        outer = patched.copy()
        patched.clear()
        patched.update(modules_of(self.fn))
        try:
            run(self, *args, **kwargs)
        finally:
            patched.clear()
            patched.update(outer)

    return call


def call_function(self: InterpretedFunction, *args: Any, **kwargs: Any) -> Any:
    """Call a function of a kernel; its modules are patched only once in a grid."""
    modules = modules_of(self.fn)
    if not modules <= patched:
        interpreter._patch_lang(self.fn)
        patched.update(modules)
    function = self.rewrite()
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise interpreter.InterpreterError(repr(error)) from error
