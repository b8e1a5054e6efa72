"""FlashInfer's kernels as rows of PhyAI's catalog."""
