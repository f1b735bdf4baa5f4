"""``study``: one command from a network to a measured plan of how to run each of its layers.

The stages, in the order of `flow`:

dense      the dense network, trained or loaded
uniform    the whole network by precision, layout, mode, folding and methods of other packages (`whole_times`, `rivals`)
judged     accuracy at these settings, and the best of them
layers     every candidate of every layer, in place: `attempts` are tried by `trials`, their kernels compiled `ahead`
front      plans from the most accurate to the fastest (`combine`), and how far they keep the accuracy
deciding   the furthest plan that is faster as a whole (`whole`) than the best uniform settings
explained  what limits the network at the best settings
outcomes   what became of every setting and candidate; the time of the plan is `predicted` from the `parts` of a step
written    the plan and its folder

What they share:

config     what may be tried, and the limits
context    the network, limits and services of a study
subject    the network at settings, and its steps
plans      networks by a choice of implementations, and their accuracy
budget     the time that each stage may use
journal    answers that were found before
fatal      what ended a process, and is not tried again
"""

from lamina.pipeline.study.config import StudyConfig
from lamina.pipeline.study.flow import Studied, study

__all__ = ["Studied", "StudyConfig", "study"]
