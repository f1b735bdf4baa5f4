"""DeftNN's near-compute data fission on CUDA cores: operands are packed in shared memory (Hill et al., MICRO 2017)."""
