"""Networks of every kind go through every verb without a traceback, and nothing stops the others."""

import json
import os
import random
import subprocess
import sys
import zlib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests import forked

import lamina
from benchmarks import results
from benchmarks.gauntlet import __main__ as gauntlet
from benchmarks.gauntlet import cells, hostile, huggingface, networks, workers
from benchmarks.gauntlet.cells import VERBS, Cell, Job, consequence, with_needs
from benchmarks.gauntlet.models import EXCLUDED, HERE, LARGE, Model, chosen, models
from benchmarks.gauntlet.workers import Journal, run_all

ROOT = Path(__file__).parents[3]
SMALL = {"timm": ("test_resnet", "test_vit", "test_convnext", "test_efficientnet", "test_byobnet", "starnet_s050")}
"""Networks of a package that take a few seconds; of other packages, all do."""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes need not import PyTorch."""
    monkeypatch.setattr(workers, "SPAWN", forked)


def commit() -> str:
    """This source: the commit where it is a checkout, else the version."""
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip() or lamina.__version__


def drawn(source: str, number: int) -> list[Model]:
    """Other networks with each commit."""
    known = [model for model in models() if model.source == source]
    known = [model for model in known if source not in SMALL or model.name in SMALL[source]]
    return random.Random(zlib.crc32(f"{commit()} {source}".encode())).sample(known, number)


@pytest.mark.parametrize(("source", "number"), [("hand-written", 2), ("hostile", 2), ("transformers", 1), ("timm", 1)])
def test_some_networks_go_through_every_verb(
    source: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if source in ("transformers", "timm") and not find_spec(source):
        pytest.skip(f"{source} is not installed: pip install lamina[zoo]")
    monkeypatch.chdir(ROOT)
    work = {model: list(VERBS) for model in drawn(source, number)}
    found = list(run_all(work, "cpu", tmp_path, jobs=1, limit_s=120))
    assert len(found) == number * len(VERBS)
    assert [cell for cell in found if cell.ending in ("traceback", "timeout")] == []
    assert all(cell.reason for cell in found if cell.ending == "refused")


def test_the_list_is_long_and_every_hand_written_network_is_in_it() -> None:
    listed = models()
    assert len(listed) >= 120 and len({model.spec for model in listed}) == len(listed)
    for module in (networks, hostile, huggingface):
        ours = {model.name for model in listed if model.spec.startswith(f"{module.__name__}:")}
        assert ours <= {*vars(module)}
        if module is not huggingface:
            assert all(callable(getattr(module, name)) for name in ours)


def test_large_networks_run_on_a_gpu_or_by_name() -> None:
    assert "timm:nasnetalarge" not in {model.spec for model in chosen("timm:*", "cpu")}
    assert "timm:nasnetalarge" in {model.spec for model in chosen("timm:*", "cuda")}
    assert [model.spec for model in chosen("timm:nasnetalarge,*:UNet", "cpu")] == [
        f"{HERE}.networks:UNet",
        "timm:nasnetalarge",
    ]
    assert {*LARGE.split()} <= {model.spec for model in models()} and len(chosen("*", "cpu")) >= 120


def test_every_family_of_timm_has_a_member_or_a_reason() -> None:
    if not find_spec("timm"):
        pytest.skip("timm is not installed: pip install lamina[zoo]")
    registry = import_module("lamina.build.models.external")._library("timm.models._registry")
    members = {model.name for model in models() if model.source == "timm"}
    without = {family for family, names in registry._module_to_models.items() if not members & {*names}}
    assert without == {name.partition(":")[2] for name in EXCLUDED if name.startswith("timm:")}


def test_cells_end_as_what_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(job: Job) -> None:
        raise cells.Refused("expected this,\n got that")

    def fails(job: Job) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(cells, "VERBS", {"fine": lambda job: "3 of 4", "refuses": refuses, "fails": fails})
    job = Job(Model("package:name"), "cpu", tmp_path)
    fine, refused, failed = (cells.run(verb, job) for verb in cells.VERBS)
    assert (fine.ending, fine.reason) == ("ok", "3 of 4")
    assert (refused.ending, refused.reason) == ("refused", "expected this, got that")
    assert failed.ending == "traceback"
    assert failed.reason.startswith("ZeroDivisionError: by zero (benchmarks/gauntlet/test_gauntlet.py:")


def test_a_command_that_ends_the_shared_process_runs_in_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    code = "import os\nfrom torch import nn\nclass Dies(nn.Module):\n    def forward(self, x):\n        os._exit(3)\n"
    (tmp_path / "deadly.py").write_text(code + "def net():\n    return nn.Sequential(nn.Linear(4, 4), Dies())\n")
    work = {Model("deadly:net", ("4",)): ["bench", "explain", "train"]}
    bench, explain, train = run_all(work, "cpu", tmp_path, jobs=1, limit_s=60)
    assert (bench.verb, bench.ending) == ("bench", "refused") and "the process was ended (exit code 3)" in bench.reason
    assert explain.verb == "explain"
    assert train.reason == "its process died with code 3"  # a process that it shares: only what ended one has its own


def test_a_process_that_hangs_or_dies_costs_one_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(tmp_path)
    code = "import os, time\nfrom torch import nn\n"
    code += "def hangs():\n    time.sleep(600)\ndef dies():\n    os._exit(3)\n"
    (tmp_path / "stubborn.py").write_text(code + "def fine():\n    return nn.Linear(4, 4)\n")
    names = ("hangs", "dies", "fine")
    work = {Model(f"stubborn:{name}", ("4",)): ["convert-fused", "load"] for name in names}
    found = {(cell.model, cell.verb): cell for cell in run_all(work, "cpu", tmp_path, jobs=1, limit_s=6)}
    assert [found[f"stubborn:{name}", "convert-fused"].ending for name in names] == ["timeout", "traceback", "ok"]
    assert found["stubborn:dies", "convert-fused"].reason == "its process died with code 3"
    assert {found[f"stubborn:{name}", "load"].ending for name in names} == {"refused"}  # so the run went on


def test_no_verb_is_to_blame_for_the_traceback_of_another_on_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process ends with it, since it may have made the GPU unusable."""
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(tmp_path)
    code = "from torch import nn\nclass Stuck(nn.Linear):\n    def _apply(self, *_, **__):\n        1 / 0\n"
    (tmp_path / "immovable.py").write_text(code + "def net():\n    return Stuck(4, 4)\n")
    verbs = ["convert-fused", "convert-sparse", "convert-weight-only"]
    found = [*run_all({Model("immovable:net", ("4",)): verbs}, "cuda", tmp_path, jobs=1, limit_s=60)]
    assert [cell.verb for cell in found] == verbs
    assert all(cell.reason.startswith("ZeroDivisionError: division by zero") for cell in found)


def test_a_stopped_run_continues_and_its_rows_fit_the_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[str]] = []

    def instead(work: dict[Model, list[str]], *rest: object) -> list[Cell]:
        asked.extend(work.values())
        return [Cell(model.spec, verb, "refused", "why", 0.5) for model, verbs in work.items() for verb in verbs]

    monkeypatch.setattr(gauntlet, "run_all", instead)
    words = [
        "gauntlet",
        "--models",
        "*:UNet",
        "--work",
        str(tmp_path),
        "--output",
        str(tmp_path),
    ]
    monkeypatch.setattr(sys, "argv", words)
    Journal(tmp_path / "cells-cpu.jsonl").add(Cell(f"{HERE}.networks:UNet", "train", "ok", "", 1.0))
    gauntlet.main()
    assert asked == [[verb for verb in VERBS if verb != "train"]]
    (path,) = tmp_path.glob("gauntlet_*.json")
    document = json.loads(path.read_text(encoding="utf-8"))
    (row,) = results.Results.model_validate(document).model_dump()["rows"]
    assert row["cells"]["train"] == "ok" and row["reasons"] == {verb: "why" for verb in VERBS if verb != "train"}
    assert document["summary"]["ok"] == 1 and document["summary"]["refused"] == len(VERBS) - 1
    assert "the matrix is in" in capsys.readouterr().out


def test_a_verb_whose_results_are_missing_runs_again_and_one_over_time_is_no_refusal(tmp_path: Path) -> None:
    (tmp_path / "deft").mkdir()
    assert with_needs(["what-if", "load"], tmp_path) == ["profile", "what-if", "deft", "load"]
    (tmp_path / "deft" / "recipe.json").touch()
    (tmp_path / "lamina.db").touch()
    assert with_needs(["what-if", "load"], tmp_path) == ["what-if", "load"]
    late, load = Cell("a", "deft", "timeout", "over 60 s", 60.0), Cell("a", "load", "refused", "saved nothing", 0.1)
    assert consequence(load, {("a", "deft"): late}).ending == "timeout"
    assert consequence(load, {("b", "deft"): late}) == load
    assert consequence(late, {("a", "deft"): late}) == late


def test_unknown_verbs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["gauntlet", "--verbs", "bench,dance"])
    with pytest.raises(SystemExit, match="got bench,dance"):
        gauntlet.main()


def test_results_tell_which_networks_were_asked_for() -> None:
    for words, told in (
        ("", "gauntlet"),
        ("--jobs 2 --models timm:*,a.b:c", "gauntlet --models 'timm:*,a.b:c'"),
        ("--device cuda --sample 3 --stop-after 9", "gauntlet --device cuda --stop-after 9.0 --sample 3"),
    ):
        assert gauntlet.command(gauntlet.options().parse_args(words.split())) == told
