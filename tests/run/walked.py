"""The steps of a walk through a network, each called once."""

from torch import Tensor, nn

from lamina.build import trace
from lamina.run import seed_gradient, walk
from lamina.run.steps import Step
from lamina.spec import Phase

FORWARD, DATA, WEIGHT = Phase.FORWARD, Phase.BACKWARD_DATA, Phase.BACKWARD_WEIGHT


def steps_of(network: nn.Module, x: Tensor, **options: object) -> dict[tuple[str, Phase], Step]:
    arguments: dict[str, object] = {
        "phases": tuple(Phase),
        "precision": "fp32",
        "seed_gradient": seed_gradient(None),
        **options,
    }
    visits = walk(trace(network, x), [x], **arguments)  # type: ignore[arg-type]
    found = {}
    for visit in visits:
        for step in visit:
            found[step.resolved.name, step.phase] = step
            if step.call is not None:
                step.call()
    return found
