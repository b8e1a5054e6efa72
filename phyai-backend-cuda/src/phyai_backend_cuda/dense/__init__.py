"""Products of many rows with a 16-bit weight, one tile a processor: ``csrc/dense.cu``."""
