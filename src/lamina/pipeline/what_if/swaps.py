"""Parts of a network, and the whole of it, computed in two ways: compared with float64, then timed side by side."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from lamina import measure, run
from lamina.errors import CheckError
from lamina.pipeline.prepared import Prepared
from lamina.record import Timing
from lamina.run.loss import SeedGradient

K = TypeVar("K", bound=Hashable)

CLOCKS = {"cuda": ("cupti", "events"), "cpu": ("cpu", "cpu")}
"""For parts and for whole networks, by device."""


@dataclass(frozen=True)
class Part:
    """One layer, or several neighbours, as a module of its own, with the input it meets in the network."""

    layers: tuple[str, ...]
    module: nn.Module
    x: Tensor
    dense: nn.Module | None = None
    """What it computes in plain operators, for float64, where its own kernels have no such type."""
    kept: bool = True
    """Whether what replaces it computes the same function; if not, a replacement is compared with itself in float64."""

    @property
    def name(self) -> str:
        """That of its first layer."""
        return self.layers[0]


@dataclass(frozen=True)
class Swapped:
    """What replacing a computation did: both times, or the reason why the second is missing."""

    before: Timing
    after: Timing | None = None
    rel_error: float | None = None
    reason: str = ""


def parts_of(network: Prepared, groups: Sequence[tuple[str, ...]]) -> list[Part]:
    """The parts made of the named neighbours, with the inputs one training pass of the network gives them."""
    modules = dict(network.module.named_modules())
    seen: dict[str, Tensor] = {}

    def watch(name: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def before(module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
            x = next((leaf for leaf in tree_leaves((inputs, options)) if isinstance(leaf, Tensor)), None)
            if x is not None:
                seen[name] = x.detach().clone().requires_grad_(x.requires_grad)

        return before

    hooks = [modules[names[0]].register_forward_pre_hook(watch(names[0]), with_kwargs=True) for names in groups]
    try:
        network.module(*network.inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return [
        Part(names, modules[names[0]] if len(names) == 1 else nn.Sequential(*(modules[n] for n in names)), seen[x])
        for names in groups
        if (x := names[0]) in seen
    ]


def part_calls(part: Part, module: nn.Module, backward: bool) -> dict[str, Callable[[], object]]:
    """A part's forward pass and, where it is trained, its step, computed by ``module``."""
    calls: dict[str, Callable[[], object]] = {"forward": lambda: module(part.x)}
    if backward:
        calls["step"] = run.whole_step(module, [part.x], random_seed, True, [part.x.requires_grad])
    return calls


def time_parts(
    parts: Mapping[K, Part], backward: bool, repeat: measure.Repeat
) -> dict[K, dict[str, Timing] | Exception]:
    """The times of parts as they are, by phase; all of them in one session of a profiler. Or why one did not run."""
    device = next(iter(parts.values())).x.device
    calls = {
        (key, phase): call
        for key, part in parts.items()
        for phase, call in part_calls(part, part.module, backward).items()
    }
    times = measure.time_each(measure.clock(CLOCKS[device.type][0], device), calls, repeat=repeat)
    found: dict[K, dict[str, Timing] | Exception] = {}
    for key in parts:
        phases = {phase: time for (of, phase), time in times.items() if of == key}
        failed = next((time for time in phases.values() if isinstance(time, Exception)), None)
        found[key] = failed or {phase: time for phase, time in phases.items() if isinstance(time, Timing)}
    return found


def swap_part(
    part: Part,
    module: nn.Module,
    before: Mapping[str, Timing],
    precision: str,
    backward: bool,
    check: bool,
    repeat: measure.Repeat,
) -> dict[str, Swapped]:
    """A part's phases computed by ``module``, compared and timed here, beside their times ``before``.

    Raises:
        CheckError: the results are wrong.
        RuntimeError, UnsupportedError: it did not run.
    """
    device = part.x.device
    error = _error(part, module, precision, backward) if check else None
    clock = measure.clock(CLOCKS[device.type][0], device)
    times = measure.time_each(clock, part_calls(part, module, backward), repeat=repeat)
    return {phase: _side_by_side(time, times[phase], error) for phase, time in before.items()}


def _error(part: Part, module: nn.Module, precision: str, backward: bool) -> float:
    """The relative error of a part's replacement.

    Raises:
        CheckError: it is larger than the precision, and plain torch where it computes the same, can explain.
    """
    definition = part.dense or (part.module if part.kept else module)
    ours = results(module, [part.x], random_seed, backward)
    exact = exactly(definition, [part.x], random_seed, backward)
    plain = results(part.module, [part.x], random_seed, backward) if part.kept else exact
    return accuracy(ours, plain, exact, precision)


def timed(clock: measure.Clock, calls: Mapping[K, Callable[[], object]], repeat: measure.Repeat) -> dict[K, Timing]:
    """The times of calls that are expected to run.

    Raises:
        RuntimeError, UnsupportedError: one did not.
    """
    times = {}
    for phase, time in measure.time_each(clock, calls, repeat=repeat).items():
        if isinstance(time, Exception):
            raise time
        times[phase] = time
    return times


def whole(
    network: Prepared, module: nn.Module, clock: measure.Clock, input_gradients: Sequence[bool], repeat: measure.Repeat
) -> Timing:
    """The time of a whole step, or of inference, of ``module`` in the place of the network's own.

    Raises:
        RuntimeError, UnsupportedError: it did not run.
    """
    call = run.whole_step(module, network.inputs, network.seed, network.backward, input_gradients)
    return timed(clock, {"step": call}, repeat)["step"]


def whole_error(network: Prepared, module: nn.Module, precision: str) -> float:
    """How far the whole network's outputs and gradients are from float64, computed by ``module``, without dropout.

    Raises:
        CheckError: further than the precision, and the network as it is, can explain.
    """
    modes = [(m, m.training) for one in (module, network.module) for m in one.modules()]
    try:
        module.eval()
        network.module.eval()
        ours, plain = (results(m, network.inputs, network.seed, network.backward) for m in (module, network.module))
        exact = exactly(network.module, network.inputs, network.seed, network.backward)
    finally:
        for m, training in modes:
            m.training = training
    return accuracy(ours, plain, exact, precision)


def results(module: nn.Module, inputs: Sequence[Tensor], seed: SeedGradient, backward: bool) -> list[Tensor | None]:
    """What a module computes: its outputs, and the gradients of its parameters and of inputs that ask for them."""
    leaves = [x.detach().requires_grad_(x.requires_grad) for x in inputs]
    outputs = [y for y in tree_leaves(module(*leaves)) if isinstance(y, Tensor) and y.is_floating_point()]
    wanted = [leaf for leaf in (*leaves, *module.parameters()) if leaf.requires_grad]
    if not (backward and wanted):
        return [y.detach() for y in outputs]
    pairs = [pair for pair in zip(outputs, seed(outputs), strict=True) if pair[0].requires_grad]
    if not pairs:
        return [y.detach() for y in outputs]
    roots, sent = zip(*pairs, strict=True)
    return [*(y.detach() for y in outputs), *torch.autograd.grad(roots, wanted, sent, allow_unused=True)]


def exactly(module: nn.Module, inputs: Sequence[Tensor], seed: SeedGradient, backward: bool) -> list[Tensor | None]:
    """`results` in float64, by the module's ``reference()`` if it has one."""
    plain: nn.Module = module.reference() if hasattr(module, "reference") else module  # type: ignore[operator]
    doubled = [x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x for x in inputs]
    return results(copy.deepcopy(plain).double(), doubled, seed, backward)


def accuracy(
    ours: Sequence[Tensor | None], plain: Sequence[Tensor | None], exact: Sequence[Tensor | None], precision: str
) -> float:
    """The largest relative error among ``ours``.

    Each may be what its precision can explain, or twice what plain torch shows: rounding decides which of two
    all but equal pixels wins a pooling window, and a gradient goes one way or the other.

    Raises:
        CheckError: one is further off.
    """
    worst = 0.0
    for a, b, c in zip(ours, plain, exact, strict=True):
        error, usual = run.relative_error([a], [c]), run.relative_error([b], [c])
        limit = max(run.LIMITS[precision], 2 * usual)
        if not error <= limit:
            raise CheckError(
                f"differs from float64 by {error:.2e} (relative L2), {precision} and plain torch explain {limit:.0e}: "
                "not timed"
            )
        worst = max(worst, error)
    return worst


def random_seed(outputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """The same normal numbers for outputs of the same shape, whatever their type."""
    made = []
    for y in outputs:
        generator = torch.Generator().manual_seed(0)
        # Rounded to what every type holds, so that all are sent the same gradient.
        made.append(torch.randn(y.shape, generator=generator).bfloat16().to(y))
    return made


def _side_by_side(before: Timing, after: Timing | Exception, error: float | None) -> Swapped:
    if isinstance(after, Exception):
        return Swapped(before, reason=run.one_line(after))
    return replace(Swapped(before), after=after, rel_error=error)
