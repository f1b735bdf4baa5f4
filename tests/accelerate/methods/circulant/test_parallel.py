"""Model and data parallelism give what one process gives."""

import os
import subprocess
import sys
from pathlib import Path


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[4] / "src")}
    worker = str(Path(__file__).with_name("parallel_worker.py"))
    words = [*launch, worker, str(tmp_path)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0 and "equal" in done.stdout, done.stderr[-3000:]
