"""The sentence: what each verb does, in terms of the rooms. Read this first.

bench      build -> run -> measure -> store        one row for each phase of each layer
profile    build -> run -> measure -> store        one row, its kernels and counters for each phase of each layer
train      build -> run -> measure -> store        one row for each epoch
deft       train -> search -> measure -> save      a faster network within an accuracy budget
sparsity   train -> observe -> store               zeros in activation maps over a training
simulate   spec -> workloads -> simulate -> store  a row for each layer; sweep: for each design
report     store -> explain -> report              a page that opens anywhere
reproduce  spec.published -> any of these          a paper's numbers beside ours
"""

from lamina.pipeline.bench import bench
from lamina.pipeline.memory import Memory, memory
from lamina.pipeline.profile import iterate, profile
from lamina.pipeline.profile.counted import metrics, passes
from lamina.pipeline.profile.point import Options
from lamina.pipeline.reports import write as report
from lamina.pipeline.reproduce import Reproduced, reproduce
from lamina.pipeline.targets import find
from lamina.pipeline.train import train
from lamina.pipeline.watch import Planned, Watch

__all__ = [
    "Memory",
    "Options",
    "Planned",
    "Reproduced",
    "Watch",
    "bench",
    "find",
    "iterate",
    "memory",
    "metrics",
    "passes",
    "profile",
    "report",
    "reproduce",
    "train",
]
