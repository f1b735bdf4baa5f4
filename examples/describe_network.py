"""Describe a network in code, compute its FLOP and bytes, and build it.

Run: python examples/describe_network.py
"""

import torch

from lamina.build import SpecModule
from lamina.spec import Input, Network, Phase
from lamina.spec.layers import Activation, Add, Convolution


def main() -> None:
    block = Network(
        name="residual block",
        inputs=(Input(shape=(64, 56, 56)),),
        layers=(
            Convolution(name="conv1", inputs=("input",), out_channels=64, kernel=3, padding=1),
            Activation(name="relu1", inputs=("conv1",)),
            Convolution(name="conv2", inputs=("relu1",), out_channels=64, kernel=3, padding=1),
            Add(name="sum", inputs=("conv2", "input")),
        ),
        batch=8,
    )
    for layer in block.resolve():
        cost = layer.cost(Phase.FORWARD, itemsize=4)
        work = f"{cost.flops / 1e6:9.1f} MFLOP {cost.intensity:6.1f} FLOP/byte"
        print(f"{layer.name:6} {layer.parameters:7,} weights {work}")
    network = SpecModule(block)
    print(network(torch.randn(8, 64, 56, 56)).shape)


if __name__ == "__main__":
    main()
