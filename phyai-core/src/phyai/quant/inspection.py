"""What a checkpoint holds, as plain data: recognized or refused, and every layer. Loads no weights.

>>> from pathlib import Path; import json, tempfile
>>> folder = Path(tempfile.mkdtemp())
>>> _ = (folder / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "w4afp8"}}))
>>> report = inspect_checkpoint(folder)
>>> report["recognised"], report["refused"]
(False, "unknown quantization method 'w4afp8'")
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from phyai.errors import CheckpointError
from phyai.quant.checkpoint import Checkpoint
from phyai.quant.importers import BUILTIN, Importer, Recognized, Refused
from phyai.quant.layers import stored_layers
from phyai.quant.plan import QuantRule
from phyai.quant.recognition import recognize
from phyai.quant.storage import StoredLayer


def inspect_checkpoint(path: str | Path, importers: Iterable[Importer] = BUILTIN) -> dict[str, Any]:
    """Everything that can be said of a checkpoint folder or a configuration file without loading weights.

    ``recognised`` is false when the checkpoint is refused as a whole (``refused`` says why, ``instead`` what
    would work). ``layers`` maps module names to their scheme, shape, tensors, notes, and ``refused`` where one
    layer cannot be loaded. ``rules`` are the configuration's, first match wins.
    """
    report: dict[str, Any] = {
        "path": str(path), "recognised": False, "quantized": None, "method": None, "source": None, "refused": None,
        "instead": None, "kv_cache": None, "notes": [], "rules": [], "layers": {},
    }  # fmt: skip
    try:
        checkpoint = Checkpoint.open(path)
        outcome = recognize(checkpoint, importers)
    except CheckpointError as error:
        return {**report, "refused": str(error)}
    if isinstance(outcome, Refused):
        return {
            **report, "quantized": True, "method": outcome.method, "source": outcome.source,
            "refused": outcome.reason, "instead": outcome.instead or None,
        }  # fmt: skip
    report |= {"recognised": True, "quantized": outcome is not None}
    if outcome is not None:
        report |= {
            "method": outcome.method, "source": outcome.source, "kv_cache": outcome.kv_cache,
            "notes": list(outcome.notes), "rules": [_rule(rule) for rule in outcome.plan.rules],
        }  # fmt: skip
    layers = stored_layers(checkpoint, outcome)
    report["layers"] = {name: _layer(layer) for name, layer in layers.items()}
    report["kv_cache"] = _kv_cache(outcome, checkpoint)
    report["schemes"] = dict(Counter(_scheme_name(layer) for layer in layers.values()))
    broken = [name for name, layer in layers.items() if layer.problem]
    if broken:
        first = layers[broken[0]].problem
        more = f" (and {len(broken) - 1} more layers)" if len(broken) > 1 else ""
        report["refused"] = f"{first}{more}"
    return report


def _scheme_name(layer: StoredLayer) -> str:
    return layer.scheme.name if layer.scheme else "unquantized"


def _rule(rule: QuantRule) -> dict[str, Any]:
    match = [{m.kind: m.pattern for m in conditions} for conditions in rule.match]
    return {"id": rule.id, "match": match, "scheme": rule.scheme.to_dict() if rule.scheme else None}


def _layer(layer: StoredLayer) -> dict[str, Any]:
    scheme = layer.scheme.to_dict() if layer.scheme else {"name": None, "weight": None, "input": None}
    return {
        "scheme": scheme.pop("name"),
        **scheme,
        "shape": list(layer.shape) if layer.shape else None,
        "storage": layer.storage,
        "tensors": {
            role: {"name": info.name, "dtype": info.dtype, "shape": list(info.shape), "file": info.file.name}
            for role, info in layer.tensors.items()
        },
        "notes": list(layer.notes),
        "refused": layer.problem,
    }


def _kv_cache(outcome: Recognized | None, checkpoint: Checkpoint) -> dict[str, Any] | None:
    """What is said of the key/value cache, and which tensors of it are stored."""
    names = ("k_scale", "v_scale", "k_zero_point", "v_zero_point")
    tensors = [name for name in checkpoint.tensors if name.rpartition(".")[2] in names]
    said = dict(outcome.kv_cache or {}) if outcome else {}
    return {**said, "tensors": tensors} if said or tensors else None
