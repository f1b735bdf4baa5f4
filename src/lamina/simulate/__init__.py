"""Simulates memory-side hardware: the shared GPU memory hierarchy and, one cell each, the units in it."""
