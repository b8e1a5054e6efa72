"""How a tool stores one quantized layer: which tensors, of which shapes and dtypes.

A :class:`Storage` looks at a layer's tensors (their headers, not their values), checks every one, and
says the layer's logical shape. What is missing, left over or of another shape is an error that names
the layer and the tensor. Reading the values is :mod:`phyai.quant.realize`'s part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from phyai.errors import CheckpointError
from phyai.files.safetensors_file import TensorInfo
from phyai.quant.checkpoint import Checkpoint
from phyai.quant.scheme import QuantScheme

#: Tensors beside a layer's own that belong to the key/value cache; they are reported, not loaded.
KV_CACHE_SUFFIXES = frozenset(
    {"k_scale", "v_scale", "q_scale", "prob_scale", "k_zero_point", "v_zero_point", "k_bias", "v_bias"}
)

#: safetensors dtypes of floating scales, and what schemes call them.
SCALE_DTYPE_NAMES: dict[str, str] = {
    "F32": "fp32", "BF16": "bf16", "F16": "fp16", "F8_E4M3": "fp8_e4m3", "F8_E8M0": "e8m0", "U8": "e8m0",
}  # fmt: skip
FLOAT_SCALES: tuple[str, ...] = ("F32", "BF16", "F16")
PLAIN_DTYPES: tuple[str, ...] = ("F64", "F32", "BF16", "F16")


@attrs.frozen
class StoredLayer:
    """One layer of a checkpoint, checked: what it means and where each of its tensors is.

    ``scheme`` is None for a layer in ordinary precision. ``tensors`` maps roles (``weight``, ``scale``,
    ``zero_point``, ``bias``, …) to where they lie. ``problem`` is set when it cannot be loaded.
    """

    name: str
    shape: tuple[int, int] | None
    scheme: QuantScheme | None
    storage: str | None
    tensors: Mapping[str, TensorInfo]
    notes: tuple[str, ...] = ()
    problem: str | None = None
    details: Mapping[str, Any] = attrs.field(factory=dict)

    def described(self) -> tuple[QuantScheme, tuple[int, int]]:
        """Scheme and shape of a quantized layer, for its decoder."""
        if self.scheme is None or self.shape is None:
            raise CheckpointError(f"{self.name} is not a quantized layer that can be loaded")
        return self.scheme, self.shape


class LayerTensors:
    """The tensors of one layer while a storage takes them one by one."""

    def __init__(self, checkpoint: Checkpoint, name: str, tensors: Mapping[str, TensorInfo]) -> None:
        self.checkpoint = checkpoint
        self.name = name
        self._left = dict(tensors)
        self.taken: dict[str, TensorInfo] = {}
        self.notes: list[str] = []
        self.details: dict[str, Any] = {}

    def has(self, suffix: str) -> bool:
        return suffix in self._left

    def error(self, suffix: str, text: str) -> CheckpointError:
        return CheckpointError(f"{self.name}: {suffix} {text}")

    def take(
        self,
        suffix: str | Sequence[str],
        role: str,
        *,
        dtypes: Sequence[str],
        shapes: Iterable[tuple[int, ...]] | None = None,
        ndim: int | None = None,
    ) -> TensorInfo:
        """Take the tensor ``suffix`` (the first of several that is there) as ``role``.

        Raises:
            CheckpointError: it is missing, or its dtype or shape is none of those allowed.
        """
        info = self.take_optional(suffix, role, dtypes=dtypes, shapes=shapes, ndim=ndim)
        if info is None:
            names = suffix if isinstance(suffix, str) else " or ".join(suffix)
            beside = ", ".join(sorted([i.name.rpartition(".")[2] for i in self.taken.values()] + list(self._left)))
            raise self.error(names, f"is missing (the layer has {beside})")
        return info

    def take_optional(
        self,
        suffix: str | Sequence[str],
        role: str,
        *,
        dtypes: Sequence[str],
        shapes: Iterable[tuple[int, ...]] | None = None,
        ndim: int | None = None,
    ) -> TensorInfo | None:
        """As :meth:`take`, but None when the tensor is not there."""
        suffixes = (suffix,) if isinstance(suffix, str) else tuple(suffix)
        name = next((s for s in suffixes if s in self._left), None)
        if name is None:
            return None
        info = self._left.pop(name)
        allowed = list(shapes) if shapes is not None else None
        if info.dtype not in dtypes:
            raise self.error(name, f"is {info.dtype}; this form stores {' or '.join(dtypes)}")
        if (allowed is not None and info.shape not in allowed) or (ndim is not None and len(info.shape) != ndim):
            wanted = " or ".join(str(list(s)) for s in dict.fromkeys(allowed)) if allowed else f"{ndim} dimensions"
            raise self.error(name, f"has shape {list(info.shape)}; it must be {wanted}")
        self.taken[role] = info
        return info

    def take_bias(self, n: int) -> None:
        self.take_optional("bias", "bias", dtypes=PLAIN_DTYPES, shapes=[(n,)])

    def finish(
        self, shape: tuple[int, int], scheme: QuantScheme | None, storage: str | None, notes: Sequence[str] = ()
    ) -> StoredLayer:
        """The checked layer.

        Raises:
            CheckpointError: tensors are left that nobody took.
        """
        self.take_bias(shape[0])
        kv_cache = sorted(self._left.keys() & KV_CACHE_SUFFIXES)
        surplus = sorted(self._left.keys() - KV_CACHE_SUFFIXES)
        if surplus:
            meaning = scheme.name if scheme else "a layer in ordinary precision"
            raise self.error(", ".join(surplus), f"should not be there: {meaning} has no such tensor")
        if kv_cache:
            notes = (*notes, f"key/value cache tensors beside it: {', '.join(kv_cache)}")
        return StoredLayer(
            self.name, shape, scheme, storage, self.taken, (*self.notes, *notes), details=dict(self.details)
        )


@attrs.frozen
class Storage:
    """One tool's way to store a quantized layer.

    ``check(layer, scheme)`` takes the layer's tensors and returns the :class:`StoredLayer`; ``scheme`` may be
    refined by what is there (the scales' dtype). ``decode`` is ``"module:function"``: it takes the tensors
    by role, the stored layer's scheme, shape and details, and returns a
    :class:`phyai.quant.weight.QuantizedWeight`.
    """

    name: str
    check: Callable[[LayerTensors, QuantScheme], StoredLayer] = attrs.field(repr=False)
    decode: str | Callable[..., Any] = attrs.field(repr=False)


def with_scale_dtype(scheme: QuantScheme, scale: TensorInfo) -> QuantScheme:
    """The scheme with the weight's scale type as it is stored."""
    return attrs.evolve(scheme, weight=attrs.evolve(scheme.weight, scale_dtype=SCALE_DTYPE_NAMES[scale.dtype]))


def scalar_shapes() -> list[tuple[int, ...]]:
    """The shapes in which tools store one number."""
    return [(), (1,), (1, 1)]
