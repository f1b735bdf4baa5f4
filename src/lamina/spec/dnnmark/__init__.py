"""The configuration files of DNNMark, read as DNNMark read them and with what it would have said."""

from lamina.spec.dnnmark.reader import read_dnnmark

__all__ = ["read_dnnmark"]
