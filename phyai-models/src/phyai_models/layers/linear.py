"""Linear layers, and the parameters of matrices that are used inside composite ops."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from phyai.errors import CheckpointError
from phyai.facts import FactValue
from phyai.quant import QuantScheme
from phyai.quant.realize import fuse
from phyai.quant.weight import QuantizedWeight

from phyai_models.layers.base import Layer
from phyai_models.layers.forms import same_form
from phyai_models.layers.scope import Scope
from phyai_models.weights import TensorSpec, WeightSource

_log = logging.getLogger("phyai.models")


@attrs.frozen
class Shard:
    """Rows of a fused matrix that are a matrix of their own in the checkpoint.

    ``path`` is its module path, by which a quantization rule finds it; ``source`` its name in the checkpoint.
    """

    path: str
    source: str
    rows: int

    @classmethod
    def of(cls, scope: Scope, name: str, rows: int) -> Shard:
        """The shard called ``name`` of the layer at ``scope``."""
        place = scope.at(name)
        return cls(place.path, place.source, rows)


@attrs.frozen(eq=False)
class LinearWeights:
    """What a matrix became: ``weight`` is a plain tensor or a :class:`phyai.quant.weight.QuantizedWeight`.

    ``layout`` is the one that a quantization rule forces on it.
    """

    weight: Any
    bias: torch.Tensor | None = None
    layout: str | None = None

    @property
    def bound(self) -> dict[str, Any]:
        """The weights of a call of ``gemm``."""
        return {"weight": self.weight} if self.bias is None else {"weight": self.weight, "bias": self.bias}

    @property
    def facts(self) -> Mapping[str, FactValue]:
        """The ``quant.*`` facts of its form; none for a plain tensor."""
        return self.weight.facts() if isinstance(self.weight, QuantizedWeight) else {}

    def layouts(self, weight: str = "weight") -> dict[str, str]:
        """The layout that is forced on it, when it is bound as the weight of that name."""
        return {} if self.layout is None else {weight: self.layout}

    def facts_of(self, part: str) -> dict[str, FactValue]:
        """The facts as those of one part of a composite op."""
        return {f"parts.{part}.{name}": value for name, value in self.facts.items()}


class LinearParameters:
    """A matrix ``[sum of rows, in_features]`` put together from shards, and its optional bias.

    :meth:`load` is where a matrix takes its final form, ``forms`` of what it became. The scope's quantization plan
    says which shards are quantized; usually the matrix stays one, and where its shards' forms differ it becomes
    several.
    """

    forms: list[Mapping[str, FactValue]]

    def __init__(self, scope: Scope, in_features: int, shards: Sequence[Shard], *, bias: bool = False) -> None:
        self.scope = scope
        self.in_features = in_features
        self.shards = tuple(shards)
        self.bias = bias

    def tensors(self) -> Iterator[TensorSpec]:
        for shard in self.shards:
            yield TensorSpec(f"{shard.source}.weight", (shard.rows, self.in_features), matrix=True)
            if self.bias:
                yield TensorSpec(f"{shard.source}.bias", (shard.rows,))

    def load(self, source: WeightSource) -> tuple[LinearWeights, ...]:
        """Read the matrix: one :class:`LinearWeights`, or consecutive ones that together give its rows.

        A shard that the checkpoint stores quantized is taken as it is; of the others the scope's plan says which are
        quantized now.

        Raises:
            CheckpointError: the plan wants a shard in another form than the checkpoint stores it.
        """
        weights = self._read_all(source)
        self._asked = self._asked_of(source)
        self.forms = [part.facts for part in weights]
        return weights

    def load_again(self, source: WeightSource) -> tuple[LinearWeights, ...]:
        """Read other values of what :meth:`load` read, in the same form.

        Raises:
            CheckpointError: theirs is another one.
        """
        weights = self._read_all(source)
        same_form(self.forms, [part.facts for part in weights], self.scope.path)
        return weights

    def require_form(self, source: WeightSource) -> None:
        """Refuse what :meth:`load_again` would, and keep nothing of it: what the form depends on is read.

        Raises:
            CheckpointError: the form of the values in ``source`` is another one than that of those in use.
        """
        asked = self._asked_of(source)
        if asked == self._asked and all(form.decides for form in asked):
            return
        if any(form.quantized for form in asked):
            self.load_again(source)
        else:
            same_form(self.forms, [{}], self.scope.path)

    def _asked_of(self, source: WeightSource) -> list[_Form]:
        return [self._form(source, shard) for shard in self.shards]

    def _read_all(self, source: WeightSource) -> tuple[LinearWeights, ...]:
        bias = self._stacked(source, "bias") if self.bias else None
        forms = self._asked_of(source)
        if not any(form.quantized for form in forms):
            return (LinearWeights(self._stacked(source, "weight", self.in_features), bias),)
        weights: list[LinearWeights] = []
        row = 0
        for layout, group in itertools.groupby(zip(self.shards, forms, strict=True), key=lambda pair: pair[1].layout):
            parts = fuse(self._read_group(source, list(group)))
            for note in dict.fromkeys(note for part in parts for note in part.notes):
                _log.info("%s", note)
            for part in parts:
                rows = part.weight.shape[0]
                weights.append(LinearWeights(part.weight, None if bias is None else bias[row : row + rows], layout))
                row += rows
        return tuple(weights)

    def _form(self, source: WeightSource, shard: Shard) -> _Form:
        rule = self.scope.quantization.rule(shard.path)
        scheme = self.scope.quantization.default if rule is None else rule.scheme
        stored = source.stored_quantized(shard.source)
        if stored is not None and scheme not in (None, stored.scheme):
            was, wanted = (s.name if s is not None else "unknown" for s in (stored.scheme, scheme))
            raise CheckpointError(
                f"{shard.path} is stored as {was} but the policy asks for {wanted}; "
                "only weights in ordinary precision can be quantized at load"
            )
        return _Form(scheme, rule.layout if rule is not None and scheme is not None else None, stored is not None)

    def _stacked(self, source: WeightSource, name: str, *columns: int) -> torch.Tensor:
        """The shards' tensors called ``name``, one below the other, each read straight into its place."""
        stacked = self.scope.empty(sum(shard.rows for shard in self.shards), *columns)
        row = 0
        for shard in self.shards:
            source.take(f"{shard.source}.{name}", stacked[row : row + shard.rows])
            row += shard.rows
        return stacked

    def _read_group(self, source: WeightSource, group: Sequence[tuple[Shard, _Form]]) -> dict[str, Any]:
        """The shards by path. Those that are quantized now into a format with a second scale, which is the whole
        tensor's, are read as one, so that they have it in common and can be one product."""
        found: dict[str, Any] = {}
        for form, run in itertools.groupby(group, key=lambda pair: pair[1]):
            shards = [shard for shard, _ in run]
            if len(shards) > 1 and not form.stored and form.scheme is not None and form.scheme.weight.second_scale:
                names = [(f"{shard.source}.weight", shard.rows) for shard in shards]
                shape = (sum(shard.rows for shard in shards), self.in_features)
                found[shards[0].path] = source.quantize(
                    names[0][0], shape, form.scheme, self.scope.quantization.method or "rtn", self.scope.device,
                    below=names[1:],
                )  # fmt: skip
            else:
                found |= {shard.path: self._read(source, shard, form) for shard in shards}
        return found

    def _read(self, source: WeightSource, shard: Shard, form: _Form) -> Any:
        name, shape = f"{shard.source}.weight", (shard.rows, self.in_features)
        if form.stored:
            return source.take_quantized(shard.source, self.scope.device)
        if form.scheme is None:
            weight = self.scope.empty(*shape)
            source.take(name, weight)
            return weight
        return source.quantize(name, shape, form.scheme, self.scope.quantization.method or "rtn", self.scope.device)


@attrs.frozen
class _Form:
    """How a shard is to be read: already ``stored`` quantized, or by ``scheme``, or as it is; and the layout that a
    rule forces."""

    scheme: QuantScheme | None
    layout: str | None
    stored: bool

    @property
    def quantized(self) -> bool:
        return self.stored or self.scheme is not None

    @property
    def decides(self) -> bool:
        """Whether the values have no say in what the shard becomes. What is stored can lack what its scheme allows,
        and whether one scale for the whole tensor will do depends on those of the other shards."""
        return not self.stored and (self.scheme is None or self.scheme.weight.granularity != "tensor")


class Matmul:
    """The product with a matrix that is one call of ``gemm``, or several side by side.

    With ``add``, of a matrix that is a single one, it is called with ``x``, a residual and a gate, and is one call of
    ``gemm_gated_residual``.
    """

    def __init__(self, scope: Scope, weights: Sequence[LinearWeights], *, add: bool = False) -> None:
        dtypes = {"x": scope.dtype, "y": scope.dtype}
        if add:
            (part,) = weights
            more = dict.fromkeys(("residual", "gate"), scope.dtype)
            self.sites = [
                scope.bind(
                    "gemm_gated_residual", weights=part.bound, facts=part.facts_of("gemm"), dtypes={**dtypes, **more},
                    layouts=part.layouts(),
                )
            ]  # fmt: skip
            return
        self.sites = [
            scope.bind("gemm", weights=part.bound, facts=part.facts, dtypes=dtypes, layouts=part.layouts())
            for part in weights
        ]

    def refresh(self, weights: Sequence[LinearWeights]) -> None:
        """Take other values, in the same form."""
        for site, part in zip(self.sites, weights, strict=True):
            site.refresh(part.bound)

    def __call__(self, x: torch.Tensor, *onto: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        if len(self.sites) == 1:
            y: torch.Tensor = self.sites[0].run(x, *onto, out=out)
            return y
        return torch.cat([site.run(x) for site in self.sites], dim=-1, out=out)


class Linear(Layer):
    """``y = x @ weight.T + bias`` for ``x [..., in_features]``.

    ``shards`` are the matrices that are fused into this one; by default it is one, named as the layer is. With ``add``
    such a one is called with ``x``, a residual and a gate, and gives ``residual + gate * y``.
    """

    def __init__(
        self,
        scope: Scope,
        in_features: int,
        out_features: int,
        *,
        bias: bool = False,
        shards: Sequence[Shard] | None = None,
        add: bool = False,
    ) -> None:
        self.scope = scope
        self.add = add
        shards = shards or (Shard(scope.path, scope.source, out_features),)
        self.parameters = LinearParameters(scope, in_features, shards, bias=bias)

    def tensors(self) -> Iterator[TensorSpec]:
        return self.parameters.tensors()

    def load(self, source: WeightSource) -> None:
        self.matmul = Matmul(self.scope, self.parameters.load(source), add=self.add)

    def refresh(self, source: WeightSource) -> None:
        self.matmul.refresh(self.parameters.load_again(source))

    def __call__(self, x: torch.Tensor, *onto: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return self.matmul(x, *onto, out=out)


def matrices(layer: Layer) -> Iterator[LinearParameters]:
    """Those of a layer and of the layers below it."""
    for value in vars(layer).values():
        if isinstance(value, LinearParameters):
            yield value
    for part in layer.parts():
        yield from matrices(part)
