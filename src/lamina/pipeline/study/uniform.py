"""The first stage: the whole network at each precision, layout and mode, and by methods of other packages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf

import torch
from torch import nn

from lamina.errors import UnsupportedError, UsageError
from lamina.pipeline.study.config import StudyConfig
from lamina.pipeline.study.context import Context
from lamina.pipeline.study.layer_times import part_of
from lamina.pipeline.study.rivals import RIVALS, capturable
from lamina.pipeline.study.subject import Subject
from lamina.pipeline.study.whole_times import BEFORE, timed_at
from lamina.record.study import Measured, Settings
from lamina.report.units import size
from lamina.spec.plan import CAPTURED, COMPILED, MODES
from lamina.spec.whole_method import COMPRESSED, DENSE, FOLD, combined, compresses

FOLDED = replace(BEFORE, method=FOLD)

LEAST = 0.03
"""Of the step: what linear layers must take, so that a method for them is worth a trial."""


def uniform(context: Context) -> list[Measured]:
    """Steps of the network at uniform settings, the user's own first.

    Precisions and layouts are compared where launch overhead hides least: in CUDA graphs on a GPU, in eager mode on a
    CPU. Both layouts are compared in the first precision, the others in the faster one. Modes, and then methods of
    other packages, are compared at the fastest of them. To infer, all of this is with folded BatchNorm where there is
    any, unless that is slower; the fastest is compared without. To train, activations are compressed at the fastest, or
    at every precision and layout where nothing else fits into memory.

    cuDNN's strict float32 convolutions of large networks are slow to autotune in channels-last, and slower than NCHW:
    on a GPU they are not tried. Where TF32 is slower than a precision of 16 bits, strict float32 is not tried at all.
    """
    subject, config = context.subject, context.config
    found: dict[Settings, Measured] = {}

    def measured(settings: Sequence[Settings]) -> None:
        new = [one for one in settings if one not in found]
        rows = timed_at(context, new)
        found.update({row.settings: within(row, config.max_memory) for row in rows})

    precisions, modes = available(config, subject.device)
    method = _begin(subject, measured, found)
    quick = "graph" if "graph" in modes else "eager"
    layouts = ("nchw", "nhwc") if _has_images(subject) else ("nchw",)
    grid: list[Settings] = []
    for precision in precisions:  # not all at once: each copy of the network takes memory
        strict = precision == "fp32" and subject.device.type == "cuda"
        if strict and _slower(found, "tf32", quick, method):  # and strict float32 is slower still
            continue
        row = [Settings(precision, layout, quick, method) for layout in (("nchw",) if strict else layouts)]
        measured(row)
        grid += row
        quickest = _best({one: found[one] for one in row})
        layouts = (quickest.layout,) if quickest else layouts
    best = _best(found, method)
    measured([replace(one, mode=mode) for one in ([best] if best else grid) for mode in modes])
    if best and method == FOLD:
        measured([replace(_best(found, method) or best, method=DENSE)])
    if config.training and "eager" in modes:
        best = _best(found)
        measured([replace(one, mode="eager", method=COMPRESSED) for one in ([best] if best else grid)])
    if config.rivals:
        fast = fastest(found.values())
        best = fast.settings
        rivals = [one for one in RIVALS.values() if one.goal == config.goal and one.name != FOLD]
        little = _too_little(subject, fast)
        for rival in rivals:
            refusal = rival.refusal(subject.device) or little
            both = replace(best, method=combined(best.method, rival.name))
            wanted = [replace(both, mode=mode) for mode in _modes_of(both, modes)]
            if refusal:
                found[wanted[0]] = Measured("uniform", wanted[0], None, outcome="refused", reason=refusal)
            else:
                measured(wanted)
    return list(found.values())


def _begin(subject: Subject, measured: Callable[[Sequence[Settings]], None], found: dict[Settings, Measured]) -> str:
    """Measure the network as it is and, to infer, with folded BatchNorm; the method that the other settings have."""
    if subject.training:
        measured([BEFORE])
        return DENSE
    try:
        subject.folded  # noqa: B018  (made here, so that a network without BatchNorm is refused before anything runs)
    except UnsupportedError as error:
        measured([BEFORE])
        found[FOLDED] = Measured("uniform", FOLDED, None, outcome="refused", reason=str(error))
        return DENSE
    measured([BEFORE, FOLDED])
    before, folded = found[BEFORE].timing, found[FOLDED].timing
    slower = before is not None and folded is not None and folded.q1_us > before.q3_us
    return DENSE if folded is None or slower else FOLD


def _slower(found: Mapping[Settings, Measured], precision: str, mode: str, method: str) -> bool:
    """Whether a precision was timed in a mode, and another one was faster."""
    best: dict[str, float] = {}
    for settings, row in found.items():
        if row.timing is not None and (settings.mode, settings.method) == (mode, method):
            best[settings.precision] = min(best.get(settings.precision, inf), row.timing.median_us)
    return precision in best and best[precision] > min(best.values())


def _best(found: Mapping[Settings, Measured], method: str | None = None) -> Settings | None:
    """The fastest settings, of a method if one is given; None if none of them runs within the memory."""
    rows = [row for settings, row in found.items() if method in (None, settings.method)]
    try:
        return fastest(rows).settings
    except UnsupportedError:
        return None


def within(one: Measured, limit: int | None) -> Measured:
    """A network that runs, refused if a step needs more memory than the limit in bytes."""
    if limit is None or one.timing is None or one.peak_bytes is None or one.peak_bytes <= limit:
        return one
    return replace(one, outcome="refused", reason=f"needs {size(one.peak_bytes)} of {size(limit)}")


def available(config: StudyConfig, device: torch.device) -> tuple[Sequence[str], Sequence[str]]:
    """The precisions and modes of a device among those that the user allows, the probably fastest precision first.

    Raises:
        UsageError: the device has none of them.
    """
    if device.type == "cuda":
        precisions = [*([] if config.training else ["fp16"]), "bf16", "tf32", "fp32"]
        modes = [*MODES]
    else:
        precisions, modes = ["fp32", "bf16"], ["eager", "compiled"]
    found = []
    for what, here, asked in (("precision", precisions, config.precisions), ("mode", modes, config.modes)):
        allowed = [one for one in here if one in (asked or here)]
        if not allowed:
            got, known = ", ".join(asked), ", ".join(here)
            raise UsageError(f"{what}: expected one that can {config.goal} on {device.type} ({known}), got {got}")
        found.append(allowed)
    return found[0], found[1]


def fastest(found: Iterable[Measured]) -> Measured:
    """The one with the shortest step.

    Raises:
        UnsupportedError: the network runs at none of the settings, or needs too much memory.
    """
    found = list(found)
    timed = [one for one in found if one.timing is not None and one.outcome != "refused"]
    if not timed:
        raise UnsupportedError("; ".join(f"{one.settings}: {one.reason}" for one in found))
    return min(timed, key=lambda one: one.time_us)


def _too_little(subject: Subject, fast: Measured) -> str | None:
    """Why methods of linear layers alone, as those of other packages are, cannot gain, or nothing.

    Each may take a minute to compile. Only networks of convolutions have so little in linear layers.
    """
    if not _has_images(subject):
        return None
    part = part_of(subject, fast, nn.Linear)
    if part >= LEAST:
        return None
    return f"it changes linear layers alone, which take {part:.1%} of the step; below {LEAST:.0%} there is no gain"


def _modes_of(rival: Settings, modes: Sequence[str]) -> list[str]:
    """The fastest mode; with compiled, for which methods of other packages are made, where that does not compile.

    What cannot be captured runs in the compiler's own CUDA graphs instead.

    Args:
        rival: a method of another package in the fastest mode.
        modes: that the user allows.
    """
    if rival.mode in CAPTURED and not capturable(rival.method):
        return [next((one for one in ("reduce-overhead", "compiled") if one in modes), rival.mode)]
    other = rival.mode not in COMPILED and "compiled" in modes and not compresses(rival.method)
    return [rival.mode, "compiled"] if other else [rival.mode]


def _has_images(subject: Subject) -> bool:
    return any(isinstance(module, nn.Conv2d) for module in subject.dense.modules())
