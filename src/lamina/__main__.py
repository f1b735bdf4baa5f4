"""``python -m lamina``, for torchrun and for checkouts that are not installed."""

from lamina.cli import main

main()
