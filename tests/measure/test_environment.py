"""Provenance: what it holds, what it must not hold, and which commit it names."""

import json
import os
import platform
import shutil
import subprocess
from importlib import import_module
from pathlib import Path

import pytest
import torch

import lamina
from lamina.measure.environment import commit, environment
from lamina.record.environment import Environment

room = import_module("lamina.measure.environment")  # the module: the room's door has the function of that name


@pytest.fixture
def no_ncu(monkeypatch: pytest.MonkeyPatch) -> None:
    which = shutil.which
    monkeypatch.setattr(room.shutil, "which", lambda name: None if name == "ncu" else which(name))


@pytest.mark.usefixtures("no_ncu")
def test_of_the_cpu() -> None:
    found = environment("cpu")
    assert found.device_kind == "cpu"
    assert found.device == found.cpu
    assert found.lamina == lamina.__version__
    assert found.torch == torch.__version__
    assert found.python == platform.python_version()
    assert found.threads == torch.get_num_threads()
    assert found.cores == os.cpu_count()
    assert found.date.endswith("+00:00")
    assert found.sm_count is found.ncu is found.ncu_path is None


def test_it_is_json_and_names_no_host() -> None:
    found = environment("cpu")
    text = json.dumps(found.to_dict())
    assert Environment(**json.loads(text)) == found
    assert platform.node() not in [word for value in found.to_dict().values() for word in str(value).split()]


def git(folder: Path, *arguments: str) -> None:
    # Variables such as GIT_DIR, set while a hook runs, would point git at another repository.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, env=clean, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit of src/package/__init__.py; the folder of the package."""
    if shutil.which("git") is None:
        pytest.skip("git is not here")
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    package = tmp_path / "src" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "one")
    return package


def test_the_commit_of_a_checkout_and_whether_it_is_dirty(checkout: Path) -> None:
    clean = commit(checkout)
    assert clean is not None
    assert len(clean) == 40
    (checkout / "untracked.py").write_text("")
    assert commit(checkout) == clean
    (checkout / "__init__.py").write_text("changed = True")
    assert commit(checkout) == f"{clean}+dirty"


def test_an_installed_copy_inside_another_repository_has_no_commit(checkout: Path) -> None:
    installed = checkout.parent / "venv" / "lamina"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    assert commit(installed) is None


def test_an_archive_has_the_commit_that_was_written_to_it(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "COMMIT").write_text("$Format:%H$\n")
    assert commit(tmp_path) is None
    (tmp_path / "COMMIT").write_text(f"{'0123456789' * 4}\n")
    assert commit(tmp_path) == "0123456789" * 4


def test_outside_of_a_repository_or_without_git_there_is_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "__init__.py").write_text("")
    assert commit(tmp_path) is None
    monkeypatch.setattr(room.shutil, "which", lambda _: None)
    assert commit(Path(room.__file__).parent) is None


@pytest.mark.parametrize(
    ("says", "version"), [("Version 2025.3.1.0 (build 1) (public-release)", "2025.3.1.0"), ("?", None)]
)
def test_ncu_is_found_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, version: str | None
) -> None:
    tool = tmp_path / "ncu"
    tool.write_text(f"#!/bin/sh\necho 'NVIDIA Nsight Compute'\necho '{says}'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    found = environment("cpu")
    assert (found.ncu, found.ncu_path) == (version, str(tool))


def test_a_failing_tool_gives_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "ncu"
    tool.write_text("#!/bin/sh\nexit 3\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert environment("cpu").ncu is None


@pytest.mark.gpu
def test_of_a_gpu() -> None:
    found = environment("cuda")
    card = torch.cuda.get_device_properties(0)
    assert found.device_kind == "cuda"
    assert found.device == card.name
    assert found.compute_capability == f"{card.major}.{card.minor}"
    assert found.sm_count == card.multi_processor_count
    assert found.l2_bytes == card.L2_cache_size > 0
    assert found.cuda is not None
    json.dumps(found.to_dict())
