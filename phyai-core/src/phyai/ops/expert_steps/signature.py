"""All denoising steps of an action expert: from noise to actions, given the keys and values of a prefix.

::

    a = x                                                             # M = B * queries rows, request after request
    for s in range(steps):
        h = a @ in_weight.T + in_bias
        h = h + time[s]                                               # with time
        h = silu(h) @ embed_weight.T                                  # with embed_weight
        h = h + embed_bias                                            # with embed_bias
        h = cat(fixed, h)                                             # with fixed: in front of each request's rows
        for l in range(layers):
            y, gate = ada_rms_norm(h, modulation[s, 2 * l], eps)
            q, k, v = split(y @ qkv[l].T, [heads, kv_heads, kv_heads])
            q, k = rope(q, k, positions, cos_sin)                     # positions lengths[b], lengths[b] + 1, …
            keys = cat(k_cache[l, b, :lengths[b]], k[b]); values = cat(v_cache[l, b, :lengths[b]], v[b])
            h = h + gate * (attention(q[b], keys, values) @ o[l].T)   # each request b by itself; see below
            y, gate = ada_rms_norm(h, modulation[s, 2 * l + 1], eps)
            h = h + gate * (gated_activation(y @ gate_up[l].T, activation) @ down[l].T)
        y, _ = ada_rms_norm(h, modulation[s, 2 * layers], eps)        # of the actions' rows
        a = a - (y @ out_weight.T + out_bias) / steps
    return a

Actions attend to the prefix and to all of their request's rows. A fixed token, the first of its request's rows where
there is one, sees the prefix and itself alone, so that it and its keys and values are the same at every step.

Request b's prefix lies in page b of the caches. What lies behind it there (``page_size - lengths[b]`` keys, at least
as many as the request has rows, its fixed token among them) is scratch that a call may overwrite: layers that are
called one by one write the request's own keys and values there. All else in the caches stays as it is.

Its decomposition is the caller's own chain of layers (``Dispatcher.bind(..., chain=...)``): how many there are, and
their names, are the model's affair.

Source: the action experts of π0.5, which takes time through its modulations, and of π0, which takes it among its
tokens, behind one for the robot's state (openpi, ``gemma.py`` and ``pi0.py``); Euler's method from t = 1 to 0.
"""

from __future__ import annotations

from attrs import evolve

from phyai.facts import FactKind
from phyai.op import DEFAULT_TOLERANCE, ArgSpec, Attr, Dim, Op, Tensor, Tolerance
from phyai.ops.activation.signature import ACTIVATION
from phyai.ops.expert_steps.arg_specs import ARG_SPECS
from phyai.ops.rms_norm.signature import EPS

#: What lies behind the prefixes.
SCRATCH = "phyai.ops.expert_steps.inputs:behind_prefixes"

#: Weights are half precision as a rule, and every step passes through all layers.
TOLERANCE = {
    **DEFAULT_TOLERANCE,
    **dict.fromkeys(("fp32", "bf16", "fp16"), Tolerance(rtol=8e-2, atol=6e-2, relative_norm=2e-2)),
}


def fit(spec: ArgSpec) -> ArgSpec:
    """Requests have equally many rows and a page each; sizes follow from heads and layers."""
    dims = dict(spec.dims)
    heads = int(spec.attrs.get("heads", 1))
    kv_heads = max(1, min(dims["kv_heads"], heads))
    heads -= heads % kv_heads
    head_dim = dims["head_dim"] + dims["head_dim"] % 2
    queries = -(-dims["M"] // max(dims["B"], 1)) if dims["B"] else 0
    rows = queries + ("fixed" in spec.present)
    dims |= {
        "kv_heads": kv_heads, "head_dim": head_dim, "N": (heads + 2 * kv_heads) * head_dim, "O": heads * head_dim,
        "M": queries * dims["B"], "pages": max(dims["pages"], dims["B"], 1), "norms": 2 * dims["layers"] + 1,
        "page_size": max(dims["page_size"], rows + 1),
    }  # fmt: skip
    dims["max_position"] = max(dims["max_position"], dims["page_size"])
    return evolve(spec, dims=dims, attrs={**spec.attrs, "heads": heads})


OP = Op(
    name="expert_steps",
    doc=__doc__ or "",
    tensors=(
        Tensor("x", ("...M", "A"), doc="the noise"),
        Tensor("k_cache", ("layers", "pages", "page_size", "kv_heads", "head_dim"), scratch=SCRATCH),
        Tensor("v_cache", ("layers", "pages", "page_size", "kv_heads", "head_dim"), scratch=SCRATCH),
        Tensor("lengths", ("B",), dtypes=("int32",), doc="keys of each request's prefix"),
        Tensor("fixed", ("B", "D"), optional=True, doc="a token of each request that sees no action"),
        Tensor("qkv", ("layers", "N", "D"), "weight", doc="rows of q, then of k, then of v"),
        Tensor("o", ("layers", "D", "O"), "weight"),
        Tensor("gate_up", ("layers", "2*I", "D"), "weight", doc="the gate's rows, then the up rows"),
        Tensor("down", ("layers", "D", "I"), "weight"),
        Tensor("modulation", ("steps", "norms", "3*D"), "weight", doc="scale, shift and gate of each norm"),
        Tensor("in_weight", ("D", "A"), "weight"),
        Tensor("in_bias", ("D",), "weight"),
        Tensor("time", ("steps", "D"), "weight", optional=True, doc="of each step's time"),
        Tensor("embed_weight", ("D", "D"), "weight", optional=True),
        Tensor("embed_bias", ("D",), "weight", optional=True),
        Tensor("out_weight", ("A", "D"), "weight"),
        Tensor("out_bias", ("A",), "weight"),
        Tensor("cos_sin", ("max_position", "head_dim"), "weight", dtypes=("fp32", "fp64"), fill="cos_sin"),
        Tensor("y", ("...M", "A"), "output", doc="the actions"),
    ),
    dims=(
        Dim("M", "rows: the action tokens of all requests", dynamic=True, minimum=0),
        Dim("B", "requests: divides M", dynamic=True, minimum=0),
        Dim("A", "numbers per action"),
        Dim("layers", "layers"),
        Dim("pages", "pages of the cache, at least one per request"),
        Dim("page_size", "keys per page"),
        Dim("kv_heads", "key and value heads"),
        Dim("head_dim", "size of one head", minimum=2),
        Dim("N", "(heads + 2 * kv_heads) * head_dim"),
        Dim("D", "width"),
        Dim("O", "heads * head_dim"),
        Dim("I", "intermediate size"),
        Dim("steps", "denoising steps"),
        Dim("norms", "2 * layers + 1"),
        Dim("max_position", "positions that cos_sin holds"),
    ),
    attributes=(Attr("heads", FactKind.NUMBER, 1, "query heads", whole=True, minimum=1), EPS, ACTIVATION),
    tolerance=TOLERANCE,
    arg_specs=ARG_SPECS,
    synthesize="phyai.ops.expert_steps.inputs:fill",
    fit=fit,
    chained=True,
)
