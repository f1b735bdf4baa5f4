"""What lamina's own tests rely on, for everyone who adds a kernel or a method."""

from lamina.testing.tolerance import assert_as_accurate

__all__ = ["assert_as_accurate"]
