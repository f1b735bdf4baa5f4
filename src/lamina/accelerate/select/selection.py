"""The selection: the fastest candidate as measured, or dense where none is faster by more than the spread.

This room has no clock: what times callables is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from torch import nn

from lamina.accelerate.select.cache import Cache
from lamina.accelerate.select.observed import LayerCall
from lamina.accelerate.select.step import layer_step
from lamina.errors import MissingError, UnsupportedError, UsageError
from lamina.record import Mode, Selection, Timing, Turns
from lamina.spec.plan import COMPILED

DENSE = "dense"
"""The user's own layer, which is always among the candidates."""

MIN_SPEEDUP = 1.02
"""Dense over candidate that a candidate must reach, however small the spread."""

SHORT_US = 5000.0
"""Microseconds of a step below which launch overhead may decide its time."""

NEAR = 1.05
"""How much slower than the fastest a `Lighter` candidate may be."""

UNTRACED = nn.RNNBase
"""Layers at which ``torch.compile`` breaks the graph: in a compiled model they run in eager mode."""

Timer = Callable[[Mapping[str, Callable[[], object]]], Mapping[str, Timing | Exception]]
"""Times callables against one another, interleaved; what cannot be timed has its exception in place of a time."""

Candidates = Mapping[str, Callable[[], nn.Module]]
"""By implementation, what makes the module that computes the layer so; it may refuse by UnsupportedError."""


@dataclass(frozen=True)
class Lighter:
    """Makes a candidate that moves fewer bytes than others, and wins where it is about as fast.

    Its own time does not show what it saves its neighbours, such as the pass of a ReLU that it computes.
    """

    make: Callable[[], nn.Module]

    def __call__(self) -> nn.Module:
        return self.make()


def one_by_one(timer: Callable[[Callable[[], object]], float]) -> Timer:
    """A `Timer` of one that takes a single callable and returns microseconds, as those of version 0.1 did."""

    def times(steps: Mapping[str, Callable[[], object]]) -> dict[str, Timing | Exception]:
        found = {name: timer(step) for name, step in steps.items()}
        return {name: Timing("wall", "warm", us, us, us, 1) for name, us in found.items()}

    return times


MAX_TILES = 6


def decide(
    times: Mapping[str, Timing],
    mode: Mode,
    refusals: Mapping[str, str] | None = None,
    min_speedup: float = MIN_SPEEDUP,
    turns: Turns[str] | None = None,
    lighter: Collection[str] = (),
) -> Selection:
    """The fastest candidate; dense unless their interquartile ranges are apart, or it was faster turn by turn.

    A ``lighter`` candidate that is within `NEAR` of the fastest takes its place; see `Lighter`.

    Raises:
        UsageError: nothing was timed, or a time is not positive.
    """
    if not times or not all(0 < time.median_us < float("inf") for time in times.values()):
        raise UsageError(f"times: expected at least one, all positive, got {dict(times)}")
    dense = times.get(DENSE)

    def rejection(name: str) -> str:
        """Why a candidate does not take the place of dense; nothing if it does."""
        if dense is None or name == DENSE:
            return ""
        ours = times[name]
        if not (ours.q3_us < dense.q1_us or (turns is not None and turns.is_faster(name, DENSE))):
            return f"{name} {_us(ours.median_us)} is within the spread"
        if dense.median_us < min_speedup * ours.median_us:
            return f"{name} {_us(ours.median_us)} is less than {min_speedup - 1:.0%} faster"
        return ""

    def median(name: str) -> float:
        return times[name].median_us

    fastest = best = min(times, key=median)
    if fastest != DENSE:
        near = (name for name in lighter if name in times and median(name) <= NEAR * median(fastest))
        best = min((name for name in near if not rejection(name)), key=median, default=fastest)
    over = fastest if best != fastest else ""
    if rejected := rejection(best):
        best = DENSE
    others = sorted((time.median_us, name) for name, time in times.items() if name not in (best, over))
    rest = ", ".join(f"{name} {_us(time)}" for time, name in others)
    reason = f"{best}: {_us(times[best].median_us)}" + (f"; {rejected}" if rejected else f" < {rest}" if rest else "")
    if over:
        reason += f"; {over} {_us(times[over].median_us)} is not faster by {NEAR - 1:.0%} and moves more bytes"
    if not others and refusals:
        reason += f"; {'; '.join(f'{name}: {why}' for name, why in refusals.items())}"
    medians = {name: time.median_us for name, time in times.items()}
    quartiles = {name: (time.q1_us, time.q3_us) for name, time in times.items()}
    return Selection(best, reason, medians, mode, refusals=dict(refusals or {}), quartiles_us=quartiles)


def _us(time: float) -> str:
    """Microseconds with three significant digits, and no exponent."""
    return f"{time:.3g} us" if time < 999.5 else f"{time:.0f} us"


class Selector:
    """Selects an implementation for each layer by timing its step in one mode, once per question.

    Args:
        timer: times callables in that mode.
        cache: holds earlier answers.
        mode: that the model will run in.
        training: whether steps have a backward pass.
        min_speedup: as `decide` takes it.
        max_tiles: tiles of a kernel that a method may offer as candidates, each of which is compiled.
        short_speedup: in place of ``min_speedup`` for steps shorter than `SHORT_US`.

    Attributes:
        of_untraced: selects for layers that ``torch.compile`` does not trace; without it, this selector does.
    """

    of_untraced: Selector | None = None

    def __init__(
        self,
        timer: Timer,
        cache: Cache,
        mode: Mode,
        training: bool,
        min_speedup: float = MIN_SPEEDUP,
        max_tiles: int = MAX_TILES,
        short_speedup: float | None = None,
    ) -> None:
        self.short_speedup = min_speedup if short_speedup is None else short_speedup
        self.timer, self.cache, self.mode = timer, cache, mode
        self.training, self.min_speedup, self.max_tiles = training, min_speedup, max_tiles

    def select(self, question: str, candidates: Candidates, call: LayerCall, whole: bool = False) -> Selection:
        """The fastest of the candidates, from the cache or by measuring.

        Args:
            question: what the answer depends on besides the candidates, this selector's mode and provenance.
            candidates: ``dense`` among them.
            call: the inputs to time on.
            whole: whether the candidates are whole models; see `layer_step`.

        Raises:
            UsageError: no candidate ran.
        """
        if self.of_untraced is not None and DENSE in candidates and isinstance(candidates[DENSE](), UNTRACED):
            return self.of_untraced.select(question, candidates, call, whole)
        key = self.key(question, candidates)
        if (known := self.cache.get(key)) is not None:
            return known
        steps: dict[str, Callable[[], object]] = {}
        refusals: dict[str, str] = {}
        # Out of memory is a RuntimeError; a compiler and its code may raise anything.
        failures = Exception if self.mode in COMPILED else (UnsupportedError, MissingError, RuntimeError)
        for name, make in candidates.items():
            try:
                step = layer_step(make(), call, self.mode, self.training, whole)
                step()  # once without a clock: it compiles kernels, and fails here if it must
                steps[name] = step
            except failures as error:
                refusals[name] = _first_line(error)
        timed = self.timer(steps) if steps else {}
        refusals |= {name: _first_line(time) for name, time in timed.items() if isinstance(time, Exception)}
        times: Mapping[str, Timing] = {name: time for name, time in timed.items() if isinstance(time, Timing)}
        if not times:
            raise UsageError(f"{question}: expected one candidate that runs, got {refusals}")
        if DENSE not in times and DENSE in refusals:
            raise UsageError(f"{question}: the dense layer does not run: {refusals[DENSE]}")
        turns = timed if isinstance(timed, Turns) else None
        lighter = [name for name, make in candidates.items() if isinstance(make, Lighter)]
        short = min(time.median_us for time in times.values()) < SHORT_US
        least = self.short_speedup if short else self.min_speedup
        selection = decide(times, self.mode, refusals, least, turns, lighter)
        self.cache.put(key, selection)
        return selection

    def key(self, question: str, candidates: Candidates) -> str:
        """The name of an answer in the cache."""
        kind = "training" if self.training else "inference"
        return f"{question} | {', '.join(candidates)} | {self.mode} {kind}"


class Compiler(Selector):
    """Runs a step of each candidate that is not timed yet and keeps the dense layer, before a selector times them.

    Within `compile_ahead` that compiles the kernels of all of them. What fails will fail again, with a message.
    """

    def __init__(self, later: Selector) -> None:
        super().__init__(later.timer, later.cache, later.mode, later.training, later.min_speedup, later.max_tiles)

    def select(self, question: str, candidates: Candidates, call: LayerCall, whole: bool = False) -> Selection:
        """A selection of the dense layer without a time."""
        if self.cache.get(self.key(question, candidates)) is None:
            for make in candidates.values():
                with suppress(Exception):
                    layer_step(make(), call, self.mode, self.training)()
        return Selection(DENSE, "nothing was timed", {DENSE: 0.0}, self.mode)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]
