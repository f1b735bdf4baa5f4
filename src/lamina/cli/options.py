"""Options that several commands share, and how their text becomes values.

Texts are checked here, against lists that need no PyTorch, so that a mistake is reported at once.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from lamina.errors import UsageError, nearest
from lamina.spec.method import METHODS
from lamina.spec.shape import parse

if TYPE_CHECKING:
    from lamina.spec import Input, Method
    from lamina.spec.plan import Plan

StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="LAMINA_DB",
        help="Trace database: a file such as runs.db, or a URL such as postgresql://user@host/name.",
        show_default="user data folder",
    ),
]
DeviceOption = Annotated[
    str, typer.Option("--device", "-d", help="cpu, cuda, cuda:1, or auto: CUDA where there is one.")
]
SetOption = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Variable of a template, dotted key of a TOML file, or value in the configuration of transformers:NAME, "
        "such as num_hidden_layers=2. Repeatable.",
    ),
]
FormatOption = Annotated[str, typer.Option("--format", help="table, json or csv, on stdout.")]
AllOption = Annotated[
    bool,
    typer.Option("--all", help="Print every line; by default a long table folds equal blocks and shows the slowest."),
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of weights, data order and random numbers.")]


def _not_empty(context: typer.Context, parameter: typer.CallbackParam, value: str) -> str:
    """Refuse an empty text that was given: without the option a command has a default of its own."""
    source = context.get_parameter_source(parameter.name or "")
    if source is not None and source.name == "COMMANDLINE" and not split(value):
        raise typer.BadParameter(f"{nearest(value, METHODS)}, got {value!r}")
    return value


ImplOption = Annotated[
    str,
    typer.Option(
        "--impl",
        callback=_not_empty,
        help="Implementations, between commas, with parameters in brackets: circulant\\[block_size=64]. "
        + "; ".join(f"[bold]{info.name}[/bold]: {info.summary}" for info in METHODS.values())
        + ". See 'lamina methods'.",
    ),
]

PlanOption = Annotated[
    Path | None,
    typer.Option("--plan", help="Each layer by its method in a plan of 'lamina study': plan.toml, or its folder."),
]

SpecArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SPEC...",
        help="A network of the zoo (alexnet), a file (.dnnmark, .dnntemplate, .toml), a recipe, "
        "timm:NAME, torchvision:NAME, transformers:NAME (a type such as bert or a class such as BertModel, with "
        "random weights), package.module:function or file.py:function.",
    ),
]
OneSpecArgument = Annotated[
    str,
    typer.Argument(
        metavar="SPEC",
        help="A network of the zoo, a workload file, a recipe, package.module:function or file.py:function.",
    ),
]
PrecisionOption = Annotated[
    str,
    typer.Option(
        "--precision", "--dtype", help="Between commas: fp32 (no tensor cores), tf32, bf16, fp16, fp64; default fp32."
    ),
]
BatchOption = Annotated[
    str, typer.Option("--batch-size", "-b", help="Batch sizes, between commas, such as 16 or 16,64,128.")
]
LayoutOption = Annotated[
    str, typer.Option("--layout", help="Memory layouts, between commas: nchw, nhwc (channels-last); default nchw.")
]
DataOption = Annotated[str, typer.Option("--data", help="Data set: fashion-mnist (shipped), synthetic, or a path.")]
CheckOption = Annotated[bool, typer.Option("--check/--no-check", help="Compare results with float64 before timing.")]
InputSizeOption = Annotated[
    str,
    typer.Option(
        "--input-size",
        help="Shape of one sample, such as 3x224x224, of a network of a package; default: what its package defines.",
    ),
]
InputOption = Annotated[
    list[str],
    typer.Option(
        "--input",
        metavar="NAME=DTYPE:SHAPE",
        help="An input of the network: its parameter, its type and the shape of a sample, such as tokens=int64:128, "
        "x=float32:3x32x32 or z=complex64:64; t=float32: has one value per sample. Integers are in the range of the "
        "network's embeddings, or in \\[LOW,HIGH) of tokens=int64\\[LOW,HIGH]:128. Floating-point types follow "
        "--precision. Repeatable.",
    ),
]
InputFnOption = Annotated[
    str,
    typer.Option(
        "--input-fn",
        metavar="MODULE:FUNCTION",
        help="A function that makes the network's inputs for a batch size, such as mymodels:inputs: a tensor, a tuple, "
        "or a dict of keywords.",
    ),
]
LayerOption = Annotated[
    list[str],
    typer.Option(
        "--layer",
        metavar="PATTERN",
        help="Only layers whose names match: 'features.*', 'blocks.?.norm', fc. Between commas, or repeated.",
    ),
]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Complete the last unfinished run of the same work.")]
ReportOption = Annotated[Path | None, typer.Option("--report", help="Also write an HTML report, such as alexnet.html.")]

FORMATS = ("table", "json", "csv")


def split(text: str) -> list[str]:
    """Items between commas; commas inside square brackets do not count.

    >>> split("dense,circulant[block_size=64,bias=1]")
    ['dense', 'circulant[block_size=64,bias=1]']
    """
    return [item.strip() for item in re.split(r",(?![^\[]*\])", text) if item.strip()]


def choices(option: str, text: str, allowed: Sequence[str]) -> list[str]:
    """Items between commas, each of which must be allowed.

    Raises:
        UsageError: naming the option and the nearest allowed value.
    """
    items = split(text)
    for item in items or [text]:
        if item not in allowed:
            raise UsageError(f"{option}: {item!r} is unknown: {nearest(item, allowed)}")
    return items


def allowed(option: str, text: str, field: str) -> list[str]:
    """Items between commas that a field of a workload allows; nothing for no text."""
    from lamina.spec import Phase, Workload

    if not text:
        return []
    inner = get_args(Workload.model_fields[field].annotation)[0]
    return choices(option, text, [str(value) for value in (Phase if inner is Phase else get_args(inner))])


def implementations(text: str) -> list[Method]:
    """Implementations between commas, each known with all its options.

    Raises:
        UsageError: naming the nearest implementation, algorithm or option.
    """
    from lamina.accelerate.registry import CELLS, configuration
    from lamina.spec.method import DENSE_ALGORITHMS, Method

    methods = [Method.parse(item) for item in split(text)]
    for method in methods:
        if method.algorithm is not None and method.algorithm not in DENSE_ALGORITHMS:
            raise UsageError(f"--impl: {method}: unknown algorithm: {nearest(method.algorithm, DENSE_ALGORITHMS)}")
        if method.name in CELLS:
            configuration(method)
    return methods


def plan(path: Path | None) -> dict[str, Any]:
    """The settings of a workload from ``--plan``: methods of layers, precision, layout, batch size and folding.

    Raises:
        UsageError: it is no plan.
    """
    found = whole_plan(path)
    if found is None:
        return {}
    from lamina.accelerate.registry import known_options
    from lamina.spec.whole_method import folds

    if pruned := [one.name for one in found.layers if "fold=true" in one.method]:
        names = ", ".join(pruned[:3]) + ", ..." * (len(pruned) > 3)
        typer.echo(f"--plan: {names}: timed without folding; 'lamina apply' times the plan as it runs", err=True)
    methods = {}
    for one in found.layers:
        method = known_options(one.method)
        if method.algorithm or not method.dense:
            # What was fitted to data cannot be fitted without them; it takes the same time.
            methods[one.name] = str(method).replace("recovery=least_squares", "recovery=scale")
    run = {"precision": [found.run.precision], "layout": [found.run.layout], "batch": [found.batch]}
    return {"plan": methods, "folded": folds(found.run.method)} | run


def whole_plan(path: Path | None) -> Plan | None:
    """The plan of ``--plan``.

    Raises:
        UsageError: it is no plan.
    """
    if path is None:
        return None
    from lamina.spec.plan_file import read_plan

    return read_plan(path)


def layer_patterns(items: Iterable[str]) -> list[str]:
    """Patterns between commas of every ``--layer``; whether they match shows when the network is known.

    Raises:
        UsageError: one is empty.
    """
    found = []
    for item in items:
        patterns = split(item)
        if not patterns:
            raise UsageError(f"--layer: expected a pattern such as 'features.*', got {item!r}")
        found += patterns
    return found


def clocks(text: str) -> list[str]:
    """Clocks between commas; nothing for no text."""
    from lamina.spec.workload import CLOCKS

    return choices("--clock", text, CLOCKS) if text else []


def metrics(text: str) -> tuple[str, ...]:
    """Hardware metrics of the sets and names between commas; none for ``none``.

    Raises:
        UsageError: one is neither a set nor a metric; with the nearest name.
    """
    from lamina.spec import counters

    items = split(text)
    return () if items == ["none"] else counters.select(items)


def dataset(text: str) -> str:
    """A data set by name, or a path that exists; no text stays as it is.

    Raises:
        UsageError: neither; with the nearest name.
    """
    from lamina.spec.workload import DATASETS

    if text and text not in DATASETS and not Path(text).exists():
        raise UsageError(f"--data: {text!r} is neither a data set nor an existing path: {nearest(text, DATASETS)}")
    return text


def writable(option: str, path: Path | None, folder: bool = False) -> None:
    """Refuse a file, or a folder, that cannot be written, before the work whose results it is for.

    Nothing is left behind: neither a file nor a folder.

    Raises:
        UsageError: it is of the other kind, below a file, or the operating system refuses it.
    """
    if path is None:
        return
    there = next(one for one in (path, *path.absolute().parents) if os.path.exists(one))
    kind, other = ("folder", "file") if folder else ("file", "folder")
    if there == path and there.is_dir() != folder:
        raise UsageError(f"{option}: {path} is a {other}: name a {kind}")
    if there != path and not there.is_dir():
        raise UsageError(f"{option}: {path} cannot be made, since {there} is a file")
    try:
        if there.is_dir():
            TemporaryFile(dir=there).close()  # permissions do not suffice: /proc refuses even root
        elif there.is_file():  # opening a pipe would wait for its reader
            there.open("ab").close()
    except OSError as error:
        what = path if there == path else f"in {there}"
        raise UsageError(f"{option}: cannot write {what} ({error.strerror}): name another {kind}") from error


def counts(option: str, text: str) -> list[int]:
    """Positive whole numbers between commas."""
    items = split(text)
    if not items or not all(item.isdecimal() and int(item) > 0 for item in items):
        raise UsageError(f"{option}: expected positive whole numbers such as 16 or 16,64, got {text!r}")
    return [int(item) for item in items]


def shape(option: str, text: str) -> tuple[int, ...]:
    """Sizes between ``x``: ``3x224x224``."""
    if (sizes := parse(text)) is None:
        raise UsageError(f"{option}: expected sizes such as 3x224x224, got {text!r}")
    return sizes


REAL, COMPLEX = ("float32", "float16", "bfloat16", "float64"), ("complex64", "complex128")
WHOLE = {"int64": 1 << 63, "int32": 1 << 31, "int16": 1 << 15, "int8": 1 << 7, "uint8": 1 << 8, "bool": 2}
"""Types of inputs: floating-point ones follow --precision; of integers, the first value that is too large."""


def inputs(size: str, named: Sequence[str], function: str) -> str:
    """--input-size, --input and --input-fn, of which one may be given, as one text for `requested_inputs`."""
    given = [name for name, value in (("--input-size", size), ("--input", named), ("--input-fn", function)) if value]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)}: expected one of them")
    for item in named:
        _input(item)
    if function and ":" not in function:
        raise UsageError(f"--input-fn: expected MODULE:FUNCTION such as mymodels:inputs, got {function!r}")
    text = size or " ".join(named) or function
    requested_inputs(text)
    return text


def requested_inputs(text: str) -> tuple[int, ...] | tuple[Input, ...] | str | None:
    """A shape, the inputs by name, or the name of the function that makes them."""
    if not text:
        return None
    if "=" in text:
        return tuple(_input(item) for item in text.split())
    return text if ":" in text else shape("--input-size", text)


def _input(item: str) -> Input:
    from lamina.spec import Input, ScalarInput

    name, _, rest = item.partition("=")
    type_, colon, sizes = rest.partition(":")
    if not (name.isidentifier() and colon):
        raise UsageError(
            "--input: expected NAME=DTYPE:SHAPE such as tokens=int64:128 or tokens=int64[0,1000]:128, or NAME=DTYPE: "
            f"for one value per sample, got {item!r}"
        )
    dtype, bracket, limits = type_.partition("[")
    if dtype not in (*REAL, *COMPLEX, *WHOLE):
        raise UsageError(f"--input: type {dtype!r} is unknown: {nearest(dtype, (*REAL, *COMPLEX, *WHOLE))}")
    low, high = _range(item, dtype, limits) if bracket else (0, 2 if dtype == "bool" else None)
    kind, size = (Input, {"shape": shape("--input", sizes)}) if sizes else (ScalarInput, {})
    return kind.model_validate(
        {
            "name": name,
            **size,
            "content": "indices" if dtype in WHOLE else "real",
            "vocabulary": high,
            "low": low,
            "dtype": None if dtype in (*REAL, "int64") else dtype,
        }
    )


def _range(item: str, dtype: str, limits: str) -> tuple[int, int]:
    """The limits of ``LOW,HIGH]``, as of ``torch.randint``."""
    if dtype not in WHOLE:
        raise UsageError(f"--input: a range is for integers, {dtype} values are normally distributed: got {item!r}")
    found = re.fullmatch(r"(\d+),(\d+)\]", limits)
    low, high = map(int, found.groups()) if found else (0, 0)
    if not low < high <= WHOLE[dtype]:
        raise UsageError(
            f"--input: expected {dtype}[LOW,HIGH] with 0 <= LOW < HIGH <= {WHOLE[dtype]}, values from LOW to HIGH - 1, "
            f"got {item!r}"
        )
    return low, high


def pairs(items: Iterable[str]) -> dict[str, str]:
    """``KEY=VALUE`` items as a dictionary."""
    values = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not (key and equals):
            raise UsageError(f"--set: expected KEY=VALUE, got {item!r}")
        values[key.strip()] = value.strip()
    return values


def store_url(text: str, option: str = "--store") -> str:
    """The database of ``--store``, or the one file in the user's data folder.

    Raises:
        UsageError: a URL of SQLite has a host, which is a path after two slashes; or the path is a folder.
    """
    scheme, _, rest = text.partition("://")
    if scheme == "sqlite" and rest and not rest.startswith("/"):
        raise UsageError(f"{option}: expected {rest}, or sqlite:///{rest} with three slashes, got {text}")
    url = text or str(_folder("XDG_DATA_HOME", ".local/share") / "lamina.db")
    file = database_file(url)
    if file is not None and os.path.isdir(file):
        raise UsageError(f"{option}: {file}: expected a database file, got a folder; name a file in it")
    return url


def stored_url(text: str, option: str = "--store") -> str:
    """The database of ``--store`` for a command that reads; the default one may not exist yet.

    Raises:
        UsageError: as :func:`store_url`, or the file that was named does not exist.
    """
    url = store_url(text, option)
    file = database_file(text)
    if file is not None and not file.exists():
        named = "LAMINA_DB" if text == os.environ.get("LAMINA_DB") else option
        raise UsageError(
            f"{named}: {file} does not exist: name another database, or make this one with a command that measures, "
            "such as 'lamina bench'"
        )
    return url


def database_file(text: str) -> Path | None:
    """The file of a path or URL of a database; ``None`` for PostgreSQL, memory and no text."""
    path = text.removeprefix("sqlite:///").partition("?")[0] if text.startswith("sqlite:") else text
    return Path(path) if path not in ("", ":memory:") and "://" not in path else None


def cache_folder() -> Path:
    """The folder of measured peaks and selections: ``LAMINA_CACHE_DIR``, or the user's cache folder."""
    own = os.environ.get("LAMINA_CACHE_DIR")
    return Path(own) if own else _folder("XDG_CACHE_HOME", ".cache")


def _folder(variable: str, default: str) -> Path:
    base = os.environ.get(variable)
    return (Path(base) if base else Path.home() / default) / "lamina"


DEVICES = ("auto", "cpu", "cuda")


def device(text: str) -> str:
    """A device by name: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``. Whether it is here shows when it is used.

    Raises:
        UsageError: another name.
    """
    if text not in DEVICES and not re.fullmatch(r"cuda:\d+", text):
        raise UsageError(f"--device: {text!r} is unknown: {nearest(text, DEVICES)} (cuda:1 is the second GPU)")
    return text


def device_name(text: str) -> str:
    """The device of ``--device``: for ``auto``, CUDA where there is one."""
    if device(text) != "auto":
        return text
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def command_line() -> str:
    """The command line, for the provenance of a run."""
    return shlex.join(["lamina", *sys.argv[1:]])
