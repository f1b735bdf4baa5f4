"""Activations that wait for the backward pass, kept without their zeros."""

from lamina.accelerate.sparsity.saved.context import Held, SavedActivations, saved_activations

__all__ = ["Held", "SavedActivations", "saved_activations"]
