"""Simulation of hardware units near memory: the shared GPU memory hierarchy, and one package per unit."""
