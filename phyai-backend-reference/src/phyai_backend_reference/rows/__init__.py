"""The records of this distribution's kernels. Nothing here imports torch."""
