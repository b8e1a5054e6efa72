"""What a quantized tensor means: element type, granularity, scales. Mathematics only, no memory form.

A weight ``W`` of shape ``[N, K]`` with codes ``c`` stands for::

    W[n, k] = (value(c[n, k]) - zero_point[n, g]) * scale[n, g] * second_scale

where ``g`` is the group of ``(n, k)``: the whole tensor, the row (``channel``), ``k // group_size`` or
``g_idx[k]`` (``group``), or the block ``(n // block_n, k // block_k)``. With ``zero_point="float"`` the
stored zero point is not rounded to an integer; the formula is the same. ``pre_scale`` is a vector
``[K]`` that the *input* is multiplied by before anything else (SmoothQuant, AWQ).

>>> scheme = QuantScheme(TensorQuant("int4", "group", group_size=128))
>>> scheme.name, scheme.facts()["quant.group_size"]
('w4a16_g128', 128)
>>> QuantScheme(NVFP4, NVFP4_INPUT).name
'nvfp4_a4'
"""

from __future__ import annotations

from typing import Any

import attrs

from phyai.errors import DeclarationError
from phyai.facts import FactValue
from phyai.quant.elements import Element, element

GRANULARITIES: tuple[str, ...] = ("tensor", "channel", "group", "block", "token")
SCALE_DTYPES: tuple[str, ...] = ("fp32", "bf16", "fp16", "e8m0", "fp8_e4m3")

#: How a scale is computed from the largest magnitude ``amax`` of its group, where it is computed at all
#: (dynamic inputs, and weights quantized at load). ``amax``: amax / largest value. ``full_range``:
#: amax / half of the whole code range (127.5 for int8), as compressed-tensors does. ``inverse``: as ``amax``,
#: but values are multiplied by largest value / amax, as ModelOpt does (which decides ties). ``mx_floor``,
#: ``mx_ceil``, ``mx_even``: a power of two, rounded as OCP MX 1.0, as ModelOpt, or to nearest.
SCALE_RULES: tuple[str, ...] = ("amax", "full_range", "inverse", "mx_floor", "mx_ceil", "mx_even")


@attrs.frozen
class TensorQuant:
    """How one tensor (a weight or an activation) is quantized.

    Attributes:
        dtype: element type, see :data:`phyai.quant.elements.ELEMENT_NAMES`.
        granularity: what shares a scale: ``tensor``; ``channel`` (a weight's output row); ``token`` (an
            activation's row); ``group`` (``group_size`` inputs of a row); ``block`` (``block_shape``).
        group_size: inputs per scale, for ``group``. The last group of a row may be short.
        block_shape: (outputs, inputs) per scale, for ``block``. Edge blocks may be short.
        zero_point: None (symmetric), ``int`` or ``float``.
        scale_dtype: type of the stored scales; ``e8m0`` is a power of two in eight bits.
        second_scale: one more float32 scale for the whole tensor multiplies every scale.
        dynamic: the scale is computed from the values at run time. With ``second_scale`` that scale is
            stored and only the group's own is computed.
        g_idx: input ``k`` belongs to group ``g_idx[k]`` instead of ``k // group_size``.
        scale_rule: how a scale that is computed follows from the data, see :data:`SCALE_RULES`.
    """

    dtype: str
    granularity: str
    group_size: int | None = None
    block_shape: tuple[int, int] | None = None
    zero_point: str | None = None
    scale_dtype: str = "fp32"
    second_scale: bool = False
    dynamic: bool = False
    g_idx: bool = False
    scale_rule: str = "amax"

    def __attrs_post_init__(self) -> None:
        kind = element(self.dtype).kind
        _one_of("granularity", self.granularity, GRANULARITIES)
        _one_of("scale_dtype", self.scale_dtype, SCALE_DTYPES)
        _one_of("scale_rule", self.scale_rule, SCALE_RULES)
        _one_of("zero_point", self.zero_point, (None, "int", "float"))
        if (self.granularity == "group") != (self.group_size is not None):
            raise DeclarationError("group_size belongs to granularity 'group', and to no other")
        if (self.granularity == "block") != (self.block_shape is not None):
            raise DeclarationError("block_shape belongs to granularity 'block', and to no other")
        for size in (self.group_size, *(self.block_shape or ())):
            if size is not None and size < 1:
                raise DeclarationError(f"group and block sizes are at least 1, not {size}")
        if self.g_idx and self.granularity != "group":
            raise DeclarationError("g_idx assigns inputs to groups, so the granularity must be 'group'")
        if kind == "float" and self.zero_point is not None:
            raise DeclarationError(f"{self.dtype} is a floating type and has no zero point")

    @property
    def element(self) -> Element:
        return element(self.dtype)

    @property
    def bits(self) -> int:
        return self.element.bits

    @property
    def symmetric(self) -> bool:
        return self.zero_point is None

    @property
    def format(self) -> str:
        """The element format's short name: ``nvfp4``, ``mxfp4``, ``mxfp8``, …, else the element type."""
        if self.granularity == "group" and self.scale_dtype == "e8m0" and self.group_size == 32:
            return {"fp4_e2m1": "mxfp4", "fp8_e4m3": "mxfp8", "fp8_e5m2": "mxfp8_e5m2", "fp6_e3m2": "mxfp6_e3m2",
                    "fp6_e2m3": "mxfp6_e2m3", "int8": "mxint8"}.get(self.dtype, self.dtype)  # fmt: skip
        two_level = self.second_scale and self.scale_dtype == "fp8_e4m3"
        if two_level and self.dtype == "fp4_e2m1" and self.group_size == 16:
            return "nvfp4"
        return self.dtype

    def groups(self, k: int) -> int:
        """How many scales one row of ``k`` inputs has, for ``group`` and ``block``; else 1."""
        size = self.group_size or (self.block_shape[1] if self.block_shape else k)
        return -(-k // max(size, 1))

    def scale_shape(self, n: int, k: int) -> tuple[int, int]:
        """The shape of a weight's scales in the plain layout: always two-dimensional."""
        if self.granularity == "tensor":
            return 1, 1
        if self.granularity == "block":
            assert self.block_shape is not None
            return -(-n // self.block_shape[0]), self.groups(k)
        return n, self.groups(k)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: every field that is set, and ``symmetric``."""
        values = attrs.asdict(self, filter=lambda a, v: v is not None and v is not False)
        if self.scale_rule == "amax":
            del values["scale_rule"]
        if self.block_shape:
            values["block_shape"] = list(self.block_shape)
        return {**values, "symmetric": self.symmetric}


@attrs.frozen
class QuantScheme:
    """How one linear layer is quantized: its weight, its input, and (rarely) its output.

    ``input`` None means that activations stay in 16 bits. ``pre_scale``: the input is first multiplied
    by a stored vector ``[K]``.
    """

    weight: TensorQuant
    input: TensorQuant | None = None
    output: TensorQuant | None = None
    pre_scale: bool = False

    @property
    def name(self) -> str:
        """The short name that policies and tables use, such as ``w4a16_g128``."""
        w, a = self.weight, self.input
        activation = f"a{a.bits if a else 16}"
        if a is not None and (a.element.kind == "float") != (w.element.kind == "float"):
            activation += "fp" if a.element.kind == "float" else "int"
        named = w.format != w.dtype
        if w.element.kind == "float":
            head = f"{w.format.removesuffix('_e4m3')}_{activation}"
        else:
            head = f"w{w.bits}{activation}" if not named else f"{w.format}_{activation}"
        parts = [head]
        if not named:
            parts.append(_granularity_suffix(w))
        if w.zero_point is not None:
            parts.append("zp" if w.zero_point == "int" else "zpf")
        if w.g_idx:
            parts.append("gidx")
        if a is not None and not a.dynamic:
            parts.append("static")
        return "_".join(parts)

    def facts(self) -> dict[str, FactValue]:
        """The ``quant.*`` facts of a call with this scheme. ``quant.layout`` is the lowering's to add."""
        w = self.weight
        facts: dict[str, FactValue | None] = {
            "quant.scheme": self.name,
            "quant.format": w.format,
            "quant.weight": w.dtype,
            "quant.granularity": w.granularity,
            "quant.group_size": w.group_size,
            "quant.block_n": w.block_shape[0] if w.block_shape else (1 if w.group_size else None),
            "quant.block_k": w.block_shape[1] if w.block_shape else w.group_size,
            "quant.symmetric": w.symmetric,
            "quant.zero_point": w.zero_point,
            "quant.scale_dtype": w.scale_dtype,
            "quant.second_scale": w.second_scale,
            "quant.g_idx": w.g_idx,
            "quant.pre_scale": self.pre_scale,
        }
        a = self.input
        if a is not None:
            facts["quant.activation"] = a.dtype
            facts["quant.activation_granularity"] = a.granularity
            facts["quant.activation_dynamic"] = a.dynamic
            facts["quant.fields.activation_format"] = a.format
            facts["quant.fields.activation_scale_rule"] = a.scale_rule
            if a.group_size is not None:
                facts["quant.fields.activation_group_size"] = str(a.group_size)
            if a.zero_point is not None:
                facts["quant.fields.activation_zero_point"] = a.zero_point
        if self.output is not None:
            facts["quant.fields.output"] = self.output.dtype
        return {name: value for name, value in facts.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        out: dict[str, Any] = {"name": self.name, "weight": self.weight.to_dict()}
        out["input"] = self.input.to_dict() if self.input else None
        if self.output:
            out["output"] = self.output.to_dict()
        if self.pre_scale:
            out["pre_scale"] = True
        return out


def _one_of(field: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise DeclarationError(f"{field} is {value!r}; it is one of {', '.join(str(a) for a in allowed)}")


def _granularity_suffix(quant: TensorQuant) -> str:
    if quant.granularity == "group":
        return f"g{quant.group_size}"
    if quant.granularity == "block":
        assert quant.block_shape is not None
        return "block{}x{}".format(*quant.block_shape)
    return quant.granularity


#: NVFP4: e2m1 in groups of 16 with e4m3 scales and one float32 scale for the tensor.
NVFP4 = TensorQuant("fp4_e2m1", "group", group_size=16, scale_dtype="fp8_e4m3", second_scale=True)
#: OCP microscaling: groups of 32 with a power-of-two scale.
MXFP4 = TensorQuant("fp4_e2m1", "group", group_size=32, scale_dtype="e8m0", scale_rule="mx_even")
MXFP6_E3M2 = attrs.evolve(MXFP4, dtype="fp6_e3m2")
MXFP6_E2M3 = attrs.evolve(MXFP4, dtype="fp6_e2m3")
MXFP8 = attrs.evolve(MXFP4, dtype="fp8_e4m3")
MXFP8_E5M2 = attrs.evolve(MXFP4, dtype="fp8_e5m2")
NVFP4_INPUT = attrs.evolve(NVFP4, dynamic=True)
MXFP4_INPUT = attrs.evolve(MXFP4, dynamic=True)
MXFP8_INPUT = attrs.evolve(MXFP8, dynamic=True)

#: Descriptions that have names of their own, as policies may write them for a dtype.
NAMED: dict[str, TensorQuant] = {
    "nvfp4": NVFP4, "mxfp4": MXFP4, "mxfp8": MXFP8, "mxfp8_e5m2": MXFP8_E5M2,
    "mxfp6_e3m2": MXFP6_E3M2, "mxfp6_e2m3": MXFP6_E2M3,
}  # fmt: skip
