"""The driver of ncu against a stand-in that writes what the real one writes, and what each failure becomes."""

import os
import re
import sys
from pathlib import Path

import pytest
from tests.processes import ended

from lamina.errors import LaminaError, MissingError
from lamina.measure.counters import ncu, profile, select

TIME = "gpu__time_duration.sum"
SAMPLE = Path(__file__).parent / "data" / "full_h200.csv"
STAND_IN = """#!{python}
import subprocess, sys
arguments = sys.argv[1:]
at = arguments.index("--log-file")
child = arguments[at + 2:]
code = subprocess.run(child).returncode
text = "==ERROR== The application returned an error code (%d).\\n" % code if code else open({sample!r}).read()
open(arguments[at + 1], "w").write(text)
sys.exit(1 if code else 0)
"""


@pytest.fixture
def tool(tmp_path):
    path = tmp_path / "ncu"
    path.write_text(STAND_IN.format(python=sys.executable, sample=str(SAMPLE)))
    path.chmod(0o755)
    return str(path)


def program(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_counters_are_returned_and_lines_are_streamed(tool):
    lines = []
    session = profile(program("print('one'); print('two')"), [TIME], timeout_s=60, on_line=lines.append, ncu=tool)
    assert lines == ["one", "two"]
    assert [one.metrics[TIME][1] for one in session.profiled] == ["ns", "ns"]
    assert (session.passes, session.caches) == (18, "none")
    assert session.command[0] == tool


def test_the_child_has_the_environment_and_folder_it_is_given(tool, tmp_path):
    lines = []
    profile(
        program("import os; print(os.environ['SAID']); print(os.getcwd())"),
        [TIME], timeout_s=60, on_line=lines.append, environment={**os.environ, "SAID": "x"}, folder=tmp_path, ncu=tool,
    )  # fmt: skip
    assert lines == ["x", str(tmp_path.resolve())]


def test_a_failed_child_is_quoted(tool):
    with pytest.raises(LaminaError, match=r"failed with code 3:\nlast words"):
        profile(program("print('last words'); raise SystemExit(3)"), [TIME], timeout_s=60, ncu=tool)


def test_a_timeout_kills_the_process_and_its_children(tool):
    pids = []
    waits = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with pytest.raises(LaminaError, match="longer than 1 s"):
        profile(program(waits), [TIME], timeout_s=1, on_line=lambda line: pids.append(int(line)), ncu=tool)
    assert all(ended(pid) for pid in pids)


def test_a_failing_callback_ends_the_run(tool):
    def fail(line):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profile(
            program("import time; print(1, flush=True); time.sleep(600)"), [TIME], timeout_s=60, on_line=fail, ncu=tool
        )


def test_without_ncu(monkeypatch, tmp_path):
    monkeypatch.setattr(ncu, "find", lambda: None)
    assert "not installed" in (ncu.refusal() or "")
    with pytest.raises(MissingError, match="install it"):
        profile(["x"], [TIME], timeout_s=1)
    with pytest.raises(MissingError, match="expected Nsight Compute at"):
        profile(["x"], [TIME], timeout_s=1, ncu=str(tmp_path / "gone"))


@pytest.mark.parametrize(
    ("user", "parameters", "refused"),
    [
        (1000, "ResmanDebugLevel: 1\nRmProfilingAdminOnly: 1\n", True), (1000, "RmProfilingAdminOnly: 0\n", False),
        (0, "RmProfilingAdminOnly: 1\n", False), (1000, None, False),
    ],
)  # fmt: skip
def test_permission_is_read_from_the_driver(monkeypatch, tmp_path, user, parameters, refused):
    monkeypatch.setattr(ncu, "find", lambda: "ncu")
    monkeypatch.setattr(os, "geteuid", lambda: user)
    path = tmp_path / "params"
    if parameters is not None:
        path.write_text(parameters)
    assert ("NVreg_RestrictProfilingToAdminUsers=0" in (ncu.refusal(path) or "")) is refused


@pytest.mark.parametrize(
    ("code", "log", "said", "kind", "words"),
    [
        (1, "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", [], MissingError, "SYS_ADMIN"),
        (0, "==WARNING== ERR_NVGPUCTRPERM", [], MissingError, "run as administrator"),
        (1, "==ERROR== LibraryNotLoaded", [], MissingError, "LibraryNotLoaded"),
        (1, "==ERROR== Profiling is not supported on device 0", [], MissingError, "not supported on device 0"),
        (
            1,
            "==ERROR== Driver resource was unavailable. Ensure",
            [],
            MissingError,
            "another tool is using the hardware counters",
        ),
        (1, "==ERROR== The application returned an error code (9).", ["boom"], LaminaError, "code 9:\nboom"),
        (1, "", ["==ERROR== unrecognised option '--x'."], LaminaError, "unrecognised option"),
        (2, "", [], LaminaError, "code 2: no output"),
        (0, "==WARNING== No kernels were profiled.", [], LaminaError, "got none"),
    ],
)
def test_failures(code, log, said, kind, words):
    found = ncu.failure(code, log, said)
    assert type(found) is kind
    assert words in str(found)


def test_warnings_of_ncu_and_output_of_the_child_are_no_failure():
    log = "==WARNING== Note: Running with unmodified GPU clocks."
    assert ncu.failure(0, log, ["my own LibraryNotLoaded is not supported"]) is None


def test_the_command_leaves_clocks_alone():
    line = ncu.command("ncu", ["python", "x.py"], ["a", "b"], Path("log"), "all")
    joined = " ".join(line)
    assert re.search(r"--clock-control none --cache-control all --metrics a,b --log-file log python x.py$", joined)
    assert "--csv --page raw --print-units base --nvtx --profile-from-start off" in joined


@pytest.mark.counters
@pytest.mark.parametrize("name", ["core", "full"])
def test_a_real_kernel(name):
    code = (
        "import torch; x = torch.ones(1 << 20, device='cuda'); torch.cuda.synchronize(); torch.cuda.profiler.start();"
        "r = torch.cuda.nvtx.range_start('lamina/0/forward'); x + x; torch.cuda.nvtx.range_end(r);"
        "torch.cuda.synchronize(); torch.cuda.profiler.stop()"
    )
    session = profile(program(code), select([name]), timeout_s=120)
    (kernel,) = session.profiled
    assert kernel.range == "lamina/0/forward"
    assert all(kernel.metrics[metric][0] is not None for metric in select([name]))
