"""Activations that wait for the backward pass, kept without their zeros."""

from lamina.accelerate.training.compressed_activations.context import Held, SavedActivations, Saving, saved_activations

__all__ = ["Held", "SavedActivations", "Saving", "saved_activations"]
