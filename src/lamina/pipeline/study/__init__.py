"""``study``: one command from a network to a measured plan of how to run each of its layers.

config     what may be tried, and the limits
flow       the stages in order
subject    the network at settings, and its steps
uniform    stage 1: folding, precision, layout, mode and methods of other packages for the whole network
layers     stage 2: every candidate of every layer, in place
algorithms convolution algorithms among these candidates
plans      networks by a choice of implementations, and their accuracy
combine    stage 3: which layers to change, and how far
whole      stage 4: the whole network by a choice against the best uniform settings
written    the plan and its folder
"""

from lamina.pipeline.study.config import StudyConfig
from lamina.pipeline.study.flow import Studied, study

__all__ = ["Studied", "StudyConfig", "study"]
