"""Attention with few queries and many keys: ``csrc/attention.cu``."""
