"""Triton kernels and their ``prepare`` functions. Imported when one of them is prepared."""
