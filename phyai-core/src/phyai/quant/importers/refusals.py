"""Tools whose checkpoints are known by name and not loaded: each refused with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phyai.quant.checkpoint import Checkpoint
from phyai.quant.importers.base import FoundConfig, Recognized, Refuse, method_of

_INSTEAD = "the original weights with a quantization policy, or an export as compressed-tensors"

_REASONS: dict[str, str] = {
    "quark": "AMD Quark exports are not supported",
    "auto-round": "AutoRound exports in its own packing are not supported",
    "mxfp4": "the mxfp4 method packs mixture-of-experts tensors (…_blocks and …_scales), which are not supported",
    "fbgemm_fp8": "fbgemm_fp8 clips activations at a stored bound, which is not supported",
    "sparseml": "sparseml is not a method that checkpoints are loaded by",
    "aqlm": "AQLM codebooks are not supported",
    "vptq": "VPTQ codebooks are not supported",
    "quip": "QuIP codebooks are not supported",
    "spqr": "SpQR's sparse outliers are not supported",
    "hqq": "HQQ is not supported",
    "quanto": "Quanto is not supported",
    "eetq": "EETQ is not supported",
    "higgs": "HIGGS grids are not supported",
    "bitnet": "BitNet's ternary weights are not supported",
    "gguf": "GGUF blocks are not supported",
    "exl2": "EXL2 is not supported",
    "exl3": "EXL3 is not supported",
    "fp_quant": "FP-Quant's rotations are not supported",
    "sinq": "SINQ is not supported",
    "qqq": "QQQ is not supported",
}


def recognize(found: FoundConfig, checkpoint: Checkpoint) -> Recognized | None:
    """Refuse what is known by name; None for everything else."""
    body, method = found.body, method_of(found.body).replace("_", "-")
    eight, four = _is_true(body, "load_in_8bit"), _is_true(body, "load_in_4bit")
    if method.startswith("bitsandbytes") or (not method and (eight or four)):
        tool = method or "bitsandbytes"
        if eight and not four:
            raise Refuse("bitsandbytes 8-bit (LLM.int8 with outliers in 16 bits) is not supported", _INSTEAD, tool)
        kind = body.get("bnb_4bit_quant_type", "fp4")
        nested = " with doubly quantized scales" if body.get("bnb_4bit_use_double_quant") else ""
        raise Refuse(f"bitsandbytes 4-bit {kind}{nested} is not supported", _INSTEAD, tool)
    for name, reason in _REASONS.items():
        if method == name.replace("_", "-"):
            export = body.get("export")
            packing = body.get("packing_format") or (export.get("pack_method") if isinstance(export, Mapping) else None)
            detail = f" (packing {packing})" if isinstance(packing, str) else ""
            raise Refuse(f"{method}: {reason}{detail}", _INSTEAD)
    return None


def _is_true(body: Mapping[str, Any], key: str) -> bool:
    return body.get(key) is True or body.get(f"_{key}") is True
