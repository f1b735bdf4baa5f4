"""How soon a command answers: by the modules that it imports, since times depend on the machine."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import typer

from lamina.build.convolution import ALGORITHMS
from lamina.build.data import DATASETS
from lamina.cli import app
from lamina.cli.handled import handled
from lamina.measure import clocks
from lamina.pipeline.what_if import CHANGES
from lamina.record.what_if import CHANGES as KNOWN_CHANGES
from lamina.spec import CLOCKS, DENSE_ALGORITHMS
from lamina.spec import DATASETS as KNOWN_DATASETS

SLOW = ("torch", "torch._dynamo", "triton", "sqlalchemy", "plotly", "matplotlib", "numba", "jinja2", "sympy", "timm")
LISTED: list[tuple[str, ...]] = [
    ("--help",),
    ("bench", "--help"),
    ("bench", "lenet5", "--dry-run"),
    ("bench", "resnet152", "--dry-run", "--format", "json"),
    ("bench", "models/lenet5", "--dry-run"),
    ("models",),
    ("methods",),
    ("recipes", "ls"),
    ("reproduce", "ls"),
]
WRONG = [
    ("--layout", "chw", "did you mean 'nchw'"),
    ("--precision", "fp3", "did you mean 'fp32'"),
    ("--phase", "backward", "did you mean 'backward_data'"),
    ("--impl", "circulent", "did you mean 'circulant'"),
    ("--impl", "dense:winogard", "did you mean 'winograd'"),
    ("--impl", "circulant[size=64]", "option 'size' is unknown"),
    ("--impl", "circulant[block_size=1]", "block_size"),
    ("--clock", "event", "did you mean 'events'"),
    ("--l2", "hot", "expected one of: cold, warm"),
    ("--data", "fashion-mnits", "did you mean 'fashion-mnist'"),
    ("--device", "cude", "did you mean 'cuda'"),
    ("--batch-size", "zero", "positive whole numbers"),
    ("--input-size", "3x", "such as 3x224x224"),
    ("--format", "xml", "--format"),
]


Answer = tuple[int, str, str]

_RUN = f"""
import json, sys
import typer.testing
from functools import cache
from lamina.cli import app
typer.testing._get_command = cache(typer.testing._get_command)  # which makes all commands again at each call
answers = []
for words in json.loads(sys.argv[1]):
    result = typer.testing.CliRunner().invoke(app, words)
    answers.append((result.exit_code, result.stdout, result.stderr))
print(json.dumps([answers, sorted({set(SLOW)!r} & sys.modules.keys())]))
"""


def run(commands: list[tuple[str, ...]], folder: Path) -> tuple[list[Answer], list[str]]:
    """Run commands in a new process: exit code, stdout and stderr of each, and the slow packages that were imported."""
    places = {"LAMINA_DB": str(folder / "lamina.db"), "LAMINA_CACHE_DIR": str(folder)}
    words = [sys.executable, "-c", _RUN, json.dumps(commands)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, **places})
    answers, imported = json.loads(done.stdout)
    return [tuple(answer) for answer in answers], imported


def test_what_is_listed_needs_no_slow_package(tmp_path: Path) -> None:
    answers, imported = run(LISTED, tmp_path)
    for words, (code, out, error) in zip(LISTED, answers, strict=True):
        assert code == 0 and out, (words, error)
    assert imported == []


def test_a_wrong_option_is_refused_before_slow_imports(tmp_path: Path) -> None:
    answers, imported = run([("bench", "lenet5", option, value) for option, value, _ in WRONG], tmp_path)
    for (option, value, expected), (code, _, error) in zip(WRONG, answers, strict=True):
        message = " ".join(error.split())
        assert code == 2 and expected in message, (option, value, message)
    assert imported == []


def test_wrong_changes_and_counters_are_refused_before_slow_imports(tmp_path: Path) -> None:
    cases = [
        ("what-if", "--change", "fuse", "did you mean 'fusion'"),
        ("profile", "--counters", "cores", "did you mean 'core'"),
        *((verb, "--impl", "circulent", "did you mean 'circulant'") for verb in ("profile", "what-if")),
        *((verb, "--layer", "features.9", "did you mean 'features.") for verb in ("bench", "profile", "what-if")),
        ("profile", "--counters", "core,dram__sectors_reads.sum", "did you mean 'dram__sectors_read.sum'"),
    ]
    answers, imported = run([(command, "lenet5", option, value) for command, option, value, _ in cases], tmp_path)
    for (*_, expected), (code, _, error) in zip(cases, answers, strict=True):
        assert code == 2 and expected in " ".join(error.split()), (expected, error)
    assert imported == []


def test_unknown_networks_data_sets_and_devices_are_refused_before_slow_imports(tmp_path: Path) -> None:
    cases = [
        ((command, *words), expected)
        for command in ("bench", "profile", "what-if", "train", "sparsity", "deft", "study")
        for words, expected in (
            (("lenet6", "--data", "fashion-mnist"), "did you mean 'lenet5'"),
            (("lenet5", "--data", "fashion-mnist", "--device", "cude"), "did you mean 'cuda'"),
            (("lenet5", "--data", "fashion-mnits"), "did you mean 'fashion-mnist'"),
        )
    ]
    answers, imported = run([words for words, _ in cases], tmp_path)
    for (words, expected), (code, _, error) in zip(cases, answers, strict=True):
        assert code == 2 and expected in error, (words, error)
    assert imported == []


BEGINNINGS: list[tuple[str, ...]] = [
    ("bench", "lenet5"),
    ("profile", "lenet5"),
    ("what-if", "lenet5"),
    ("train", "lenet5", "--data", "fashion-mnist"),
    ("sparsity", "lenet5", "--data", "fashion-mnist"),
    ("deft", "lenet5", "--data", "fashion-mnist"),
    ("study", "lenet5"),
    ("apply", "lenet5", "absent.toml"),
    ("report", "latest"),
    ("explain", "latest"),
    ("compare", "latest", "latest"),
    *(("runs", name, "latest") for name in ("show", "export", "rm")),
    ("runs", "ls"),
    ("runs", "diff", "latest", "latest"),
    ("runs", "import", "absent.json"),
    ("runs", "recordings"),
    ("runs", "sql", "SELECT 1 AS one"),
    *(("store", *words) for words in (("check", "absent.db"), ("migrate", "absent.db"))),
    ("store", "merge", "absent.db", "--into", "team.db"),
    ("store", "grant", "reports", "--store", "absent.db"),
    ("serve", "--tables", "--store", "absent.db"),
    ("simulate", "run", "lenet5"),
    ("simulate", "compaction-engine", "lenet5"),
    ("simulate", "training", "lenet5"),
    ("simulate", "validate", "absent.csv"),
    ("simulate", "devices"),
    ("sweep", "absent.toml"),
    ("reproduce", "ls"),
    ("reproduce", "run", "circulant-figure-7.5"),
    ("reproduce", "all"),
    ("models",),
    ("methods",),
    ("recipes", "ls"),
    ("recipes", "show", "models/lenet5"),
    ("recipes", "cp", "models/lenet5"),
    ("counters",),
    ("convert-config", "absent.dnnmark"),
    ("env",),
]
_UNTIL_TORCH = """
import json, os, sys
import typer.testing
from functools import cache
class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise typer.Exit(99)
sys.meta_path.insert(0, Stop())
from lamina.cli import app
typer.testing._get_command = cache(typer.testing._get_command)
results = [typer.testing.CliRunner().invoke(app, words) for words in json.loads(sys.argv[1])]
print(json.dumps([(one.exit_code, one.stdout, one.stderr) for one in results]))
"""


def test_every_command_says_something_before_it_imports_pytorch(tmp_path: Path) -> None:
    environment = {**os.environ, "LAMINA_DB": str(tmp_path / "lamina.db"), "LAMINA_CACHE_DIR": str(tmp_path)}
    words = [sys.executable, "-c", _UNTIL_TORCH, json.dumps(BEGINNINGS)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment, cwd=tmp_path)
    codes = {}
    for command, (code, out, error) in zip(BEGINNINGS, json.loads(done.stdout), strict=True):
        codes[command[0]] = code
        assert error.startswith("importing PyTorch") if code == 99 else out or error, (command, code, out, error)
    measuring = ("bench", "profile", "what-if", "train", "sparsity", "deft", "study")
    assert {name for name, code in codes.items() if code == 99} >= {*measuring, "env"}


def commands(group: typer.Typer, above: tuple[str, ...] = ()) -> dict[tuple[str, ...], Callable[..., None]]:
    """Every command by its words."""
    found = {}
    for it in group.registered_commands:
        assert it.callback is not None
        found[(*above, it.name or it.callback.__name__.replace("_", "-"))] = it.callback
    for inner in group.registered_groups:
        assert inner.typer_instance is not None and inner.name is not None
        found |= commands(inner.typer_instance, (*above, inner.name))
    return found


def test_every_command_has_a_beginning_and_an_end() -> None:
    known = commands(app)
    assert {words for words in known if not any(it[: len(words)] == words for it in BEGINNINGS)} == set()
    for words, command in known.items():
        assert command.__code__.co_filename == handled.__code__.co_filename, words


def test_lists_that_need_no_imports_are_those_of_the_implementations() -> None:
    assert tuple(CHANGES) == KNOWN_CHANGES
    assert set(CLOCKS) == clocks._CUDA.keys() | clocks._CPU.keys()
    assert set(KNOWN_DATASETS) == DATASETS.keys()
    assert set(DENSE_ALGORITHMS) == ALGORITHMS.keys()


def test_ctrl_c_while_the_command_line_is_imported() -> None:
    code = """
import sys
class Interrupts:
    def find_spec(self, name, *rest):
        if name == "lamina.cli":
            raise KeyboardInterrupt
from lamina.__main__ import main
sys.meta_path.insert(0, Interrupts())
main()
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "lamina: interrupted\n")


def test_converting_does_not_import_the_compiler() -> None:
    code = "import sys, lamina; lamina.convert; assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
