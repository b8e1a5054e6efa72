"""From tensors to facts, and the generated guard that makes a remembered call cheap.

Nothing here imports a tensor library: a tensor is anything with ``shape`` and ``dtype``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from keyword import iskeyword
from typing import Any

from phyai.calls import checked, with_derived
from phyai.dims import bind_dims, dim_names
from phyai.errors import CallError, DeclarationError
from phyai.facts import Facts, canonical_dtype
from phyai.op import Op, Tensor

#: A guard forgets its shortcuts beyond so many, so that varied shapes cannot fill the memory.
MAX_SHORTCUTS = 4096


def dtype_name(tensor: Any) -> str:
    """The canonical dtype of anything that has a ``dtype``."""
    return canonical_dtype(str(tensor.dtype))


def input_dims(op: Op) -> frozenset[str]:
    """Names of the dimensions that the inputs of a call show. Metadata goes to ``plan`` only: what it alone shows
    is not a fact of the call."""
    return frozenset(name for tensor in op.inputs for name in dim_names(tensor))


class Reader:
    """Checks the inputs of one site's calls against the signature, and yields their facts."""

    def __init__(self, op: Op, site: str, static: Facts) -> None:
        self._op = op
        self._site = site
        self._static = static
        self.present = tuple(t for t in op.inputs if not t.optional or f"dtype.{t.name}" in static)
        self._dims = {name[6:]: value for name, value in static.items() if name.startswith("shape.")}

    def facts(self, inputs: Sequence[Any]) -> Facts:
        """The facts of a call.

        Raises:
            CallError: the inputs do not satisfy the signature, or differ from what the site was bound to.
        """
        tensors = dict(zip((t.name for t in self._op.inputs), inputs, strict=True))
        expected = {t.name for t in self.present}
        for name, tensor in tensors.items():
            if tensor is None and name in expected:
                raise self._error(f"{name} is missing", tensors)
            if tensor is not None and name not in expected:
                raise self._error(f"{name} is given, but the site was bound without it (present=…)", tensors)
        for name in expected:
            bound, found = self._static[f"dtype.{name}"], dtype_name(tensors[name])
            if found != bound:
                raise self._error(f"{name} has dtype {found}, but the site was bound to {bound}", tensors)
        shapes = {name: tuple(tensors[name].shape) for name in expected}
        try:
            dims = bind_dims(self.present, shapes)
        except CallError as error:
            raise self._error(str(error), tensors) from None
        for name, size in dims.items():
            if self._dims.get(name, size) != size:
                raise self._error(f"{name}={size}, but the site was bound to {name}={self._dims[name]}", tensors)
        try:
            return self.with_dims(dims)
        except CallError as error:
            raise self._error(str(error), tensors) from None

    def with_dims(self, dims: Mapping[str, int]) -> Facts:
        """The facts of a call whose inputs have these dimensions.

        Raises:
            CallError: no call has them together.
        """
        sizes = {f"shape.{name}": size for name, size in dims.items()}
        return checked(self._op, with_derived(self._op, {**self._static, **sizes}))

    def _error(self, problem: str, tensors: Mapping[str, Any]) -> CallError:
        signature = ", ".join(f"{t.name}[{' '.join(t.dims)}]{'?' if t.optional else ''}" for t in self._op.inputs)
        given = ", ".join(f"{n}{tuple(t.shape)} {dtype_name(t)}" for n, t in tensors.items() if t is not None)
        return CallError(f"{self._op.name} at site {self._site}: {problem}\n  signature: {signature}\n  given: {given}")


def guard(
    op: Op,
    present: Sequence[Tensor],
    shortcuts: Mapping[Any, Callable[..., Any]],
    slow: Callable[..., Any],
    *,
    keyed: Sequence[Tensor],
    dtypes: bool,
    fitting: Container[Any],
    fit: Callable[[Any, tuple[Any, ...], Any], None],
) -> Callable[..., Any]:
    """A function ``run(*inputs, out=None, state=None)`` that looks a call up in ``shortcuts``, else calls ``slow``.

    It is generated for the signature, so that a remembered call costs one dictionary look-up. The key is the
    shape, and with ``dtypes`` the dtype, of every tensor in ``keyed``: see :func:`shortcut_key`. An ``out`` costs one
    more, in ``fitting``; one that is not there goes to ``fit``, with what it looks like beside these inputs (None
    where it does not look like tensors), to be refused or remembered.
    """
    names = [t.name for t in op.inputs]
    for name in names:
        if not name.isidentifier() or iskeyword(name):
            raise DeclarationError(f"{op.name}: the input {name!r} is no Python name")
    required = sum(1 for _ in _leading_required(op))
    signature = ", ".join(n if i < required else f"{n}=None" for i, n in enumerate(names))
    key = ", ".join(f"{t.name}.{a}" for t in keyed for a in _looked_at(dtypes))
    call = ", ".join(names)
    unexpected = " or ".join(f"{t.name} is not None" for t in op.inputs if t not in present)
    refuse = f"    if {unexpected}:\n        return slow(({call},), out, state)\n" if unexpected else ""
    source = (
        f"def run({signature}, out=None, state=None):\n"
        f"{refuse}"
        f"    try:\n"
        f"        kernel = shortcuts[{key}]\n"
        f"    except (KeyError, AttributeError):\n"  # not met before; or an input that is no tensor
        f"        return slow(({call},), out, state)\n"
        f"    if out is None and state is None:\n"  # keywords cost a tenth of the look-up
        f"        return kernel({call})\n"
        f"    if out is not None:\n"
        f"        try:\n"
        f"            looks = {_looks(op, present)}\n"
        f"        except (AttributeError, IndexError, TypeError):\n"  # no tensors, or not as many
        f"            looks = None\n"
        f"        if looks not in fitting:\n"
        f"            fit(looks, ({call},), out)\n"
        f"    return kernel({call}, out=out, state=state)\n"
    )
    scope: dict[str, Any] = {"shortcuts": shortcuts, "slow": slow, "fitting": fitting, "fit": fit}
    exec(compile(source, f"<call site of {op.name}>", "exec"), scope)
    return scope["run"]  # type: ignore[no-any-return]


#: What tells places for an output apart.
_PLACE = ("shape", "dtype", "device", "stride()")


def shortcut_key(inputs: Mapping[str, Any], keyed: Sequence[Tensor], *, dtypes: bool) -> Any:
    """The key under which :func:`guard` looks a call up."""
    parts = [getattr(inputs[t.name], a) for t in keyed for a in _looked_at(dtypes)]
    return parts[0] if len(parts) == 1 else tuple(parts)


def _looked_at(dtypes: bool) -> tuple[str, ...]:
    return ("shape", "dtype") if dtypes else ("shape",)


def _looks(op: Op, present: Sequence[Tensor]) -> str:
    """The source of all that tells whether an ``out`` fits a call: shapes, and what else tells outputs apart."""
    several = len(op.outputs) != 1
    places = [f"out[{i}]" if several else "out" for i in range(len(op.outputs))]
    parts = [f"{t.name}.shape" for t in present] + [f"{p}.{a}" for p in places for a in _PLACE]
    return f"({', '.join((*parts, *(('type(out)', 'len(out)') if several else ())))},)"


def tensors_with(present: Sequence[Tensor], dims: Collection[str]) -> tuple[Tensor, ...]:
    """The first of ``present`` that show ``dims``, each dimension once."""
    found: list[Tensor] = []
    missing = set(dims)
    for tensor in present:
        shown = missing & set(dim_names(tensor))
        if shown:
            found.append(tensor)
            missing -= shown
    return tuple(found)


def _leading_required(op: Op) -> list[Tensor]:
    """The inputs up to the first optional one: Python wants those after it to have defaults too."""
    found = []
    for tensor in op.inputs:
        if tensor.optional:
            break
        found.append(tensor)
    return found
