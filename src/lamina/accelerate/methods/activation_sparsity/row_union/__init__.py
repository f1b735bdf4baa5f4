"""Convolutions over the channels that live in each image."""
