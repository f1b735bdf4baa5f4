"""The floor plan as a test: every module of lamina is parsed, and a line in a wrong room is told its own."""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "lamina"

NOUNS = ("lazy", "errors", "spec", "record")
VERBS = ("build", "run", "measure", "store", "explain", "accelerate", "simulate", "report")
BELOW: dict[str, tuple[str, ...]] = {  # room -> the rooms it may import, besides itself
    "lazy": (),
    "errors": (),
    "spec": ("lazy", "errors"),
    "record": ("errors", "spec"),
    **dict.fromkeys(VERBS, NOUNS),
    "recipes": ("errors",),
    "pipeline": (*NOUNS, *VERBS, "recipes"),
    "testing": (*NOUNS, *VERBS, "recipes", "pipeline"),
    "cli": (*NOUNS, *VERBS, "recipes", "pipeline", "testing"),
}
LIBRARIES = {  # what may be imported only there
    ("triton",): (
        *("accelerate/runtime/triton_utils.py", "accelerate/runtime/triton_ops.py"),  # what the cells' share
        *("accelerate/*/kernels.py", "accelerate/*/ops.py"),
    ),
    ("cuda.core",): ("accelerate/runtime/nvrtc.py",),
    ("numba",): ("simulate/compiled.py", "simulate/*/core.py", "simulate/*/core/*.py"),
    ("sqlalchemy", "alembic", "sqlite3", "psycopg"): ("store/*",),
    ("jinja2", "plotly", "matplotlib"): ("report/*",),
    ("typer",): ("cli/*",),
    ("rich",): ("cli/*", "report/*"),
}
CLOCKS = ("perf_counter", "time", "monotonic", "process_time", "thread_time")
NAMES = {  # what may be named only there, imported or not
    ("os.environ", "os.getenv", "os.putenv"): ("cli/*", "measure/torch_profiler.py"),
    ("sys.exit", "print"): ("cli/*",),
    (
        *(f"time.{clock}{unit}" for clock in CLOCKS for unit in ("", "_ns")),
        *("timeit", "torch.utils.benchmark", "torch.profiler", "torch.autograd.profiler.profile"),
        *("torch.Event", "torch.cuda.Event", "torch.cuda.synchronize", "*.synchronize"),
    ): ("measure/*",),
}
BANNED = {"errors": ("torch", "numpy"), "spec": ("torch",), "record": ("torch", "numpy")}
CELL = {  # where cells are, and the files of each
    "accelerate/methods": ("config", "reference", "kernels", "ops", "functional", "nn", "convert"),
    "simulate": ("config", "reference", "core", "unit"),
}
SHARED = ("simulate/hierarchy", "simulate/workloads")  # no cells: what the cells share
INSIDE: dict[str, tuple[str, ...]] = {  # part of accelerate/ -> the parts it may import, besides itself
    "common": ("runtime",),
    "runtime": ("common",),
    "select": ("common",),
    "methods": ("common", "runtime", "select", "convert", "papers"),  # published implementations of a method
    "training": ("common", "runtime", "select", "methods"),
    "papers": ("common", "runtime", "select", "methods"),
    "registry": ("methods", "papers"),
    "attention": (),
    "stand_ins": ("attention",),
    "convert": ("attention", "stand_ins", "common", "select", "methods", "registry"),
    "tune": ("select", "registry", "convert"),
    "deprecated": (),
    "__init__": ("convert", "tune", "registry", "deprecated", "select"),
}
JITS = {"triton.jit", "numba.njit", "numba.jit", "lamina.simulate.compiled.compiled"}
DRAWERS = {"utils", "util", "helpers", "helper", "misc"}


@dataclass(frozen=True)
class Module:
    path: str  # below src/lamina
    source: str
    files: frozenset[str]  # every path of the tree

    @cached_property
    def room(self) -> str:
        return self.path.replace("__main__", "cli").split("/")[0].removesuffix(".py")

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(ast.parse(self.source)))

    @cached_property
    def imports(self) -> list[tuple[int, str, str]]:
        """Line, full dotted name and name here of all that is imported, however it is written."""
        found = []
        for node in self.nodes:
            match node:
                case ast.Import():
                    found += [(node.lineno, alias.name, alias.asname or "") for alias in node.names]
                case ast.ImportFrom():
                    above = ["lamina", *self.path.split("/")][: -node.level] if node.level else []
                    base = ".".join([*above, *([node.module] if node.module else [])])
                    found += [(node.lineno, f"{base}.{a.name}", a.asname or a.name) for a in node.names]
                case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=name), *_]):
                    found.append((node.lineno, str(name), ""))
        return found

    @cached_property
    def aliases(self) -> dict[str, str]:
        return {here: name for _, name, here in self.imports}

    def dotted(self, node: ast.expr) -> str:
        """The full name behind an expression such as `tl.load`, its import alias resolved."""
        node, rest = node.func if isinstance(node, ast.Call) else node, []
        while isinstance(node, ast.Attribute):
            node, rest = node.value, [node.attr, *rest]
        first = node.id if isinstance(node, ast.Name) else "()"
        return ".".join([self.aliases.get(first, first), *rest])

    def cell(self, path: str) -> str | None:
        """The cell that a path lies in: a folder of accelerate/methods/ or simulate/."""
        for rooms in CELL:
            if path.startswith(f"{rooms}/"):
                cell = "/".join(path.split("/")[: rooms.count("/") + 2])
                is_folder = any(file.startswith(f"{cell}/") for file in self.files)
                return cell if is_folder and cell not in SHARED else None
        return None


Faults = Iterator[tuple[int, str]]


def rooms_are_on_the_plan(module: Module) -> Faults:
    if module.room not in BELOW and module.room != "__init__":
        yield 1, f"there is no room {module.room!r} on the floor plan"
    for part in module.path.removesuffix(".py").split("/"):
        if part.strip("_") in DRAWERS:
            yield 1, f"{part!r} is a drawer, not a room: put each thing where its subject lives"


def imports_point_down(module: Module) -> Faults:
    why = "only pipeline, cli/ and testing/ wire verbs" if module.room in VERBS else "imports point down"
    for line, name, _ in module.imports:
        package, other, *_ = [*name.split("."), ""]
        if package != "lamina" or module.room == "__init__" or other in (module.room, "__version__"):
            continue
        if other not in BELOW:
            yield line, f"{name} is the front door, for users: import it from its own room"
        elif other not in BELOW.get(module.room, ()):
            yield line, f"{module.room} may not import {name}: {why}"


def nouns_are_plain(module: Module) -> Faults:
    for line, name, _ in module.imports:
        if name.split(".")[0] in BANNED.get(module.room, ()):
            yield line, f"{name} belongs in a verb: {module.room} is plain data"


def libraries_stay_home(module: Module) -> Faults:
    yield from strays(module, LIBRARIES, [])


def clocks_processes_and_speech_stay_home(module: Module) -> Faults:
    named = [(n.lineno, module.dotted(n)) for n in module.nodes if isinstance(n, ast.Attribute | ast.Name)]
    named += [(n.lineno, f"*.{n.attr}") for n in module.nodes if isinstance(n, ast.Attribute)]
    yield from strays(module, NAMES, named)


Homes = Mapping[tuple[str, ...], tuple[str, ...]]


def strays(module: Module, homes: Homes, named: list[tuple[int, str]]) -> Faults:
    """The first line of each name that is imported or mentioned outside its homes."""
    named = [*named, *((line, name) for line, name, _ in module.imports)]
    first: dict[str, int] = {}  # each name, and what it is in, to the first line
    for line, name in named:
        while name:
            first[name] = min(line, first.get(name, line))
            name = name.rpartition(".")[0]
    place = module.path.replace("__main__.py", "cli/__main__.py")
    for owned, rooms in homes.items():
        for own in () if any(fnmatch(place, room) for room in rooms) else owned:
            if own in first:
                yield first[own], f"{own} belongs in {' or '.join(rooms)}"


def cells_are_complete(module: Module) -> Faults:
    cell = module.cell(module.path)
    if cell and module.path == min(file for file in module.files if file.startswith(f"{cell}/")):
        for stem in CELL[cell.rpartition("/")[0]]:
            if f"{cell}/{stem}.py" not in module.files:
                yield 1, f"cell {cell} lacks {stem}.py"


def cells_are_apart(module: Module) -> Faults:
    for line, name, _ in module.imports if module.cell(module.path) else ():
        other = module.cell(name.removeprefix("lamina.").replace(".", "/"))
        if other not in (None, module.cell(module.path)):
            yield line, f"imports cell {other}: what two cells share belongs in {module.room}/ itself"


def accelerate_keeps_its_order(module: Module) -> Faults:
    if module.room == "accelerate" and module.path != "accelerate.py":
        part = module.path.split("/")[1].removesuffix(".py")
        if part not in INSIDE:
            yield 1, f"there is no part {part!r} of accelerate/ on the floor plan"
        for line, name, _ in module.imports:
            package, _, rest = name.partition("lamina.accelerate.")
            other = rest.split(".")[0] if not package and rest else part
            if other in INSIDE and other not in (part, *INSIDE.get(part, INSIDE)):
                yield line, f"accelerate/{part} may not import {name}: imports point down"


def kernels_carry_no_type_check(module: Module) -> Faults:
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef):
            decorators = {module.dotted(decorator) for decorator in node.decorator_list}
            if decorators & JITS and "typing.no_type_check" not in decorators:
                yield node.lineno, f"kernel {node.name} lacks @no_type_check: checkers break compiled code"


Rule = Callable[[Module], Faults]
RULES: tuple[Rule, ...] = (
    rooms_are_on_the_plan, imports_point_down, nouns_are_plain, libraries_stay_home,
    clocks_processes_and_speech_stay_home, cells_are_complete, cells_are_apart, accelerate_keeps_its_order,
    kernels_carry_no_type_check,
)  # fmt: skip


def faults(tree: Mapping[str, str], *rules: Rule) -> list[str]:
    modules = [Module(path, source, frozenset(tree)) for path, source in sorted(tree.items())]
    return [f"{m.path}:{line}: {text}" for m in modules for rule in rules for line, text in rule(m)]


def test_lamina_keeps_every_rule() -> None:
    tree = {path.relative_to(SRC).as_posix(): path.read_text(encoding="utf-8") for path in SRC.rglob("*.py")}
    assert not (found := faults(tree, *RULES)), "\n" + "\n".join(found)


HEAVY = {"torch", "sqlalchemy", "plotly", "matplotlib", "triton", "numba"}


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("lamina", HEAVY),
        ("lamina.cli", HEAVY),
        ("lamina.cli.printing", HEAVY - {"sqlalchemy"}),  # so that looking into the database does not wait for torch
        ("lamina.pipeline", HEAVY),
        ("lamina.accelerate", HEAVY),  # so that the registry of methods can be read at once
    ],
)
def test_front_doors_are_light(module: str, heavy: set[str]) -> None:
    code = f"import sys, {module}; sys.exit(', '.join(sorted({heavy} & set(sys.modules))))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stderr.strip() == "", f"import {module} must load none of {heavy}"


CLEAN = {f"{room}/{cell}/{stem}.py": "" for room in CELL for cell in "mn" for stem in CELL[room]} | {
    "__init__.py": "__version__ = '1'",
    "__main__.py": "import sys\nfrom lamina.cli import main\nsys.exit(main())",
    "measure/wall.py": "import time\nfrom lamina import __version__\ntime.perf_counter()",
    "accelerate/methods/m/kernels.py": "import triton, typing\n@triton.jit\n@typing.no_type_check\ndef k(): ...",
    "simulate/m/core.py": "from lamina.simulate.hierarchy import memory\nfrom . import config",
    "simulate/hierarchy/memory.py": "",
    "build/layer.py": "import time, torch\ndef f(cuda, synchronize): return cuda, synchronize(time.sleep(0))",
    "pipeline.py": "from lamina import run, store",
}
PLANTED = {
    "verb imports verb": ("run/a.py", "from lamina.measure import wall", "only pipeline, cli/"),
    "verb imports verb, relatively": ("run/a.py", "from ..store import write", "only pipeline, cli/"),
    "verb imports verb, by name": ("run/a.py", "importlib.import_module('lamina.report')", "run may not"),
    "noun imports a later noun": ("spec/a.py", "from lamina import record", "imports point down"),
    "pipeline imports cli": ("pipeline.py", "import lamina.cli", "imports point down"),
    "verb uses the front door": ("build/a.py", "from lamina import convert", "front door"),
    "noun imports torch": ("spec/a.py", "import torch.nn as nn", "belongs in a verb"),
    "record imports numpy": ("record/a.py", "from numpy import array", "belongs in a verb"),
    "triton in functional": ("accelerate/methods/m/functional.py", "import triton.language as tl", "kernels.py or"),
    "run-time CUDA in a cell": (
        "accelerate/methods/m/ops.py",
        "from cuda.core import Program",
        "accelerate/runtime/nvrtc.py",
    ),
    "numba in explain": ("explain/a.py", "from numba import njit", "or simulate/*/core.py"),
    "SQL in explain": ("explain/a.py", "import sqlite3", "store/*"),
    "drawing in explain": ("explain/a.py", "import matplotlib.pyplot as plt", "report/*"),
    "typer in pipeline": ("pipeline.py", "import typer", "cli/*"),
    "clock in run": ("run/a.py", "from time import perf_counter as now\nnow()", "measure/*"),
    "aliased clock in run": ("run/a.py", "import time as t\nt.time()", "a.py:2: time.time belongs in"),
    "synchronise in run": ("run/a.py", "import torch\ntorch.cuda.synchronize()", "measure/*"),
    "stream waits in run": ("run/a.py", "def f(stream): stream.synchronize()", "measure/*"),
    "environment in build": ("build/a.py", "import os\nos.environ['HOME']", "cli/*"),
    "exit in store": ("store/a.py", "from sys import exit\nexit(1)", "cli/*"),
    "print in report": ("report/a.py", "print('x')", "print belongs in cli/*"),
    "room called utils": ("utils/a.py", "", "no room 'utils'"),
    "module called helpers": ("run/_helpers.py", "", "a drawer"),
    "cell imports a cell": (
        "accelerate/methods/m/nn.py",
        "from lamina.accelerate.methods.n import nn",
        "two cells share",
    ),
    "unit imports a unit": ("simulate/m/unit.py", "from ..n.core import step", "two cells share"),
    "kernel is checked": ("simulate/m/core.py", "import numba\n@numba.njit()\ndef k(): ...", "kernel k"),
    "methods import training": (
        "accelerate/methods/m/nn.py",
        "from lamina.accelerate.training import monitor",
        "methods may not import",
    ),
    "a new part of accelerate": ("accelerate/halves/ops.py", "", "no part 'halves'"),
    "cell is incomplete": ("accelerate/methods/o/config.py", "", "cell accelerate/methods/o lacks reference.py"),
}


def test_a_clean_house_has_no_faults() -> None:
    assert faults(CLEAN, *RULES) == []


@pytest.mark.parametrize(("path", "source", "message"), PLANTED.values(), ids=PLANTED)
def test_planted_fault_is_caught(path: str, source: str, message: str) -> None:
    assert any(message in fault for fault in faults({**CLEAN, path: source}, *RULES))
