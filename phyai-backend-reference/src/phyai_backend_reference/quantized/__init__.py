"""``reference.gemm.*`` for quantized weights: every description that the core can express, in plain PyTorch."""
