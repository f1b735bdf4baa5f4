"""Convolution algorithms in plain PyTorch, selectable for each phase."""

from lamina.build.convolution.algorithm import ALGORITHMS as ALGORITHMS
from lamina.build.convolution.algorithm import Algorithm as Algorithm
from lamina.build.convolution.algorithm import PhaseAlgorithms as PhaseAlgorithms
from lamina.build.convolution.algorithm import phase as phase
from lamina.build.convolution.autograd import convolve as convolve
from lamina.build.convolution.geometry import Geometry as Geometry
