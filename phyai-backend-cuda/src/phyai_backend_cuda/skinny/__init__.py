"""Products of at most 64 rows with a large weight, 16-bit or quantized: ``csrc/skinny.cu``."""
