"""``convert``: replace a model's layers by methods, with each layer timed in place or predicted on request."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from lamina import accelerate, build, measure
from lamina.accelerate.common.operands import HAS_TRITON
from lamina.accelerate.convert import Progress, Where, require_convertible
from lamina.accelerate.methods.circulant.activation_fusion import FusedActivation, fuse_activations
from lamina.accelerate.registry import as_method
from lamina.accelerate.select import MIN_SPEEDUP, SHORT_US, Cache, Selector, Timer, forget_compiled
from lamina.accelerate.select.cost import CostModel
from lamina.accelerate.select.whole import twin
from lamina.accelerate.training.sparsity_monitor import wire
from lamina.errors import UsageError, nearest
from lamina.measure.roofs import measure_roofs
from lamina.pipeline.algorithms import convert_algorithm
from lamina.pipeline.behind_activations import read_activations
from lamina.pipeline.whole_model import faster_whole, restored
from lamina.record import MODES, Conversion, ConvertedLayer, Mode, Timing
from lamina.record.roofs import Roofs
from lamina.spec import Method
from lamina.spec.plan import CAPTURED, COMPILED, REPLAYED

Select = Literal["measure", "model"]
"""How to select an implementation for each layer: by measuring, or by the method's cost model."""

ROUNDS = 9
"""Rounds in which candidates take turns."""

ROUND_US = 50_000.0
"""How long each model has a turn, at least: another process takes the processor for so long."""

UNSTEADY_SPEEDUP = 1.1
"""Dense over converted that a short step needs where the two are not interleaved, as in ``reduce-overhead``: its launch
overhead changes by as much between two compilations of one network."""

LAUNCHED_SPEEDUP = 1.05
"""Dense over converted that a layer or a step needs where Python launches its kernels, in ``eager`` and ``compiled``
mode: launch overhead changes by as much with what else the host runs, and the two may differ in how much of a step it
is."""


def convert(
    model: nn.Module,
    config: object,
    where: Where | None = None,
    *,
    example: Any = None,
    select: Select | None = None,
    mode: Mode = "eager",
    training: bool | None = None,
    cache: Path | str | None = None,
    progress: Progress | None = None,
    limit_s: float = inf,
) -> tuple[nn.Module, Conversion]:
    """Replace the layers of a model by one method or several; with ``select``, only those that get faster.

    With ``select="measure"``, every layer that the method can replace is timed as it stands and in each of the method's
    implementations, on the inputs that reach it when ``example`` goes through the model: its forward pass, and in
    training the gradients of its weights and inputs. A layer keeps its dense module unless an implementation is faster
    by more than the spread of the times, and by 5 % where Python launches its kernels. The model keeps them all unless
    its whole step is faster, by as much, with every layer that was selected or with those that save the most. Move the
    model to its device, type and memory layout first, and call this under ``torch.autocast`` if the model will run so.
    Circulant layers compute a `torch.nn.ReLU` beside them in their kernels, and an identity replaces it, where
    `torch.fx` can trace the model: one that alone reads their output, or whose output they alone read.
    Sparsity-adaptive layers that train are fed by a monitor, which observes the maps that they read; see
    `lamina.accelerate.training.sparsity_monitor.monitor_of`.

    Args:
        model: changed in place, unless it is itself a layer that is replaced.
        config: a method: its configuration, such as ``Circulant(block_size=64)``, or its written form. That of a
            convolution algorithm is ``"dense:space_to_depth"``. Of several in a list, a layer takes the first that
            can replace it, and with ``select`` the first that makes it faster.
        where: ``where(name, layer)`` says which layers to convert, and which ReLUs they may compute; all, if left out.
        example: an input of the model, a tuple of inputs, or a dict of keyword arguments. Layers that it does not
            reach are skipped: the model may compute with their weights itself.
        select: ``"measure"``; ``"model"``, which predicts times by the method's cost model and the machine's measured
            peaks, and times no layer; or ``None`` to replace every layer that the method can replace.
        mode: how the model will run: ``"eager"``, ``"compiled"`` by ``torch.compile``, ``"reduce-overhead"`` by its
            mode of that name, ``"graph"`` in CUDA graphs of whole steps, or ``"compiled-graph"`` in those of the
            compiled model.
        training: whether to time backward passes too; by default, if the model is in training mode.
        cache: a folder that keeps selections for the next time, in ``selections.json``, and the machine's peaks, which
            take a few seconds to measure.
        progress: is called with a layer's name and its selection after each one.
        limit_s: seconds of timing for each layer and for the whole step, compilation and warm-up aside; at least three
            rounds are timed. Small differences are then less often told from the spread, and a layer stays dense.

    Returns:
        The model, and a record of every layer: replaced or skipped, why, and all times.

    Raises:
        UsageError: an unknown option, no method's configuration, no example, a mode that the device does not have, or a
            model that is no module or that `torch.compile` has compiled.
            After any error, and after Ctrl-C, the model is as it was.

    Example:
        >>> import lamina, torch
        >>> model, record = lamina.convert(torch.nn.Linear(64, 64), lamina.Circulant(16))
        >>> [layer.method for layer in record.replaced]
        ['circulant[block_size=16]']
    """
    methods = _methods(config)
    require_convertible(model)
    _require_known(mode)
    _require_usable(where, training, cache, progress, limit_s)
    if select == "model" and any(isinstance(one, Method) for one in methods):
        raise UsageError("select='model': there is no cost model for convolution algorithms; use select='measure'")
    training = model.training if training is None else training
    device = _device(model, example)
    chosen: Selector | CostModel | None = None
    if select == "model":
        chosen = cost_model(device, mode, training, cache)
    elif select == "measure":
        chosen = _of_layers(device, mode, training, cache, limit_s)
    elif select is not None:
        raise UsageError(f"select {select!r} is unknown: {nearest(str(select), get_args(Select))}")
    before = dict(model.named_modules(remove_duplicate=False))
    dense = twin(model)
    try:
        records = []
        for one in methods:
            by: Any = convert_algorithm if isinstance(one, Method) else accelerate.convert
            model, record = by(model, one, where, example=example, selector=chosen, progress=progress)
            records.append(record)
        record = _together(records)
        if isinstance(chosen, Selector):
            model, record = read_activations(model, record, example, chosen, where)
        fuse_activations(model, where)
        if isinstance(chosen, Selector) and record.replaced:
            of_whole = selector(device, mode, training, cache, limit_s=limit_s, twice=True)
            model, record = faster_whole(model, dense, before, record, example, of_whole, where)
        record = _with_fused(record, model)
        sparse = [layer.layer for layer in record.replaced if Method.parse(layer.method).name == "sparse"]
        if chosen is not None and training and sparse:
            wire(model, example, sparse)
    except BaseException:  # also Ctrl-C, in minutes of timing
        restored(before, dense)
        raise
    return model, record


def _methods(config: object) -> list[object]:
    """The configurations of methods, and the `Method` of each convolution algorithm.

    Raises:
        UsageError: one is unknown, or there is none.
    """
    found: list[object] = []
    for one in config if isinstance(config, list | tuple) else [config]:
        method = as_method(one)
        if isinstance(one, str | Method):
            build.require_algorithm(method)
            found.append(method if method.algorithm else accelerate.configuration(method))
        else:
            found.append(one)
    if not found:
        raise UsageError("config: expected a method's configuration such as Circulant(block_size=64), got none")
    return found


def _together(records: Sequence[Conversion]) -> Conversion:
    """The record of several conversions, one after the other: each layer once, with its method or all reasons."""
    first, *others = records
    if not others:
        return first
    found: dict[str, ConvertedLayer] = {}
    for record in records:
        for layer in record.layers:
            known = found.get(layer.layer)
            if known is None or layer.refusal is None:
                found[layer.layer] = layer
            elif known.refusal is not None:
                reason = f"{known.refusal}; {layer.method}: {layer.refusal}"
                found[layer.layer] = replace(known, refusal=reason, selection=known.selection or layer.selection)
    return Conversion(", ".join(record.method for record in records), tuple(found.values()))


def _with_fused(record: Conversion, model: nn.Module) -> Conversion:
    """The record of a conversion, in which activations name the layers that compute them."""
    fused = {name: one.layer for name, one in model.named_modules() if isinstance(one, FusedActivation)}
    layers = (
        replace(layer, refusal=f"{fused[layer.layer]} computes it") if layer.layer in fused else layer
        for layer in record.layers
    )
    return replace(record, layers=tuple(layers))


def _of_layers(
    device: torch.device, mode: Mode, training: bool, cache: Path | str | None, limit_s: float
) -> Selector:  # fmt: skip
    """What times the layers of a model that runs in a mode.

    Compiling every candidate takes minutes, and compiled code launches almost as fast as a graph; only the whole model
    is compiled. Layers that the compiler does not trace run in eager mode in it.
    """
    _check(mode, device)
    graphs = mode != "eager" and device.type == "cuda"
    found = selector(device, "graph" if graphs else mode, training, cache, limit_s=limit_s)
    if graphs and mode not in CAPTURED:
        found.of_untraced = selector(device, "eager", training, cache, limit_s=limit_s)
    return found


def selector(
    device: torch.device,
    mode: Mode,
    training: bool,
    cache: Path | str | None = None,
    rounds: int = ROUNDS,
    limit_s: float = inf,
    twice: bool = False,
) -> Selector:
    """What times candidates on a device in a mode; ``rounds`` and what follows as `timer` takes them.

    Raises:
        UsageError: the mode is unknown, or the device does not have it.
    """
    folder = None if cache is None else Path(cache)
    time = timer(device, mode, rounds, limit_s, twice=twice)
    least = LAUNCHED_SPEEDUP if device.type == "cuda" and mode not in REPLAYED else MIN_SPEEDUP
    unsteady = UNSTEADY_SPEEDUP if twice and mode == "reduce-overhead" else None
    return Selector(time, Cache(folder, provenance(device)), mode, training, least, short_speedup=unsteady)


def cost_model(device: torch.device, mode: Mode, training: bool, cache: Path | str | None = None) -> CostModel:
    """What predicts the times of candidates on a device in a mode.

    Raises:
        UsageError: the mode is unknown, or the device does not have it.
    """
    _check(mode, device)
    return CostModel(_peaks(device, cache), mode, training)


def _peaks(device: torch.device, cache: Path | str | None) -> Roofs:
    return _peaks_once(device) if cache is None else measure.roofs(device, Path(cache))


_peaks_once = functools.cache(measure_roofs)


def timer(
    device: torch.device, mode: Mode, rounds: int = ROUNDS, limit_s: float = inf, *, ready: bool = False,
    twice: bool = False,
) -> Timer:  # fmt: skip
    """Interleaved timing by the clock that fits a mode: wall time where Python launches, replays for CUDA graphs.

    After ``limit_s`` seconds there are fewer rounds, but at least three, and fewer samples in each. With ``ready``, it
    does not wait for what replays launch plans: no layer of lamina's is timed, or it is there. In the mode
    ``reduce-overhead``, each callable has all its rounds alone, and the compiler forgets all other networks before.
    With ``twice``, short ones have them in both orders, since the rest of the machine changes their launch overhead.
    Each turn by the wall clock then lasts `ROUND_US`.

    Raises:
        UsageError: the mode is unknown, or the device does not have it.
    """
    _check(mode, device)
    captured = mode in CAPTURED
    if device.type != "cuda":
        clock: Any = measure.CpuClock()
        samples = 1
    else:
        if not captured and not ready:  # else the first layers would be timed without it
            prepare_replay(device)
        clock = measure.clock("graph" if captured else "wall", device)
        samples = 3 if captured else 5  # of whole calls by the wall clock, which other processes disturb
    least_us = ROUND_US if twice and device.type == "cuda" and not captured else 0.0

    def times(steps: Mapping[str, Callable[[], object]], limit_s: float = limit_s) -> dict[str, Timing | Exception]:
        found: dict[str, Timing | Exception] = {}
        for name, step in steps.items() if mode in COMPILED else ():
            try:
                with measure.beside():
                    step()  # compiles, and others that share the device need not wait for it
            except Exception as error:  # a compiler's, or the network's own
                found[name] = error
        ready = {name: step for name, step in steps.items() if name not in found}
        turns = measure.interleaved(
            clock, ready, rounds=rounds, samples=samples, limit_s=limit_s, least_us=least_us
        )
        turns.update(found)
        return turns

    def one_by_one(steps: Mapping[str, Callable[[], object]]) -> dict[str, Timing | Exception]:
        found: dict[str, Timing | Exception] = {}
        for name, step in steps.items():
            forget_compiled()
            found |= times({name: step}, limit_s / len(steps))
        return found

    def there_and_back(steps: Mapping[str, Callable[[], object]]) -> dict[str, Timing | Exception]:
        found = one_by_one(steps)
        short = any(isinstance(time, Timing) and time.median_us < SHORT_US for time in found.values())
        if not (twice and short and len(steps) > 1):
            return found
        again = one_by_one(dict(reversed([*steps.items()])))
        return {name: _both(time, again[name]) for name, time in found.items()}

    return there_and_back if mode == "reduce-overhead" and device.type == "cuda" else times


def _both(first: Timing | Exception, second: Timing | Exception) -> Timing | Exception:
    """Two timings of a callable as one, whose spread includes what changed between them."""
    if not isinstance(first, Timing) or not isinstance(second, Timing):
        return second if isinstance(first, Timing) else first
    return replace(
        first, median_us=(first.median_us + second.median_us) / 2, q1_us=min(first.q1_us, second.q1_us),
        q3_us=max(first.q3_us, second.q3_us), n=first.n + second.n,
    )  # fmt: skip


def prepare_replay(device: torch.device, *, wait: bool = True) -> None:
    """Build or load what replays launch plans on a GPU, once a process: in the background, if not to ``wait``."""
    if HAS_TRITON and device.type == "cuda":
        from lamina.accelerate.runtime.replay import wait_for_extension
        from lamina.accelerate.runtime.replay.extension import extension

        wait_for_extension() if wait else extension()


def _require_usable(where: object, training: object, cache: object, progress: object, limit_s: object) -> None:
    for name, function in (("where", where), ("progress", progress)):
        if function is not None and not callable(function):
            raise UsageError(f"{name}: expected a function, got {function!r}")
    if not isinstance(training, bool | None):
        raise UsageError(f"training: expected True, False or None, got {training!r}")
    if not isinstance(limit_s, int | float) or not limit_s >= 0:  # nor NaN
        raise UsageError(f"limit_s: expected a number of seconds of at least 0, got {limit_s!r}")
    if not isinstance(cache, str | os.PathLike | None) or (cache is not None and Path(cache).is_file()):
        raise UsageError(f"cache: expected a folder, got {cache!r}")


def _require_known(mode: Mode) -> None:
    if mode not in MODES:
        raise UsageError(f"mode {mode!r} is unknown: {nearest(str(mode), MODES)}")


def _check(mode: Mode, device: torch.device) -> None:
    _require_known(mode)
    if mode in CAPTURED and device.type != "cuda":
        raise UsageError(f"mode {mode!r}: CUDA graphs need a GPU, the model is on {device.type}; use mode='eager'")


def provenance(device: torch.device) -> dict[str, str]:
    """What times depend on besides the question: device, driver and versions."""
    here = measure.environment(device)
    names = ("device", "driver", "torch", "triton", "cuda", "cudnn", "lamina")
    return {name: str(getattr(here, name, None)) for name in names}


def _device(model: nn.Module, example: Any) -> torch.device:
    tensors = [*model.parameters(), *(leaf for leaf in tree_leaves(example) if isinstance(leaf, Tensor))]
    return tensors[0].device if tensors else torch.device("cpu")
