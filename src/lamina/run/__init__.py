"""Executes the phases of layers on their actual buffers and checks them against float64. Contains no clock."""

from lamina.run.arena import Arena, Buffer, MemoryPlan, plan
from lamina.run.check import LIMITS, judge, relative_error
from lamina.run.inputs import Inputs, forward, moved, size_lazy_parameters
from lamina.run.iteration import Iteration, Mark
from lamina.run.lifetimes import memory_plan
from lamina.run.loss import seed_gradient
from lamina.run.messages import one_line
from lamina.run.objective import Objective, class_scores, classification, mean_square, tensors
from lamina.run.precision import precision_mode, precision_note
from lamina.run.processes import Parallel, join_processes, leave_processes, rank_and_world
from lamina.run.steps import Implement, Step, walk
from lamina.run.training import Progress, train
from lamina.run.update import Trained, Update, Updates, eager_update
from lamina.run.weights import load_weights, saved_weights
from lamina.run.whole import whole_step

__all__ = [
    "LIMITS",
    "Arena",
    "Buffer",
    "Implement",
    "Inputs",
    "Iteration",
    "Mark",
    "MemoryPlan",
    "Objective",
    "Parallel",
    "Progress",
    "Step",
    "Trained",
    "Update",
    "Updates",
    "class_scores",
    "classification",
    "eager_update",
    "forward",
    "join_processes",
    "judge",
    "leave_processes",
    "load_weights",
    "mean_square",
    "memory_plan",
    "moved",
    "one_line",
    "plan",
    "precision_mode",
    "precision_note",
    "rank_and_world",
    "relative_error",
    "saved_weights",
    "seed_gradient",
    "size_lazy_parameters",
    "tensors",
    "train",
    "walk",
    "whole_step",
]
