"""Recognize: from a checkpoint folder (or a bare configuration file) to a :class:`QuantPlan`, or a refusal.

What is not recognized is refused; a checkpoint counts as not quantized only when it has no quantization
configuration *and* no tensor that looks quantized.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from phyai.quant.checkpoint import Checkpoint
from phyai.quant.importers import BUILTIN, FoundConfig, Importer, Recognized, Refuse, Refused
from phyai.quant.importers.base import method_of, rule
from phyai.quant.layers import quantized_tensors
from phyai.quant.plan import QuantPlan

_log = logging.getLogger("phyai.quant")

#: Keys that hold a quantization configuration inside a model's.
_KEYS = ("quantization_config", "compression_config")
_MAX_DEPTH = 4
#: Fields that two configurations of one checkpoint must not disagree about.
_MUST_AGREE = ("quant_algo", "bits", "group_size", "desc_act", "sym", "format", "weight_block_size", "zero_point")


def recognize(
    checkpoint: Checkpoint | str | Path, importers: Iterable[Importer] = BUILTIN
) -> Recognized | Refused | None:
    """What a checkpoint's quantization is; None when it is not quantized at all.

    Raises:
        CheckpointError: the checkpoint is malformed (not merely unsupported).
    """
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint.open(checkpoint)
    found = find_configs(checkpoint)
    if not found:
        return _without_config(checkpoint)
    importers = tuple(importers)
    outcomes = [_recognize_one(config, checkpoint, importers) for config in found]
    refused = next((o for o in outcomes if isinstance(o, Refused)), None)
    if refused is not None:
        return refused
    conflict = _conflict(found, [o for o in outcomes if isinstance(o, Recognized)])
    return conflict or _without_tensors(outcomes[0], checkpoint) or outcomes[0]


def _recognize_one(found: FoundConfig, checkpoint: Checkpoint, importers: tuple[Importer, ...]) -> Recognized | Refused:
    for importer in importers:
        try:
            outcome = importer.load()(found, checkpoint)
        except Refuse as refuse:
            tool = refuse.method or method_of(found.body) or importer.name
            return Refused(refuse.reason, refuse.instead, tool, found.source)
        except Exception as error:  # an importer may be anybody's: one that fails must not take the rest down
            _log.exception("importer %s", importer.name)
            reason = f"importer {importer.name} failed on it: {type(error).__name__}: {error}"
            return Refused(reason, "", method_of(found.body) or None, found.source)
        if outcome is not None:
            return attrs.evolve(outcome, plan=_scoped(outcome.plan, found))
    method = found.body.get("quant_method")
    names = ", ".join(i.name for i in importers if i.name != "known-unsupported")
    if method is None:
        reason = "quant_method is missing: nothing says which tool wrote the quantization configuration"
    else:
        reason = f"unknown quantization method {method!r}"
    return Refused(reason, f"one of {names}, or the original weights", str(method) if method else None, found.source)


#: Words in module names, by the part of a model that a sub-configuration describes.
_WORDS = {"vision": ("vision", "visual", "multi_modal_projector", "mm_projector"), "audio": ("audio", "speech")}


def _scoped(plan: QuantPlan, found: FoundConfig) -> QuantPlan:
    """A configuration that sits in ``text_config`` does not reach the parts that its siblings describe."""
    if len(found.path) < 2:
        return plan
    siblings = [k.removesuffix("_config") for k in found.model if k.endswith("_config") and k != found.path[-2]]
    words = [word for part in siblings for word in _WORDS.get(part, ())]
    outside = [rule("glob", f"*{word}*", None, id=f"outside {found.path[-2]}") for word in words]
    return attrs.evolve(plan, rules=(*outside, *plan.rules))


def _without_config(checkpoint: Checkpoint) -> Refused | None:
    names = quantized_tensors(checkpoint)
    if not names:
        return None
    some = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    return Refused(
        f"{len(names)} tensors look quantized ({some}) but no quantization configuration was found",
        "the configuration that the tool wrote beside them (config.json, hf_quant_config.json, …)",
    )


def _without_tensors(outcome: Recognized | Refused, checkpoint: Checkpoint) -> Refused | None:
    if not checkpoint.tensors or quantized_tensors(checkpoint):
        return None
    return Refused(
        f"{outcome.source} says {outcome.method}, but no tensor is stored quantized",
        "the tensors that belong to it, or the configuration without its quantization for ordinary weights",
        outcome.method, outcome.source,
    )  # fmt: skip


def _conflict(found: list[FoundConfig], recognized: list[Recognized]) -> Refused | None:
    first = recognized[0]
    for config, other in zip(found[1:], recognized[1:], strict=True):
        if other.method != first.method:
            reason = f"{first.source} says {first.method} but {other.source} says {other.method}"
            return Refused(reason, "one configuration", first.method, first.source)
        ours, theirs = _flat(found[0].body), _flat(config.body)
        for key in _MUST_AGREE:
            if key in ours and key in theirs and ours[key] != theirs[key]:
                reason = f"{first.source} says {key} {ours[key]!r} but {other.source} says {theirs[key]!r}"
                return Refused(reason, "one configuration", first.method, first.source)
    return None


def _flat(body: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = body.get("quantization")
    return inner if isinstance(inner, Mapping) else body


def find_configs(checkpoint: Checkpoint) -> list[FoundConfig]:
    """Every quantization configuration of a checkpoint, the fullest first; equal ones once."""
    found = [config for name, body in _files(checkpoint) for config in _in_file(name, body)]
    distinct: list[FoundConfig] = []
    for config in found:
        if all(config.body != other.body for other in distinct):
            distinct.append(config)
    return distinct


#: What a file that is a quantization configuration as a whole holds, when it does not name its method.
_STANDALONE = ({"config_groups"}, {"w_bit", "q_group_size"}, {"bits", "group_size"})
#: hf_quant_config.json knows group sizes that config.json does not, so it comes first.
_ORDER = ("hf_quant_config.json", "config.json")


def _files(checkpoint: Checkpoint) -> Iterator[tuple[str, Mapping[str, Any]]]:
    configs = dict(checkpoint.configs)
    if checkpoint.is_file:  # one file may stand for several, an object for each
        body = next(iter(configs.values()))
        if body and all(key.endswith(".json") and isinstance(value, Mapping) for key, value in body.items()):
            configs = dict(body)
    for name in sorted(configs, key=lambda n: (_ORDER.index(n) if n in _ORDER else len(_ORDER), n)):
        yield name, configs[name]


def _in_file(name: str, body: Mapping[str, Any]) -> Iterator[FoundConfig]:
    nested = list(_nested(name, body, (), body))
    if nested:
        yield from nested
        return
    inner = body.get("quantization")
    if isinstance(inner, Mapping):
        # hf_quant_config.json keeps its whole body; params.json holds the configuration under the key
        yield FoundConfig(body, name) if "quant_algo" in inner else FoundConfig(inner, name, ("quantization",), body)
    elif isinstance(body.get("quant_method"), str) or any(keys <= body.keys() for keys in _STANDALONE):
        yield FoundConfig(body, name)


def _nested(
    name: str, body: Mapping[str, Any], path: tuple[str, ...], model: Mapping[str, Any]
) -> Iterator[FoundConfig]:
    """Configurations in ``body`` and below; ``model`` is the object that holds ``body``."""
    for key in _KEYS:
        value = body.get(key)
        if value and key == "compression_config" and isinstance(value, Mapping):  # the older key of one tool
            value = {"quant_method": "compressed-tensors", **value}
        if value:
            yield FoundConfig(value if isinstance(value, Mapping) else {key: value}, name, (*path, key), model)
    if len(path) < _MAX_DEPTH:
        for key, value in body.items():
            if isinstance(value, Mapping) and key not in _KEYS:
                yield from _nested(name, value, (*path, key), body)
