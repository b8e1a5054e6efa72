"""Whether a CUDA graph is being captured right now, asked without importing torch for it."""

from __future__ import annotations

import sys


def capturing() -> bool:
    """True while this thread's current CUDA stream is being captured.

    Only where torch is loaded and has initialised CUDA can that be: nothing is imported or initialised here.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
        return False
    return bool(torch.cuda.is_current_stream_capturing())
