"""What the CUDA C++ kernels need of the machine: NVRTC, launches through the driver, tensor maps."""
