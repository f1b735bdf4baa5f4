"""The ``lamina`` command, also ``python -m lamina``: for torchrun and for checkouts that are not installed."""

import sys

from lamina.errors import INTERRUPTED


def main() -> None:
    """Import the command line, which takes half a second in which Ctrl-C ends it too, and run it."""
    try:
        from lamina.cli import main as command
    except KeyboardInterrupt:
        sys.stderr.write("lamina: interrupted\n")
        sys.exit(INTERRUPTED)
    command()


if __name__ == "__main__":
    main()
