"""Products of many rows with 16-bit weights, one tile a processor: ``csrc/dense.cu``."""
