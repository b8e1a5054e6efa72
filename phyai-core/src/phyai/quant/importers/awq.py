"""AWQ configurations (AutoAWQ, GPTQModel), and the older ``quant_config.json`` with other key names.

| tensor | holds |
| --- | --- |
| ``qweight`` | int32 ``[K, N * bits / 32]``: unsigned codes packed along the OUTPUT, 4-bit ones in the order 0, 2, 4, 6, 1, 3, 5, 7 |
| ``qzeros`` | int32 ``[groups, N * bits / 32]``, packed the same way, no minus one |
| ``scales`` | ``[groups, N]`` |

Only the ``gemm`` form is read. Facts were checked against GPTQModel 7.7.0.
"""  # noqa: E501

from __future__ import annotations

from phyai.quant.checkpoint import Checkpoint
from phyai.quant.importers.base import FoundConfig, Recognized, Refuse, integer, method_of, rule, string_list
from phyai.quant.plan import QuantPlan, QuantRule
from phyai.quant.scheme import QuantScheme, TensorQuant
from phyai.quant.storage import FLOAT_SCALES, LayerTensors, Storage, StoredLayer, with_scale_dtype


def recognize(found: FoundConfig, checkpoint: Checkpoint) -> Recognized | None:
    """See :class:`phyai.quant.importers.base.Importer`."""
    body = found.body
    legacy = not found.path and "w_bit" in body and "q_group_size" in body
    if method_of(body) != "awq" and not legacy:
        return None
    bits_key, group_key = ("w_bit", "q_group_size") if legacy else ("bits", "group_size")
    bits, size = integer(body, bits_key, 4), integer(body, group_key, 128)
    if bits not in range(2, 9):
        raise Refuse(f"AWQ with {bits} bits is not supported", "4 bits")
    if size != -1 and size < 1:
        raise Refuse(f"{group_key} must be positive, or -1 for a scale per output, not {size}")
    version = str(body.get("version") or body.get("format") or body.get("checkpoint_format") or "gemm").lower()
    if version != "gemm":
        raise Refuse(f"AWQ version {version!r} is not supported", "an export with version gemm")
    zero_point = body.get("zero_point", not body.get("sym", False))
    quant = TensorQuant(
        f"{'uint' if zero_point else 'int'}{bits}",
        "group" if size > 0 else "channel",
        group_size=size if size > 0 else None,
        zero_point="int" if zero_point else None,
        scale_dtype="fp16",
    )
    skipped = string_list(body, "modules_to_not_convert")
    rules = [rule("glob", f"*{name}*", None, id="skipped") for name in skipped]
    if not checkpoint.tensors:  # where there are tensors, what is stored decides
        rules.append(rule("name", "lm_head", None, id="by convention"))
    rules.append(QuantRule(((),), QuantScheme(quant), storage="awq_gemm", id="awq"))
    return Recognized("awq", QuantPlan(tuple(rules)), found.source, STORAGES)


def _check(layer: LayerTensors, scheme: QuantScheme) -> StoredLayer:
    bits = scheme.weight.bits
    k, width = layer.take("qweight", "weight", dtypes=("I32",), ndim=2).shape
    n = layer.take("scales", "scale", dtypes=FLOAT_SCALES, ndim=2).shape[1]
    groups = scheme.weight.groups(k)
    scale = layer.taken["scale"]
    if scale.shape != (groups, n) or width != -(-n * bits // 32):
        raise layer.error("scales", f"has shape {list(scale.shape)}; it must be [{groups}, {width * 32 // bits}]")
    shapes = [(groups, width)]
    if scheme.weight.zero_point:
        layer.take("qzeros", "zero_point", dtypes=("I32",), shapes=shapes)
    else:
        layer.take_optional("qzeros", "zero_point", dtypes=("I32",), shapes=shapes)
    return layer.finish((n, k), with_scale_dtype(scheme, scale), "awq_gemm")


#: The one form that is read.
STORAGES: dict[str, Storage] = {"awq_gemm": Storage("awq_gemm", _check, "phyai.quant.realize.gptq:awq_gemm")}
