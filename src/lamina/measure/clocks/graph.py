"""CUDA graph replay: many calls in one graph, without launch overhead on the host."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from lamina.errors import UnsupportedError
from lamina.measure.clocks.capture import capture, run_without_sync
from lamina.measure.clocks.events import between_events
from lamina.measure.clocks.flush import L2Flush
from lamina.measure.clocks.l2 import check_l2
from lamina.measure.device import resolve
from lamina.measure.repeat import DEFAULT, Repeat, collect, summarize
from lamina.record.timing import Timing

_REPLAY_US = 1000.0
_MAX_COPIES = 1000
_BATCH = 10


class GraphClock:
    """Device time per call, with calls unrolled in one CUDA graph whose replay takes 1 ms or more.

    The callable runs on `stream`. A backward pass launches on the stream of its forward pass: run the forward under
    `torch.cuda.stream(clock.stream)`, or the capture fails. A callable that cannot be captured (it synchronizes or uses
    another stream) raises UnsupportedError with the reason, and the device remains usable.

    With l2='cold', the time is that of a graph with an L2 fill before each call minus that of a graph of fills alone.
    The quartiles include those of the fills; if their distance exceeds a tenth of the median, the difference is
    dominated by the fills, and UnsupportedError is raised.
    """

    name = "graph"

    def __init__(self, device: torch.device | str) -> None:
        self.device = resolve(device)
        self.stream = torch.cuda.Stream(self.device)

    def time(self, fn: Callable[[], object], *, l2: str = "warm", repeat: Repeat = DEFAULT) -> Timing:
        check_l2(l2)
        with torch.cuda.device(self.device):
            self._warm_up(fn, repeat.warmup)
            if l2 == "warm":
                return summarize(self._replays(fn, repeat), self.name, l2)
            flush = L2Flush(self.device)

            def flushed() -> None:
                flush()
                fn()

            both = summarize(self._replays(flushed, repeat), self.name, l2)
            return difference(both, summarize(self._replays(flush, repeat), self.name, l2))

    def _warm_up(self, fn: Callable[[], object], calls: int) -> None:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            # The first call may synchronize: it compiles, autotunes and loads modules.
            for _ in range(max(1, calls)):
                fn()
            run_without_sync(fn)
        torch.cuda.synchronize()

    def sampler(self, fn: Callable[[], object]) -> Callable[[int], list[float]]:
        """Capture a callable once; the returned function draws samples of it, with warm L2."""
        with torch.cuda.device(self.device):
            self._warm_up(fn, 2)
            graph, copies = self._captured(fn)

        def draw(samples: int) -> list[float]:
            with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
                return [sample / copies for sample in between_events(graph.replay, samples)]

        return draw

    def repeated(self, fn: Callable[[], object]) -> tuple[Callable[[], object], int]:
        """A function that replays a graph of many calls, 1 ms or longer, and the number of calls in it."""
        with torch.cuda.device(self.device):
            self._warm_up(fn, 2)
            graph, copies = self._captured(fn)

        def replay() -> None:
            with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
                graph.replay()

        return replay, copies

    def _replays(self, fn: Callable[[], object], repeat: Repeat) -> list[float]:
        """Microseconds per call, one sample per replay."""
        graph, copies = self._captured(fn)
        with torch.cuda.stream(self.stream):
            samples = collect(lambda n: between_events(graph.replay, n), repeat, batch=_BATCH)
        return [sample / copies for sample in samples]

    def _captured(self, fn: Callable[[], object]) -> tuple[torch.cuda.CUDAGraph, int]:
        """A graph that is long enough to be timed, and the number of calls in it."""
        copies = 1
        with torch.cuda.stream(self.stream):
            while True:
                graph = capture(fn, copies, self.stream)
                replay_us = between_events(graph.replay, 2)[-1]  # the first uploads the graph
                if replay_us >= _REPLAY_US or copies == _MAX_COPIES:
                    break
                # A short graph is mostly launch overhead, so the first estimate is too small and is refined.
                copies = min(_MAX_COPIES, max(copies + 1, math.ceil(1.1 * copies * _REPLAY_US / replay_us)))
        return graph, copies


def difference(both: Timing, alone: Timing) -> Timing:
    """`both` minus `alone`, with the spread of both; UnsupportedError if the spread exceeds a tenth of the result."""
    median = both.median_us - alone.median_us
    q1, q3 = both.q1_us - alone.q3_us, both.q3_us - alone.q1_us
    if median <= 0 or q3 - q1 > 0.1 * median:
        raise UnsupportedError(
            f"graph clock, cold L2: expected a call that is long against the spread of the L2 fills, got "
            f"{median:.2f} us with a spread of {q3 - q1:.2f} us and fills of {alone.median_us:.2f} us; "
            "use the 'cupti' or 'events' clock"
        )
    return Timing(both.clock, both.l2, median, q1, q3, both.n, both.kernels)
