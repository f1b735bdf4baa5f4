"""Reader of DNNMark's configuration files, with warnings for keys and values that have no effect."""

from lamina.spec.dnnmark.reader import read_dnnmark

__all__ = ["read_dnnmark"]
