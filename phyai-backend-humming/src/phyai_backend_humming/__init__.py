"""Humming's quantized GEMM kernels for PhyAI. Importing this imports neither torch nor humming."""
