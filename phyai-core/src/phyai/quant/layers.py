"""A checkpoint's layers, one by one: what each means, where its tensors are, and what stands in the way.

What is stored and what the configuration says must agree. A layer that the configuration covers but
that is stored in ordinary precision is taken as stored, with a note (some tools skip layers without listing
them); a layer that is stored quantized but that the configuration does not cover is a problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from phyai.errors import CheckpointError
from phyai.files.safetensors_file import TensorInfo
from phyai.quant.checkpoint import Checkpoint
from phyai.quant.importers.base import Recognized
from phyai.quant.storage import KV_CACHE_SUFFIXES, PLAIN_DTYPES, LayerTensors, StoredLayer

#: Suffixes that only quantized layers have.
QUANTIZED_SUFFIXES = frozenset(
    {
        "weight_packed", "weight_scale", "weight_scale_inv", "weight_scale_2", "weight_global_scale", "weight_shape",
        "weight_zero_point", "weight_g_idx", "qweight", "qzeros", "scales", "g_idx", "input_scale", "activation_scale",
        "input_global_scale", "input_zero_point", "output_scale", "pre_quant_scale", "qscale_weight", "scale_inv",
        "SCB", "absmax", "quant_map", "nested_absmax",
    }
)  # fmt: skip
_INTEGERS = frozenset({"I8", "U8", "I32", "F8_E4M3", "F8_E5M2", "F8_E8M0"})


def group_by_module(names: Iterable[str]) -> dict[str, list[str]]:
    """Tensor names by the module that they belong to, in the order of the first of each."""
    modules: dict[str, list[str]] = {}
    for name in names:
        modules.setdefault(name.rpartition(".")[0], []).append(name)
    return modules


def guess_class(name: str) -> str:
    """The class a module probably has, by its name: only embeddings are told from linears."""
    last = name.rpartition(".")[2].lower()
    return "Embedding" if "embed" in last or last in ("wte", "wpe") else "Linear"


def looks_quantized(suffix: str, info: TensorInfo) -> bool:
    """Whether a tensor can only belong to a quantized layer."""
    if suffix in QUANTIZED_SUFFIXES or suffix.startswith(("_weight_", "bitsandbytes__")):
        return True
    if suffix.endswith(("_blocks", "_scales")) and info.dtype == "U8":  # packed mixture-of-experts tensors
        return True
    weight = suffix == "weight" or suffix.endswith(("_proj", "_packed"))
    return weight and len(info.shape) >= 2 and info.dtype in _INTEGERS


def quantized_tensors(checkpoint: Checkpoint) -> list[str]:
    """The names of all tensors that look quantized."""
    return [n for n, info in checkpoint.tensors.items() if looks_quantized(n.rpartition(".")[2], info)]


def stored_layers(
    checkpoint: Checkpoint, recognized: Recognized | None, names: Iterable[str] | None = None
) -> dict[str, StoredLayer]:
    """Every linear layer of a checkpoint by module name (or those of ``names``; a string is one), checked.

    Problems do not raise: a layer that cannot be loaded has ``problem`` set.

    Raises:
        CheckpointError: ``names`` holds a module that the checkpoint has no linear layer for.
    """
    wanted = [names] if isinstance(names, str) else None if names is None else list(names)
    layers = {}
    for module, tensors in group_by_module(checkpoint.tensors).items():
        if wanted is not None and module not in wanted:
            continue
        infos = {name.removeprefix(module + "."): checkpoint.tensors[name] for name in tensors}
        layer = stored_layer(checkpoint, recognized, module, infos)
        if layer is not None:
            layers[module] = layer
    for name in wanted or ():
        if name not in layers:
            raise CheckpointError(f"the checkpoint has no linear layer {name!r}{_near(name, checkpoint)}")
    return layers


def _near(name: str, checkpoint: Checkpoint) -> str:
    import difflib

    near = difflib.get_close_matches(name, list(group_by_module(checkpoint.tensors)), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def stored_layer(
    checkpoint: Checkpoint, recognized: Recognized | None, module: str, infos: Mapping[str, TensorInfo]
) -> StoredLayer | None:
    """One module's layer; None when it is not a linear layer."""
    quantized = [s for s, info in infos.items() if s not in KV_CACHE_SUFFIXES and looks_quantized(s, info)]
    weight = infos.get("weight")
    plain = weight is not None and len(weight.shape) == 2 and weight.dtype in PLAIN_DTYPES
    cls = guess_class(module)
    if not quantized and (not plain or cls == "Embedding"):
        return None
    rule = recognized.plan.rule(module, cls) if recognized else None
    layer = LayerTensors(checkpoint, module, infos)
    try:
        if rule is None or rule.scheme is None:
            if quantized:
                why = f"{rule.id} leaves it out" if rule else "no rule of the configuration covers it"
                raise layer.error(", ".join(sorted(quantized)), f"should not be there: {why}")
            return _plain(layer)
        if not quantized:
            return _plain(layer, f"covered by {rule.id}, but stored in ordinary precision")
        assert recognized is not None
        return recognized.storages[str(rule.storage)].check(layer, rule.scheme)
    except CheckpointError as error:
        scheme = rule.scheme if rule else None
        return StoredLayer(module, None, scheme, rule.storage if rule else None, infos, problem=str(error))


def _plain(layer: LayerTensors, *notes: str) -> StoredLayer:
    n, k = layer.take("weight", "weight", dtypes=PLAIN_DTYPES, ndim=2).shape
    return layer.finish((n, k), None, None, notes)
