from concurrent.futures import ThreadPoolExecutor

from lamina.accelerate.runtime.bounded_cache import BoundedCache


def test_the_oldest_entry_is_evicted() -> None:
    cache = BoundedCache[int, str](2)
    for key, value in ((1, "a"), (2, "b"), (1, "c"), (3, "d")):
        cache.put(key, value)
    assert cache == {2: "b", 3: "d"}
    cache.clear()
    assert cache.get(2) is None and not cache


def test_threads_may_write_at_once() -> None:
    cache = BoundedCache[int, int](8)

    def put(start: int) -> None:
        for i in range(2000):
            cache.put(start * i % 97, i)
            if i % 50 == 0:
                cache.clear()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(put, range(1, 9)))
    assert len(cache) <= 8
