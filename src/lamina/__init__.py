"""lamina: a layer-by-layer performance laboratory for deep neural networks on GPUs."""

__version__ = "0.1.0"
