"""How a layer is computed: ``dense``, ``dense:winograd``, ``circulant[block_size=64]``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lamina.errors import UsageError, nearest


@dataclass(frozen=True)
class MethodInfo:
    """A line of the registry.

    Attributes:
        name: as users write it: ``--impl circulant``.
        summary: one line for help and documentation.
        cell: the folder in ``accelerate/methods/``; empty for dense layers, which need none.
        config: the name of the configuration class, which the package exports.
        aliases: earlier names, which files and results of earlier versions hold.
        published: whether it is a paper's kernel, for comparison: its folder is in ``accelerate/papers/``, and studies
            do not try it.
    """

    name: str
    summary: str
    cell: str = ""
    config: str = ""
    aliases: tuple[str, ...] = ()
    published: bool = False

    @property
    def package(self) -> str:
        """The module of the cell."""
        return f"lamina.accelerate.{'papers' if self.published else 'methods'}.{self.cell}"


DENSE_ALGORITHMS = (
    *("direct", "gemm", "fft", "space_to_depth", "winograd", "winograd2", "winograd4"),
    *("cudnn:fft", "cudnn:winograd", "cudnn:tensor_core", "cudnn:implicit_gemm", "cudnn:strict_fp32"),
)
"""Convolution algorithms that a dense layer can name: ``dense:winograd``."""

METHODS: Mapping[str, MethodInfo] = {
    info.name: info
    for info in (
        MethodInfo("dense", "the vendor library; dense:gemm, dense:space_to_depth, ... name a convolution algorithm"),
        MethodInfo("circulant", "block-circulant weights: k times fewer parameters", "circulant", "Circulant"),
        MethodInfo("sparse", "products that skip zeros of the activations", "activation_sparsity", "Sparse"),
        MethodInfo("eliminated", "input channels pruned: synapse vector elimination", "elimination", "Eliminated"),
        MethodInfo("weight-only", "weights stored in 8 or 16 bits", "weight_only", "WeightOnly", ("fissioned",)),
        MethodInfo("fused", "a layer, its activation and its pooling in one kernel", "fusion", "Fusion"),
        MethodInfo(
            "on-chip-fission",
            "operands packed in shared memory, as DeftNN published it",
            "on_chip_fission",
            "OnChipFission",
            published=True,
        ),
    )
}
"""The registry: every method by its name. A new method is a cell and a line here."""

_NAMES = {alias: info.name for info in METHODS.values() for alias in (info.name, *info.aliases)}
_FORM = re.compile(r"(?P<name>[a-z_-]+)(?::(?P<algorithm>[a-z0-9_:]+))?(?:\[(?P<options>[^\[\]]*)\])?")


@dataclass(frozen=True)
class Method:
    """A named way to compute a layer, with its parameters.

    ``algorithm`` chooses among the vendor library's or lamina's dense algorithms; ``options`` are the
    parameters of an acceleration, by the names its paper gives them.
    """

    name: str = "dense"
    algorithm: str | None = None
    options: tuple[tuple[str, int | float | str], ...] = field(default=())

    @classmethod
    def parse(cls, text: str) -> Method:
        """Read the written form.

        >>> str(Method.parse("circulant[block_size=64]"))
        'circulant[block_size=64]'

        Raises:
            UsageError: the form or the name is unknown.
        """
        match = _FORM.fullmatch(text.strip())
        if not match:
            raise UsageError(f"implementation {text!r}: expected name, name:algorithm or name[option=value,...]")
        name, algorithm, options = match["name"], match["algorithm"], match["options"]
        if name not in _NAMES:
            raise UsageError(f"implementation {name!r} is unknown: {nearest(name, METHODS)}")
        name = _NAMES[name]
        if algorithm and name != "dense":
            raise UsageError(f"implementation {text!r}: only dense takes an algorithm after the colon")
        return cls(name, algorithm, tuple(_option(text, item) for item in (options or "").split(",") if item.strip()))

    @property
    def dense(self) -> bool:
        """Whether the layer keeps its ordinary dense arithmetic."""
        return self.name == "dense"

    def __str__(self) -> str:
        text = f"{self.name}:{self.algorithm}" if self.algorithm else self.name
        return text + (f"[{','.join(f'{k}={v}' for k, v in self.options)}]" if self.options else "")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Let pydantic models hold a method by its written form."""
        from pydantic_core import core_schema

        def validate(value: Any) -> Method:
            if isinstance(value, Method):
                return value
            try:
                return cls.parse(str(value))
            except UsageError as error:
                raise ValueError(str(error)) from None

        return core_schema.no_info_plain_validator_function(
            validate, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )


def _option(text: str, item: str) -> tuple[str, int | float | str]:
    key, equals, value = (part.strip() for part in item.partition("="))
    if not (key and equals and value):
        raise UsageError(f"implementation {text!r}: expected option=value, got {item.strip()!r}")
    for number in (int, float):
        try:
            return key, number(value)
        except ValueError:
            continue
    return key, value
