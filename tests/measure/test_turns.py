"""Who times is alone on the device; who works shares it."""

import fcntl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lamina import measure
from lamina.measure import priority
from lamina.measure.turns import _Turns


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[Path]:
    measure.share_device(tmp_path / "cache" / "turns.lock")
    yield tmp_path / "cache" / "turns.lock"
    measure.share_device(None)


def free(path: Path, how: int) -> bool:
    """Whether another process could take the lock."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_others_may_work_until_one_times(lock: Path) -> None:
    assert free(lock, fcntl.LOCK_SH) and not free(lock, fcntl.LOCK_EX)
    with measure.alone():
        with measure.alone():
            measure.pause()
            assert not free(lock, fcntl.LOCK_SH)
        assert not free(lock, fcntl.LOCK_SH)  # the inner one has not given it back
    assert free(lock, fcntl.LOCK_SH) and not free(lock, fcntl.LOCK_EX)


def test_others_may_time_while_one_compiles(lock: Path) -> None:
    with measure.beside():
        assert free(lock, fcntl.LOCK_EX)
        measure.pause()
        with measure.alone(), measure.beside():
            assert not free(lock, fcntl.LOCK_SH)
        assert free(lock, fcntl.LOCK_EX)
    assert not free(lock, fcntl.LOCK_EX)


def test_warm_up_and_timing_are_alone_also_beside_others(lock: Path) -> None:
    seen: list[bool] = []

    class Watched(measure.CpuClock):
        def sampler(self, fn: Callable[[], object], warmup: int = 1) -> Callable[[int], list[float]]:
            seen.append(free(lock, fcntl.LOCK_SH))
            return lambda samples: [1.0] * samples

    with measure.beside():
        measure.interleaved(Watched(), {"a": lambda: None})
        assert seen == [False] and free(lock, fcntl.LOCK_EX)


def test_an_error_gives_the_device_back(lock: Path) -> None:
    with pytest.raises(ZeroDivisionError), measure.alone():
        raise ZeroDivisionError
    assert free(lock, fcntl.LOCK_SH)


def test_who_waits_to_be_alone_goes_first(lock: Path) -> None:
    other = _Turns(lock)
    alone = threading.Event()

    def times() -> None:
        other.hold(fcntl.LOCK_EX)
        alone.set()

    waiting = threading.Thread(target=times)
    waiting.start()
    while free(lock.with_suffix(".gate"), fcntl.LOCK_EX):  # until it stands at the gate
        pass
    assert not alone.is_set()
    pausing = threading.Thread(target=measure.pause)
    pausing.start()
    assert alone.wait(60)
    other.hold(fcntl.LOCK_UN)
    pausing.join(60)
    waiting.join(60)
    other.close()
    assert not pausing.is_alive() and measure.waited_s() > 0


def test_without_sharing_nothing_is_locked(tmp_path: Path) -> None:
    with measure.alone():
        measure.pause()
    assert measure.waited_s() == 0.0


@pytest.mark.skipif(not priority.may_be_raised(), reason="this process may not raise its priority")
def test_who_is_alone_does_not_wait_for_cores(tmp_path: Path) -> None:
    before = priority.niceness()
    yielding = min(before + 1, 19)  # Linux has no larger one
    measure.share_device(tmp_path / "turns.lock", yielding=1)
    try:
        assert priority.niceness() == yielding
        with measure.beside():
            with measure.alone():
                assert priority.niceness() == before
            assert priority.niceness() == yielding
    finally:
        measure.share_device(None)
    assert priority.niceness() == before


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads have no priority of their own here")
def test_every_thread_has_the_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr("os.setpriority", lambda kind, thread, value: asked.append((thread, value)))
    priority.set_niceness(3)
    assert (threading.get_native_id(), 3) in asked


def test_without_the_privilege_the_priority_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = priority.niceness()

    def refuse(kind: int, thread: int, value: int) -> None:
        raise PermissionError

    monkeypatch.setattr("os.setpriority", refuse)
    measure.share_device(tmp_path / "turns.lock", yielding=1)
    with measure.alone():
        pass
    measure.share_device(None)
    assert priority.niceness() == before
