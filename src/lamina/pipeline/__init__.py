"""The verbs: what each command does, in terms of the rooms. Read this first.

bench      build -> run -> measure -> store        one row for each phase of each layer
profile    build -> run -> measure -> store        one row, its kernels and counters for each phase of each layer
what_if    build -> predict -> run -> store        a change's predicted gain beside its measured one
study      build -> measure -> select -> save      a plan: how to run each layer, and the whole network
apply      read -> convert                         a model that runs by a plan
convert    time -> select -> replace               a model whose layers run by another method where that is faster
graphed    capture -> compare -> replay            passes, or whole training steps, as CUDA graphs
train      build -> run -> store                   one row for each epoch
sparsity   train -> observe -> store               zeros in activation maps over a training run
deft       train -> search -> measure -> save      a faster network within an accuracy budget
load       read -> build                           the network that deft saved
simulate   spec -> workloads -> simulate -> store  a row for each layer
sweep      grid -> cells -> any verb -> store      a run for each cell; simulate.sweep: a row for each layer of a design
explain    store -> explain                        findings: what limits each layer, and what would help
compare    store -> explain                        two runs, phase by phase
report     store -> explain -> report              a page that opens anywhere
reproduce  spec.published -> any of these          a paper's values beside ours

A module or a package of the same name holds each verb. Names are imported when they are first used.
"""

from typing import TYPE_CHECKING

from lamina.lazy import lazy

if TYPE_CHECKING:
    from lamina.pipeline.apply import apply
    from lamina.pipeline.bench import bench
    from lamina.pipeline.convert import convert
    from lamina.pipeline.deft.flow import deft
    from lamina.pipeline.deft.recipe_files import load
    from lamina.pipeline.described import Described, describe, needs_torch
    from lamina.pipeline.explain import compare, compare_counters, compare_kernels, compare_layers, explain, look_up
    from lamina.pipeline.graphed import graphed, graphed_step
    from lamina.pipeline.imports import import_file
    from lamina.pipeline.memory import Memory, memory
    from lamina.pipeline.profile import iterate, profile
    from lamina.pipeline.profile.counted import metrics, passes
    from lamina.pipeline.profile.point import Options
    from lamina.pipeline.reports import write as report
    from lamina.pipeline.reproduce import Reproduced, reproduce
    from lamina.pipeline.simulate import simulate
    from lamina.pipeline.sparsity import sparsity
    from lamina.pipeline.study import study
    from lamina.pipeline.sweep.flow import sweep
    from lamina.pipeline.targets import find
    from lamina.pipeline.train import train
    from lamina.pipeline.watch import Planned, Watch
    from lamina.pipeline.what_if import what_if

__all__ = [
    "VERBS",
    "Described",
    "Memory",
    "Options",
    "Planned",
    "Reproduced",
    "Watch",
    "apply",
    "bench",
    "compare",
    "compare_counters",
    "compare_kernels",
    "compare_layers",
    "convert",
    "deft",
    "describe",
    "explain",
    "find",
    "graphed",
    "graphed_step",
    "import_file",
    "iterate",
    "load",
    "look_up",
    "memory",
    "metrics",
    "needs_torch",
    "passes",
    "profile",
    "report",
    "reproduce",
    "simulate",
    "sparsity",
    "study",
    "sweep",
    "train",
    "what_if",
]

VERBS = (
    *("bench", "profile", "what_if", "study", "apply", "convert", "graphed", "train", "sparsity", "deft", "load"),
    *("simulate", "sweep", "explain", "compare", "report", "reproduce"),
)
"""The verbs, in the order of this page."""

_MODULES = {
    "apply": ("apply",),
    "bench": ("bench",),
    "convert": ("convert",),
    "deft.flow": ("deft",),
    "deft.recipe_files": ("load",),
    "described": ("Described", "describe", "needs_torch"),
    "explain": ("compare", "compare_counters", "compare_kernels", "compare_layers", "explain", "look_up"),
    "graphed": ("graphed", "graphed_step"),
    "imports": ("import_file",),
    "memory": ("Memory", "memory"),
    "profile": ("iterate", "profile"),
    "profile.counted": ("metrics", "passes"),
    "profile.point": ("Options",),
    "reproduce": ("Reproduced", "reproduce"),
    "simulate": ("simulate",),
    "sparsity": ("sparsity",),
    "study": ("study",),
    "sweep.flow": ("sweep",),
    "targets": ("find",),
    "train": ("train",),
    "watch": ("Planned", "Watch"),
    "what_if": ("what_if",),
}

lazy(
    __name__,
    {name: f"{__name__}.{module}:{name}" for module, names in _MODULES.items() for name in names}
    | {"report": f"{__name__}.reports:write"},
)
