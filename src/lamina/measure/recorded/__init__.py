"""Import of traces that other tools recorded."""

from lamina.measure.recorded.chrome import load, looks_like_trace
from lamina.measure.recorded.ncu_csv import from_ncu_csv
from lamina.measure.recorded.recording import Recording
from lamina.measure.recorded.torch_trace import from_torch_trace

__all__ = ["Recording", "from_ncu_csv", "from_torch_trace", "load", "looks_like_trace"]
