"""``graphed``: passes of a model, or whole training steps, replayed as CUDA graphs from an ordinary loop.

A replay launches everything by one call, so that launch overhead is gone. The first calls of each signature (shapes,
dtypes, modes of the modules) run in eager mode. Then the work is captured once, and compared with eager mode.
"""

from lamina.pipeline.graphed.model import GraphedModel, graphed
from lamina.pipeline.graphed.step import GraphedStep, graphed_step

__all__ = ["GraphedModel", "GraphedStep", "graphed", "graphed_step"]
