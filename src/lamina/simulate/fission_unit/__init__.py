"""DeftNN's data fission unit: packed values in shared memory, and a unit next to each FPU that unpacks them."""

from lamina.simulate.fission_unit.config import FissionUnit, Kernel
from lamina.simulate.fission_unit.facts import HARDWARE, Hardware
from lamina.simulate.fission_unit.formats import CONVERSIONS, FORMATS, Conversion, Cost, Format
from lamina.simulate.fission_unit.kernel import Pass, one_pass, tiled_gemm
from lamina.simulate.fission_unit.linear import fully_connected
from lamina.simulate.fission_unit.model import Parts, Prediction, predict
from lamina.simulate.fission_unit.unit import fission_unit
from lamina.simulate.fission_unit.values import fuse, take_apart

__all__ = [
    "CONVERSIONS",
    "FORMATS",
    "HARDWARE",
    "Conversion",
    "Cost",
    "FissionUnit",
    "Format",
    "Hardware",
    "Kernel",
    "Parts",
    "Pass",
    "Prediction",
    "fission_unit",
    "fully_connected",
    "fuse",
    "one_pass",
    "predict",
    "take_apart",
    "tiled_gemm",
]
