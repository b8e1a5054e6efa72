"""PhyAI's own kernels: Triton, and CUDA C++ compiled by NVRTC through CuPy."""
