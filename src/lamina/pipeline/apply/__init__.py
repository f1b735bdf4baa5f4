"""``apply``: run a model by a plan that a study wrote.

apply     replace layers -> prune dead channels -> precision, layout and mode
planned   a model that runs in a plan's precision and layout, whoever calls it
folder    a model by a plan, saved with its weights
"""

from lamina.pipeline.apply.apply import PlanMismatch, apply, describe_type, mismatches
from lamina.pipeline.apply.folder import save

__all__ = ["PlanMismatch", "apply", "describe_type", "mismatches", "save"]
