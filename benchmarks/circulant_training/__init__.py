"""Claim: the accuracy that block-circulant layers cost a network, and the time that they save in a training step.

Networks train with the loop of `lamina train`, in CUDA graphs of whole updates, dense and with blocks of 16, 32 and 64,
from three seeds each, with the same settings (`experiments`). Only the learning rate of blocks (`parameter_groups`) and
dropout depend on the block size, each by a rule with a different exponent for VGG with batch normalization
(`learning`). Every run is a process, one at a time on each GPU (`processes`): the accuracies matter, and epoch times
are only recorded. Results are written whenever a run ends, so that an interrupted benchmark keeps it; ``--resume``
takes the complete runs of one and makes the others. Before that, alone on a GPU, training steps with Adam are timed,
and their memory is measured (`timing`).

Run: python -m benchmarks.circulant_training full --data DIR
"""
