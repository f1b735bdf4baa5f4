"""The result of each layer, with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from lamina.accelerate.convert import standard_twin
from lamina.accelerate.methods.elimination.network import Folded
from lamina.accelerate.methods.elimination.pareto import Search
from lamina.pipeline.deft.composition import Candidates
from lamina.pipeline.deft.records import LayerResult, Objective
from lamina.pipeline.deft.weight_formats import Stored


def layer_results(
    dense: nn.Module,
    found: Candidates,
    choice: Mapping[str, float],
    folded: Sequence[Folded],
    stored: Mapping[str, Stored],
    searched: Search,
    objective: Objective = "accuracy",
) -> tuple[LayerResult, ...]:
    """The results of all layers with weights, in the network's order."""
    narrowed = {one.producer: one.live for one in folded}
    results = []
    for name, layer in standard_twin(dense).named_modules():
        if name not in found.variants and name not in found.refusals:
            continue
        ratio = choice.get(name, 1.0)
        variant = found.variants[name][ratio] if ratio < 1 else None
        some = next(iter(found.variants.get(name, {}).values()), None)
        parameter = next(layer.parameters(recurse=False))
        outputs, inputs = len(parameter), some.total if some else (parameter.shape[1] if parameter.dim() > 1 else 1)
        weights = stored.get(name, Stored(None, ""))
        results.append(
            LayerResult(
                name,
                type(layer).__name__,
                inputs,
                variant.kept if variant else inputs,
                outputs,
                narrowed.get(name, outputs),
                variant.alpha if variant else None,
                variant.error if variant else None,
                weights.format,
                weights.error if weights.format else None,
                found.refusals.get(name) or single_change(name, ratio, found, searched, objective),
                weights.reason,
            )
        )
    return tuple(results)


def single_change(name: str, ratio: float, found: Candidates, searched: Search, objective: Objective) -> str:
    """Accuracy and speedup with this layer alone pruned; of a dense layer, for its largest keep ratio."""
    shown = ratio if ratio < 1 else max(found.variants[name])
    dense = searched.dense
    point = next(p for p in searched.points if p.choice == dense.choice | {name: shown})
    change = point.accuracy - dense.accuracy
    lost = f"{change:+.2f} points" if objective == "accuracy" else f"output error {-change:.2f} %"
    text = f"alone at {shown:g}: {lost}, {dense.latency / point.latency:.2f}x"
    criterion = "by correlation" if found.variants[name][shown].alpha is not None else "by contribution"
    return f"{criterion}; {text}" if ratio < 1 else f"kept dense; {text}"
