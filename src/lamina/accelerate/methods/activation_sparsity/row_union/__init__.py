"""Convolutions over the active channels of each image."""
