"""What most tests here need: networks of the zoo and shipped devices are the same in all of them."""

from tests.pipeline.traced import traced_once

__all__ = ["traced_once"]
