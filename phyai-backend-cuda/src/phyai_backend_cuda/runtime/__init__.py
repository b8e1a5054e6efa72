"""What kernels share: tensors as they take them; for CUDA C++, NVRTC, launches through the driver, tensor maps."""
