"""``deft``: pruning and weight-only quantization within an accuracy budget, saving and loading. Begin with ``flow``."""
