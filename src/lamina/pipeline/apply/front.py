"""The front of a study as one model that switches between its networks while it runs.

Source: the choice at run time between kernels of several accuracies, Hill et al., DeftNN, MICRO 2017, section 4.1.
"""

from __future__ import annotations

import copy
import os
from typing import Any, cast

import torch
from torch import nn

from lamina.errors import UsageError
from lamina.pipeline.deft.recipe_files import RECIPE, load, path_of
from lamina.spec.plan import Alternative
from lamina.spec.plan_file import read_plan

FRONT = "front"
"""The folder of a study's networks, by their place in the plan's front."""

_STATE = ("_modules", "_parameters", "_buffers")


class Switching(nn.Module):
    """A network of the front at a time; `use` takes another one."""

    points: tuple[Alternative, ...]
    networks: tuple[nn.Module, ...]

    def use(self, *, accuracy_drop: float | None = None, latency_us: float | None = None) -> Alternative:
        """Switch to the fastest network that loses at most so much accuracy, or the most accurate that is so fast.

        Nothing is loaded or copied: all networks of the front are in memory. Times of a front are predicted from
        layers, but for those that the plan names as measured.

        Args:
            accuracy_drop: points below the dense network, on calibration samples.
            latency_us: microseconds of a forward pass at the plan's batch size.

        Returns:
            The point of the front that runs from now on.

        Raises:
            UsageError: not exactly one limit is given, or no network keeps it.
        """
        if (accuracy_drop is None) == (latency_us is None):
            raise UsageError("use: expected accuracy_drop or latency_us, one of them")
        best = max(point.accuracy for point in self.points if not point.methods)
        if accuracy_drop is not None:
            fits = [point for point in self.points if best - point.accuracy <= accuracy_drop]
            chosen = min(fits, key=lambda point: point.time_us, default=None)
            asked = f"{accuracy_drop:g} points; the front begins with {best:.2f} %"
        else:
            fits = [point for point in self.points if point.time_us <= cast(float, latency_us)]
            chosen = max(fits, key=lambda point: point.accuracy, default=None)
            asked = f"{latency_us:g} us; the fastest takes {min(point.time_us for point in self.points):.0f} us"
        if chosen is None:
            raise UsageError(f"use: no network of the front keeps {asked}")
        network = self.networks[self.points.index(chosen)]
        for name in _STATE:
            self.__dict__[name] = network.__dict__[name]
        return chosen


def load_front(
    path: str | os.PathLike[str], network: nn.Module | None = None, device: torch.device | str = "cpu"
) -> Any:
    """The networks of a study's front as one model, which begins with the plan's: ``model.use(accuracy_drop=0.5)``.

    Memory: every network of the front, 4 bytes for each of its parameters in float32.

    Args:
        path: the folder of the study.
        network: the dense network, if it is not in the zoo; not changed.
        device: of the result.

    Raises:
        UsageError: the folder holds no front, or its files are damaged.
    """
    folder = path_of("path", path)
    plan = read_plan(folder)
    found = [
        (point, load(folder / FRONT / str(index), copy.deepcopy(network), device))
        for index, point in enumerate(plan.front)
        if (folder / FRONT / str(index) / RECIPE).is_file()
    ]
    if not any(not point.methods for point, _ in found):
        raise UsageError(f"{folder}: expected the networks of a front as 'lamina study --front' saves them, got none")
    model: Any = load(folder, copy.deepcopy(network), device)
    kind = type(model)
    model.__class__ = type(f"Switching{kind.__name__}", (Switching, kind), {"__module__": kind.__module__})
    model.__dict__["points"], model.__dict__["networks"] = zip(*found, strict=True)
    return model
