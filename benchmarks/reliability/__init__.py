"""What nothing may break: commands that are killed, and parsers that are fed anything."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # read when PyTorch is imported; threads do not survive the forks of the trials
