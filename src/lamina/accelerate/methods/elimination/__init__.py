"""Synapse vector elimination: inputs a layer can do without leave its sum (Hill et al., DeftNN, MICRO 2017)."""

from lamina.accelerate.methods.elimination.config import Eliminated

__all__ = ["Eliminated"]
