import multiprocessing
import threading
import time

import pytest
from tests.simulate.small import job, product

from lamina.errors import LaminaError, UsageError
from lamina.simulate.engines import Here, Processes

SLOW = product(images=400, made=512)
"""With the readable simulator, longer than any test."""


def test_processes_find_what_this_one_does() -> None:
    jobs = [job(product(images=images)) for images in (1, 2, 3)] + [job(device={"dram.bytes": 4096})]
    here = list(Here().submit(jobs))
    there = {result.job.key: result for result in Processes(2).submit(jobs)}
    assert [result.job for result in here] == jobs
    for result in here:
        assert there[result.job.key].run == result.run
        assert there[result.job.key].reason == result.reason
    assert here[-1].run is None and all(result.run for result in here[:-1])


def test_here_tells_how_far_it_is() -> None:
    shares: list[float] = []
    assert len(list(Here(shares.append).submit([job()]))) == 1
    assert shares == sorted(shares) and shares[-1] == 1.0


def test_nothing_to_do_starts_nothing() -> None:
    assert list(Processes(2).submit([])) == []
    with pytest.raises(UsageError, match="workers = 0"):
        Processes(0)


def test_closing_stops_the_rest() -> None:
    submitted = Processes(2).submit([job(), job(SLOW, impl="reference")])
    first = next(submitted)
    assert first.run is not None and first.job.gemm == product()
    submitted.close()
    assert multiprocessing.active_children() == []


def test_a_killed_process_is_reported() -> None:
    def kill() -> None:
        while not multiprocessing.active_children():
            time.sleep(0.01)
        multiprocessing.active_children()[0].kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(LaminaError, match="ask for fewer than 1 workers|fewer than 2 workers"):
        list(Processes(2).submit([job(SLOW, impl="reference")]))
    killer.join()
