"""Rows with inputs of 8 bits: quantization in one pass, and FP8 products through ``torch._scaled_mm``."""
