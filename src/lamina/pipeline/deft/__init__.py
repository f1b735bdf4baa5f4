"""``deft``: a network made faster within an accuracy budget, saved, and loaded again. Begin with ``flow``."""
