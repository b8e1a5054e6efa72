"""Load the linear layers of a checkpoint by name.

::

    linears = load_linears("./checkpoint")
    y = linears["model.layers.0.mlp.down_proj"](x)
    w = linears["model.layers.0.mlp.down_proj"].dequantized_weight()     # float32 [N, K]
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from phyai.catalog import Catalog
from phyai.dispatch import Dispatcher, Site
from phyai.environment import Environment
from phyai.errors import CheckpointError
from phyai.facts import canonical_dtype
from phyai.plugins import discover
from phyai.policy import Policy, policy_from_environment
from phyai.quant import QuantPlan, QuantScheme, plan_from_policy
from phyai.quant.checkpoint import Checkpoint
from phyai.quant.formats import PLAIN
from phyai.quant.importers import BUILTIN, Recognized, Refused
from phyai.quant.layers import stored_layers
from phyai.quant.lowering import LayoutChoice, lower
from phyai.quant.realize import RealizedLayer, dequantize, quantize_weight, realize
from phyai.quant.recognition import recognize
from phyai.quant.storage import StoredLayer
from phyai.quant.weight import QuantizedWeight


class CheckpointLinear:
    """One linear layer: ``y = x @ weight.T + bias`` for ``x [..., in_features]``, on the kernel that the policy picks.

    The first call with a dtype binds a call site for it; the output has the input's dtype. The first call of all
    decides the layout of a quantized weight, which is packed then; one copy of it exists.
    """

    def __init__(self, load: Callable[[], RealizedLayer], dispatcher: Dispatcher, layout: str | None = None) -> None:
        layer = load()
        self.name = layer.name
        self._load = load
        #: Why the weight lies as it does: set when the first call site is bound.
        self.layout: LayoutChoice | None = None
        self._forced = layout
        self.weight = layer.weight
        self.bias = layer.bias
        self.notes = layer.notes
        self._dispatcher = dispatcher
        self._sites: dict[torch.dtype, Site] = {}

    @property
    def scheme(self) -> QuantScheme | None:
        """What the weight's numbers mean; None for a weight in ordinary precision."""
        return self.weight.scheme if isinstance(self.weight, QuantizedWeight) else None

    @property
    def out_features(self) -> int:
        return int(self.weight.shape[0])

    @property
    def in_features(self) -> int:
        return int(self.weight.shape[1])

    def site(self, dtype: torch.dtype) -> Site:
        """The call site for inputs of this dtype."""
        if dtype not in self._sites:
            if self.layout is None and isinstance(self.weight, QuantizedWeight):
                self._pack(self.weight, dtype)
            weights = {"weight": self.weight} if self.bias is None else {"weight": self.weight, "bias": self.bias}
            facts = self.weight.facts() if isinstance(self.weight, QuantizedWeight) else {}
            self._sites[dtype] = self._dispatcher.bind(
                "gemm", layer=self.name, weights=weights, facts=facts, dtypes={"x": dtype, "y": dtype}
            )
        return self._sites[dtype]

    def _pack(self, weight: QuantizedWeight, dtype: torch.dtype) -> None:
        name = canonical_dtype(str(dtype))
        facts = {
            "op": "gemm", "layer": self.name, "dtype.x": name, "dtype.y": name, "shape.N": self.out_features,
            "shape.K": self.in_features, **weight.facts(),
        }  # fmt: skip
        if self.bias is not None:
            facts["dtype.bias"] = canonical_dtype(str(self.bias.dtype))
        of = self._dispatcher
        self.layout = lower(
            facts, catalog=of.catalog, policy=of.policy, environment=of.environment, forced=self._forced
        )
        self.weight = self.layout.pack(weight)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's output for ``x [..., in_features]``, in x's dtype."""
        site = self._sites.get(x.dtype) or self.site(x.dtype)
        y: torch.Tensor = site.run(x)
        return y

    def dequantized_weight(self) -> torch.Tensor:
        """The weight's numbers, float32 ``[out_features, in_features]``."""
        if not isinstance(self.weight, QuantizedWeight):
            return self.weight.to(torch.float32)
        if self.weight.layout == PLAIN:
            return dequantize(self.weight)
        again = self._load().weight  # a packed weight may lie as its kernel wants it; the checkpoint still has it plain
        assert isinstance(again, QuantizedWeight)
        return dequantize(again)

    def __repr__(self) -> str:
        scheme = self.scheme.name if self.scheme else "unquantized"
        return f"CheckpointLinear({self.name}, {self.out_features}x{self.in_features}, {scheme})"


def load_linears(
    checkpoint_dir: str | Path,
    names: Iterable[str] | None = None,
    policy: Policy | str | Path | None = None,
    device: str = "cpu",
    *,
    catalog: Catalog | None = None,
) -> dict[str, CheckpointLinear]:
    """The linear layers of a checkpoint by module name, whatever the model, quantized or not.

    Args:
        checkpoint_dir: a folder with safetensors files and their configuration.
        names: only these modules (a string is one); None for all.
        policy: a policy or its file. Its kernel rules decide which kernels run; its ``quantization`` section
            quantizes layers that the checkpoint stores in ordinary precision.
        device: where the tensors go and the kernels run.
        catalog: the plug-ins; None for those installed.

    Raises:
        CheckpointError: the checkpoint, or a layer asked for, cannot be loaded exactly as it was written.
    """
    catalog = catalog or discover()
    if not isinstance(policy, Policy):
        policy = policy_from_environment(os.environ, policy, catalog=catalog).policy
    checkpoint = Checkpoint.open(checkpoint_dir)
    recognized = recognized_or_raise(checkpoint, catalog)
    plan = plan_from_policy(policy.quantization)
    environment = Environment.detect(device, libraries=catalog.libraries)
    dispatcher = Dispatcher(catalog, policy, environment)
    layers = stored_layers(checkpoint, recognized, names)
    linears = {}
    for name, layer in layers.items():
        rule = plan.rule(name)
        load = functools.partial(_load, layer, recognized, device, plan)
        linears[name] = CheckpointLinear(load, dispatcher, rule.layout if rule else None)
    return linears


def _load(layer: StoredLayer, recognized: Recognized | None, device: str, plan: QuantPlan) -> RealizedLayer:
    return _by_policy(realize(layer, recognized, device), plan)


def recognized_or_raise(checkpoint: Checkpoint, catalog: Catalog | None = None) -> Recognized | None:
    """What the checkpoint's quantization is; None when it is not quantized.

    Raises:
        CheckpointError: it is refused, the message says why and what would work; or there are no weights.
    """
    catalog = catalog or discover()
    outcome = recognize(checkpoint, (*catalog.importers, *BUILTIN))
    if isinstance(outcome, Refused):
        raise CheckpointError(f"{checkpoint.path}: {outcome}")
    if not checkpoint.tensors:
        raise CheckpointError(f"{checkpoint.path} holds no weights: safetensors files are read")
    return outcome


def _by_policy(layer: RealizedLayer, plan: QuantPlan) -> RealizedLayer:
    """The layer as the policy's quantization section wants it."""
    scheme = plan.scheme(layer.name)
    if scheme is None:
        return layer
    if isinstance(layer.weight, QuantizedWeight):
        if layer.weight.scheme == scheme:
            return layer
        raise CheckpointError(
            f"{layer.name} is stored as {layer.weight.scheme.name} but the policy asks for {scheme.name}; "
            "only weights in ordinary precision can be quantized at load"
        )
    weight: Any = quantize_weight(layer.weight, scheme, method=plan.method or "rtn")
    return RealizedLayer(layer.name, weight, layer.bias, layer.notes)
