"""Model and data parallelism give what one process gives."""

from pathlib import Path

from tests import forked


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    worker = Path(__file__).with_name("parallel_worker.py").read_text(encoding="utf-8")
    told = [tmp_path / f"error{rank}" for rank in range(2)]
    ranks = [forked.program(worker, str(tmp_path), str(rank), error=told[rank]) for rank in range(2)]
    for rank in ranks:
        rank.join(240)
    assert [rank.exitcode for rank in ranks] == [0, 0], "\n".join(error.read_text()[-3000:] for error in told)
