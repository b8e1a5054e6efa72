"""Norms between two products of few rows: ``csrc/norm.cu``."""
