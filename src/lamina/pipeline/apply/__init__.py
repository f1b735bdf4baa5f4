"""``apply``: run a model by a plan that a study wrote.

model     replace layers -> prune dead channels -> precision, layout and mode
planned   a model that runs in a plan's precision and layout at every call
folder    a model by a plan, saved with its weights
tried     a network by a plan, timed before and after
front     the networks of a front, as one model that switches between them
"""

from lamina.pipeline.apply.folder import save
from lamina.pipeline.apply.model import Applied, PlanMismatch, applied, apply, describe_type, mismatches, replaced_by

__all__ = [
    "Applied",
    "PlanMismatch",
    "applied",
    "apply",
    "describe_type",
    "mismatches",
    "replaced_by",
    "save",
]
