"""``apply``: run a model by a plan that a study wrote.

apply     replace layers -> prune dead channels -> precision, layout and mode
planned   a model that runs in a plan's precision and layout at every call
folder    a model by a plan, saved with its weights
tried     a network by a plan, timed before and after
"""

from lamina.pipeline.apply.apply import Applied, PlanMismatch, applied, apply, describe_type, mismatches, replaced_by
from lamina.pipeline.apply.folder import save

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
