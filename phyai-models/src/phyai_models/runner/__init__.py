"""What a runner is made of: buckets, buffers that stay in place, CUDA graphs, and memory that is accounted for."""

from phyai_models.runner.aside import Aside
from phyai_models.runner.buckets import bucket_of, buckets_up_to
from phyai_models.runner.graph import Recording, record
from phyai_models.runner.memory import MemoryReport, give_back, memory_errors, require_free
from phyai_models.runner.mirror import Mirror
from phyai_models.runner.warm import Warmer

__all__ = [
    "Aside",
    "MemoryReport",
    "Mirror",
    "Recording",
    "Warmer",
    "bucket_of",
    "buckets_up_to",
    "give_back",
    "memory_errors",
    "record",
    "require_free",
]
