"""A traced network as a module again, in which other modules compute some of its calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from lamina.build.calls import Trace


class TracedNetwork(nn.Module):
    """Runs the calls of a trace in order, functions between modules included.

    Its parameters are those of the modules and functions that run, not copies. It returns the network's output
    tensors, a single one or a tuple.

    Args:
        trace: the network, of which calls may be `merged`.
        replaced: modules that compute a call instead of its own, by index of the call.
    """

    def __init__(self, trace: Trace, replaced: Mapping[int, nn.Module]):
        super().__init__()
        self.trace = trace
        self.targets = [replaced.get(index, call.module) for index, call in enumerate(trace.calls)]
        self.computing = nn.ModuleList(dict.fromkeys(target for target in self.targets if target is not None))
        weights = [weight for call in trace.calls if call.module is None for weight in call.weights]
        self.constants = nn.ParameterList(dict.fromkeys(each for each in weights if isinstance(each, nn.Parameter)))
        last = {number: index for index, call in enumerate(trace.calls) for number in (*call.inputs, *call.outputs)}
        self._dead: list[list[int]] = [[] for _ in trace.calls]
        for number in last.keys() - {*trace.outputs}:
            self._dead[last[number]].append(number)

    def forward(self, *inputs: Tensor) -> Any:
        """The outputs of the network."""
        values: dict[int, Tensor] = dict(zip(self.trace.inputs, inputs, strict=True))
        for call, target, dead in zip(self.trace.calls, self.targets, self._dead, strict=True):
            results = call.run([values[number] for number in call.inputs], target)
            values.update(zip(call.outputs, results, strict=True))
            for number in dead:
                del values[number]
        outputs = tuple(values[number] for number in self.trace.outputs)
        return outputs[0] if len(outputs) == 1 else outputs
