"""lamina: a layer-by-layer performance laboratory for deep neural networks on GPUs.

Replace layers of a PyTorch model by another method, and keep those that are measured to be faster::

    model, record = lamina.convert(model, lamina.Circulant(block_size=64), example=x, select="measure")

`lamina.pipeline` has the commands of ``lamina`` as functions.
"""

from typing import TYPE_CHECKING

from lamina.lazy import lazy
from lamina.spec.method import METHODS

if TYPE_CHECKING:
    from lamina.accelerate.methods.activation_sparsity.config import Sparse
    from lamina.accelerate.methods.circulant.config import Circulant
    from lamina.accelerate.methods.elimination.config import Eliminated
    from lamina.accelerate.methods.fusion.config import Fusion
    from lamina.accelerate.methods.weight_only.config import WeightOnly
    from lamina.accelerate.papers.on_chip_fission.config import OnChipFission
    from lamina.pipeline.apply import apply
    from lamina.pipeline.apply.front import load_front
    from lamina.pipeline.convert import convert
    from lamina.pipeline.deft.recipe_files import load
    from lamina.pipeline.graphed import graphed, graphed_step
    from lamina.store.store import open_store

__all__ = [
    "Circulant",
    "Eliminated",
    "Fusion",
    "OnChipFission",
    "Sparse",
    "WeightOnly",
    "apply",
    "convert",
    "graphed",
    "graphed_step",
    "load",
    "load_front",
    "open_store",
]

__version__ = "0.1.0"

lazy(
    __name__,
    {
        "apply": "lamina.pipeline.apply:apply",
        "convert": "lamina.pipeline.convert:convert",
        "graphed": "lamina.pipeline.graphed:graphed",
        "graphed_step": "lamina.pipeline.graphed:graphed_step",
        "load_front": "lamina.pipeline.apply.front:load_front",
        "load": "lamina.pipeline.deft.recipe_files:load",
        "open_store": "lamina.store.store:open_store",
        **{info.config: f"{info.package}.config:{info.config}" for info in METHODS.values() if info.cell},
    },
)
