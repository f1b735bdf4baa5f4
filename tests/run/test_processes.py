"""Joining and leaving a process group."""

import subprocess
import sys
from pathlib import Path

import pytest

PROCESS = """
import sys
from pathlib import Path
import torch
from lamina import run
from lamina.measure.exchange import GradientExchange
from lamina.run.processes import data_parallel, shard

def threads():
    return {name.read_text().strip() for name in Path("/proc/self/task").glob("*/comm")}

def replicated():
    exchange = GradientExchange(torch.device("cpu"))
    model = data_parallel(torch.nn.Linear(3, 2), exchange.hook)
    model(torch.ones(4, 3)).sum().backward()
    assert exchange.take().steps == 1

def sharded():
    layer = torch.nn.Linear(3, 2)
    shard(layer, torch.device("cpu"))
    layer(torch.ones(4, 3)).sum().backward()
    torch.optim.SGD(layer.parameters(), lr=0.1).step()

run.join_processes(torch.device("cpu"))
{"ddp": replicated, "fsdp": sharded}[sys.argv[1]]()
assert any("gloo" in name for name in threads()), threads()
run.leave_processes()
assert not any("gloo" in name for name in threads()), threads()
run.leave_processes()
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="lists the threads of a process in /proc")
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_no_thread_of_the_process_group_outlives_it(parallel: str, tmp_path: Path) -> None:
    script = tmp_path / "process.py"
    script.write_text(PROCESS, encoding="utf-8")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    done = subprocess.run([*launch, str(script), parallel], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
