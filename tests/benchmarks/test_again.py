"""Recorded commands, run again."""

import fcntl
import json
import sys
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from benchmarks import again, results, source
from lamina import measure

CHIP = results.chip(measure.environment("cpu").device)
OLD, NEW = "1" * 40, "2" * 40
RECORDED = again.Recorded("claim.json", "claim", "", inf, 1)


def put(
    folder: Path, claim: str, command: str, commit: str = OLD, rows: int = 1, chip: str = CHIP, **told: Any
) -> None:
    provenance = {"command": command, "commit": commit} | told
    document = {"claim": claim, "provenance": provenance, "rows": [{}] * rows}
    (folder / f"{claim}_{chip}_2026-01-01.json").write_text(json.dumps(document), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    put(tmp_path, "large", "python -m large", rows=9)
    put(tmp_path, "small", "python -m small 'a b'", rows=2)
    put(tmp_path, "known", "python -m known --data FOLDER", rows=99, seconds=40)
    put(tmp_path, "today", "python -m today", NEW)
    (tmp_path / again.DONE).write_text(f"{NEW} python -m today\n", encoding="utf-8")
    put(tmp_path, "elsewhere", "python -m elsewhere", chip="other")
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    monkeypatch.setattr(source, "commit", lambda: NEW)
    return tmp_path


def test_the_shortest_of_this_device_is_first(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    output = tmp_path_factory.mktemp("output")
    todo = again.wanted(folder, output, CHIP, NEW, ())
    assert [one.claim for one in todo] == ["known", "today", "small", "large"], "nothing is finished there"
    output = folder
    assert [one.claim for one in again.wanted(folder, output, CHIP, NEW, ())] == ["known", "small", "large"]
    assert [one.claim for one in again.wanted(folder, output, CHIP, NEW, ("sm", "la"))] == ["small", "large"]
    put(folder, "small", "python -m small 'a b'", NEW, rows=2)  # which may be the first of more: it was stopped
    assert [one.claim for one in again.wanted(folder, output, CHIP, NEW, ())] == ["known", "small", "large"]
    with (folder / again.DONE).open("a", encoding="utf-8") as file:
        file.write(f"{OLD} python -m large\n{NEW} python -m small 'a b'\n")
    assert [one.claim for one in again.wanted(folder, output, CHIP, NEW, ())] == ["known", "large"]


def test_each_command_runs_and_what_fails_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = folder / "new"
    script = folder / "work.py"
    script.write_text("import sys; print(sys.argv); sys.exit(3 if 'a b' in sys.argv else 0)", encoding="utf-8")
    put(folder, "small", f"python {script} 'a b'", rows=2)
    put(folder, "known", f"python {script} --data FOLDER", rows=99, seconds=40)
    monkeypatch.setattr(sys, "argv", ["again", "--output", str(output), "--data", "d", "--only", "small,known"])
    again.main()
    said = capsys.readouterr().out
    assert f"1 of 2: python {script} --data FOLDER (before: 40 s)" in said and "--data FOLDER: measured, " in said
    assert "failed with exit code 3: see again.log" in said
    logged = (output / "again.log").read_text(encoding="utf-8")
    assert (output / again.DONE).read_text(encoding="utf-8") == f"{NEW} python {script} --data FOLDER\n"
    assert f"'--data', 'd', '--output', '{output}'" in logged and f"'a b', '--output', '{output}'" in logged
    assert again.run(replace(RECORDED, command="python FOLDER"), None, output, NEW, inf).startswith("left out")


def test_what_takes_too_long_is_stopped_with_its_processes(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    child = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); time.sleep(600)"
    script = tmp_path / "long.py"
    words = f"[sys.executable, '-c', {child!r}, {str(lock)!r}]"
    script.write_text(f"import subprocess, sys; subprocess.run({words})", encoding="utf-8")
    long = replace(RECORDED, command=f"python {script}")
    assert again.run(long, None, tmp_path, NEW, 2.0) == "stopped by the time limit"
    assert not (tmp_path / again.DONE).exists()
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # which the child held until its end


def test_each_gpu_has_one_command_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "work.py"
    script.write_text(
        "import os, sys, pathlib; here = pathlib.Path(sys.argv[1], os.environ['CUDA_VISIBLE_DEVICES'])\n"
        "here.touch(exist_ok=False); here.unlink(); print('on', here.name)",
        encoding="utf-8",
    )  # fails where another runs on its GPU
    todo = [replace(RECORDED, command=f"python {script} {tmp_path} {i}") for i in range(6)]
    again.run_all(todo, None, tmp_path, NEW, inf, inf, 2)
    assert capsys.readouterr().out.count(": measured, ") == 6
    for gpu in range(2):
        said = (tmp_path / f"again_{gpu}.log").read_text(encoding="utf-8").splitlines()
        assert {line for line in said if line.startswith("on ")} == {f"on {gpu}"}


def test_benchmarks_that_use_every_gpu_run_last_and_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert again.uses_every_gpu("python -m benchmarks.circulant_layers --block-sizes 32,16")
    assert again.uses_every_gpu("python -m benchmarks.ladder.rows")
    assert again.uses_every_gpu("python -m benchmarks.circulant_training timing")
    assert not again.uses_every_gpu("python -m benchmarks.whole_steps --networks mlp")
    assert not again.uses_every_gpu("python work.py 1")
    script = tmp_path / "work.py"
    script.write_text("import os; print('on', os.environ.get('CUDA_VISIBLE_DEVICES', 'all'))", encoding="utf-8")
    monkeypatch.setattr(again, "uses_every_gpu", lambda command: command.endswith("spread"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    todo = [replace(RECORDED, command=f"python {script} {name}") for name in ("spread", "one", "two")]
    again.run_all(todo, None, tmp_path, NEW, inf, inf, 2)
    assert "on all" in (tmp_path / "again.log").read_text(encoding="utf-8")
    *_, said = (line for line in capsys.readouterr().out.splitlines() if "measured" in line)
    assert said.startswith("3 of 3") and " spread: measured" in said


def test_what_another_device_measured_is_measured_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["again", "--of", "other", "--list"])
    again.main()
    assert capsys.readouterr().out == "python -m elsewhere (unknown, 1 rows)\n"


def test_nothing_starts_after_the_time_limit(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["again", "--limit", "0"])
    again.main()
    assert "the time limit is over: 3 of 3 commands are left" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["again", "--list", "--only", "small"])
    again.main()
    assert capsys.readouterr().out == "python -m small 'a b' (unknown, 2 rows)\n"
    monkeypatch.setattr(sys, "argv", ["again", "--only", "today"])
    again.main()
    assert "was measured from this commit" in capsys.readouterr().out


def test_only_old_results_and_those_of_several_devices(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(folder, "again", "python -m elsewhere", chip=CHIP, rows=5)
    monkeypatch.setattr(again, "old", lambda: {f"{name}_{CHIP}_2026-01-01.json" for name in ("large", "again")})
    monkeypatch.setattr(sys, "argv", ["again", "--of", f"other,{CHIP}", "--old", "--list"])
    again.main()
    listed = capsys.readouterr().out.splitlines()
    assert listed == ["python -m elsewhere (unknown, 5 rows)", "python -m large (unknown, 9 rows)"]
    monkeypatch.setattr(sys, "argv", ["again", "--of", f"other,{CHIP}", "--list", "--only", "elsewhere"])
    again.main()
    assert capsys.readouterr().out == "python -m elsewhere (unknown, 1 rows)\n", "that of the first device"


def test_old_results_are_those_whose_code_changed() -> None:
    known = {path.name for path in results.FOLDER.glob("*.json")}
    assert again.old() <= known


def test_what_took_longer_than_there_is_time_left_is_not_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "work.py"
    script.write_text("", encoding="utf-8")
    todo = [replace(RECORDED, command=f"python {script} {name}", seconds=s) for name, s in (("a", 1.0), ("b", 900.0))]
    again.run_all(todo, None, tmp_path, NEW, 600.0, inf, 1)
    said = capsys.readouterr().out
    assert f"1 of 2: python {script} a: measured" in said
    assert f"left: python {script} b (900 s)" in said and f"{script} b (before" not in said


def test_each_gpu_has_its_own_part_of_the_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(again, "SYSTEM", tmp_path)
    monkeypatch.setattr(again.os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 4, 5})
    assert [again.cores_of(gpu, 3) for gpu in range(3)] == [{0, 1}, {2, 3}, {4, 5}]
    monkeypatch.setattr(again.os, "sched_getaffinity", lambda _: {7})
    assert [again.cores_of(gpu, 2) for gpu in range(2)] == [{7}, {7}]


def test_gpus_share_no_physical_core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for core in range(8):
        threads = tmp_path / f"cpu{core}" / "topology" / "thread_siblings_list"
        threads.parent.mkdir(parents=True)
        threads.write_text(f"{core % 4},{core % 4 + 4}\n")
    monkeypatch.setattr(again, "SYSTEM", tmp_path)
    monkeypatch.setattr(again.os, "sched_getaffinity", lambda _: set(range(8)))
    assert [again.cores_of(gpu, 2) for gpu in range(2)] == [{0, 1, 4, 5}, {2, 3, 6, 7}]
