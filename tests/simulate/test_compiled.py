"""The cache of compiled functions forgets what any file of the simulator has changed."""

import subprocess
import sys
from pathlib import Path

import pytest

from lamina.simulate.compiled import FOLDER, stamp

pytest.importorskip("numba")

OLD_AND_NEW = """
import sys
from pathlib import Path
sys.path.insert(0, {folder!r})
from lamina.simulate import compiled
compiled.FOLDER = Path({folder!r})
from high import high
print(high(1))
"""
FILES = {
    "constants.py": "A = 1\n",
    "low.py": "from constants import A\nfrom lamina.simulate.compiled import compiled\n"
    "@compiled()\ndef low(x):\n    return x + A\n",
    "high.py": "from low import low\nfrom lamina.simulate.compiled import compiled\n"
    "@compiled()\ndef high(x):\n    return 10 * low(x)\n",
}


def high_of_one(folder: Path) -> str:
    code = OLD_AND_NEW.format(folder=str(folder))
    words = [sys.executable, "-B", "-c", code]  # files of bytecode see no change within a second
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def test_a_constant_and_a_function_of_other_files_take_effect_when_they_change(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    assert high_of_one(tmp_path) == "20"
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "__pycache__").glob("*.nbc")}
    assert kept and high_of_one(tmp_path) == "20"
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "__pycache__").glob("*.nbc")} == kept
    (tmp_path / "constants.py").write_text("A = 5\n")
    assert high_of_one(tmp_path) == "60"
    (tmp_path / "low.py").write_text(FILES["low.py"].replace("x + A", "x - A"))
    assert high_of_one(tmp_path) == "-40"


def test_the_stamp_is_that_of_every_file(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    first = stamp.__wrapped__(tmp_path)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c.py").write_text("")
    second = stamp.__wrapped__(tmp_path)
    (tmp_path / "a.py").write_text("2")
    assert len({first, second, stamp.__wrapped__(tmp_path)}) == 3


def test_the_simulators_own_functions_go_by_it() -> None:
    from lamina.simulate.compaction_engine import core as engine
    from lamina.simulate.fission_unit import core as fission
    from lamina.simulate.hierarchy import core

    functions = (core.advance, core.dram, engine._entry, fission.fuse_8)
    assert {function._cache._impl.locator.get_source_stamp() for function in functions} == {stamp(FOLDER)}
