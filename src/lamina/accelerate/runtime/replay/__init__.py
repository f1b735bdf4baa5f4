"""Launch plans replayed in C++, with their autograd nodes: eager layers without the overhead of Python.

`extension` builds and loads the C++ code; `plan` translates recordings; operators are called through `operator`.
"""

from lamina.accelerate.runtime.replay.extension import use_extension, wait_for_extension
from lamina.accelerate.runtime.replay.operator import ReplayedOperator, register_kernel, replays_one_operator

__all__ = ["ReplayedOperator", "register_kernel", "replays_one_operator", "use_extension", "wait_for_extension"]
