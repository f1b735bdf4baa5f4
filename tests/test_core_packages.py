"""What lamina needs at least: it imports, lists and describes with the packages of no extra."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
CODE = """
import importlib, sys
from importlib.abc import MetaPathFinder
class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent}:
            raise ModuleNotFoundError(f"no {{name}}", name=name)
sys.meta_path.insert(0, Missing())
import lamina, lamina.cli, lamina.pipeline, lamina.store, lamina.accelerate, lamina.report
for words in (["models"], ["methods"], ["bench", "lenet5", "--dry-run"]):
    try:
        lamina.cli.app(words)
    except SystemExit as end:
        assert not end.code, words
print("complete")
"""


def names(lines: list[str]) -> set[str]:
    return {re.split(r"[^\w-]", line)[0].lower().replace("-", "_") for line in lines}


def test_core_packages_are_enough() -> None:
    extras = names([line for lines in PROJECT["optional-dependencies"].values() for line in lines])
    absent = extras - names(PROJECT["dependencies"]) - {"lamina"}
    assert {"numba", "triton", "matplotlib", "psycopg"} <= absent
    code = CODE.format(absent=sorted(absent))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.endswith("complete\n"), done.stderr[-2000:]
