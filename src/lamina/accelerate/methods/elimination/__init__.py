"""Synapse vector elimination: input channels are pruned from a layer's sum (Hill et al., DeftNN, MICRO 2017)."""

from lamina.accelerate.methods.elimination.config import Eliminated

__all__ = ["Eliminated"]
