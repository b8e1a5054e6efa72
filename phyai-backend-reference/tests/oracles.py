"""Every op's mathematics in float64 NumPy and plain loops, written from the signatures' docstrings.

Each function takes ``(inputs, weights, metadata, attrs)`` with arrays by name (None where absent) and returns the
outputs and then the mutated inputs, in signature order. Nothing here is shared with the kernels under test.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Arrays = dict[str, Any]
ERF = np.vectorize(math.erf, otypes=[float])


def gemm(x: Arrays, w: Arrays, m: Arrays, a: dict[str, Any]) -> list[np.ndarray]:
    y = np.einsum("...k,nk->...n", x["x"], w["weight"])
    return [y if w.get("bias") is None else y + w["bias"]]


def _rms(x: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)


def rms_norm(x: Arrays, w: Arrays, m: Arrays, a: dict[str, Any]) -> list[np.ndarray]:
    y = _rms(x["x"], a["eps"])
    return [y if w.get("weight") is None else y * (a["offset"] + w["weight"])]


def rms_norm_add(x: Arrays, w: Arrays, m: Arrays, a: dict[str, Any]) -> list[np.ndarray]:
    residual = x["residual"] + x["x"]
    return [_rms(residual, a["eps"]) * (a["offset"] + w["weight"]), residual]


def _spread(condition: np.ndarray, rows: int) -> np.ndarray:
    return np.repeat(condition, rows // len(condition), axis=0)


def ada_rms_norm(x: Arrays, w: Arrays, m: Arrays, a: dict[str, Any]) -> list[np.ndarray]:
    scale, shift, gate = np.split(x["modulation"], 3, axis=-1)
    rows = len(x["x"])
    return [_rms(x["x"], a["eps"]) * (1 + _spread(scale, rows)) + _spread(shift, rows), gate]


def _standard(x: np.ndarray, eps: float) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)


def _affine(y: np.ndarray, w: Arrays, shape: tuple[int, ...]) -> np.ndarray:
    y = y if w.get("weight") is None else y * w["weight"].reshape(shape)
    return y if w.get("bias") is None else y + w["bias"].reshape(shape)


def layer_norm(x: Arrays, w: Arrays, m: Arrays, a: dict[str, Any]) -> list[np.ndarray]:
    return [_affine(_standard(x["x"], a["eps"]), w, (-1,))]


def layer_norm_add(x: Arrays, w: Arrays, m: Arrays, a: dict[str, Any]) -> list[np.ndarray]:
    residual = x["residual"] + x["x"]
    return [_affine(_standard(residual, a["eps"]), w, (-1,)), residual]


def group_norm(x: Arrays, w: Arrays, m: Arrays, a: dict[str, Any]) -> list[np.ndarray]:
    b = len(x["x"])
    y = _standard(x["x"].reshape(b, a["groups"], -1), a["eps"]).reshape(x["x"].shape)
    return [_affine(y, w, (-1, 1))]


def channel_l2_norm(x: Arrays, w: Arrays, m: Arrays, a: dict[str, Any]) -> list[np.ndarray]:
    length = np.sqrt((x["x"] ** 2).sum(1, keepdims=True))
    y = x["x"] / np.maximum(length, a["eps"]) * math.sqrt(x["x"].shape[1])
    return [_affine(y, w, (-1, 1))]


def _activate(x: np.ndarray, name: str) -> np.ndarray:
    if name == "silu":
        return x / (1 + np.exp(-x))
    if name == "gelu":
        return x * (1 + ERF(x / math.sqrt(2))) / 2
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def activation(x: Arrays, w: Arrays, m: Arrays, a: dict[str, Any]) -> list[np.ndarray]:
    return [_activate(x["x"], a["activation"])]


def gated_activation(x: Arrays, w: Arrays, m: Arrays, a: dict[str, Any]) -> list[np.ndarray]:
    half = x["x"].shape[-1] // 2
    return [_activate(x["x"][..., :half], a["activation"]) * x["x"][..., half:]]


def mlp(x: Arrays, w: Arrays, m: Arrays, a: dict[str, Any]) -> list[np.ndarray]:
    (hidden,) = gemm(x, {"weight": w["fc1"], "bias": w.get("fc1_bias")}, m, a)
    return gemm({"x": _activate(hidden, a["activation"])}, {"weight": w["fc2"], "bias": w.get("fc2_bias")}, m, a)


def gated_residual(x: Arrays, w: Arrays, m: Arrays, a: dict[str, Any]) -> list[np.ndarray]:
    return [x["residual"] + x["x"] * _spread(x["gate"], len(x["x"]))]


def modulation(x: Arrays, w: Arrays, m: Arrays, a: dict[str, Any]) -> list[np.ndarray]:
    rows = len(x["x"])
    y = x["x"] * (1 + _spread(x["scale"], rows))
    y = y if x["shift"] is None else y + _spread(x["shift"], rows)
    return [y if x["gate"] is None else y * _spread(x["gate"], rows)]


def embedding(x: Arrays, w: Arrays, m: Arrays, a: dict[str, Any]) -> list[np.ndarray]:
    start = a["start"] or 0
    end = start + len(w["weight"]) if a["end"] is None else a["end"]
    zero = np.zeros(w["weight"].shape[1])
    rows = [w["weight"][i - start] if start <= i < end else zero for i in x["ids"]]
    return [np.stack(rows) * (1 if a["scale"] is None else a["scale"])]


def _axis(i: int, sections: list[int], interleaved: bool) -> int:
    if interleaved:
        axis = i % 3
        return axis if axis and i // 3 < sections[axis] else 0
    return 0 if i < sections[0] else 1 if i < sections[0] + sections[1] else 2


def _rotate(x: np.ndarray, position: Any, table: np.ndarray, style: str) -> np.ndarray:
    """One head of one token; ``position(i)`` is where frequency i takes its angle from."""
    y, half = x.copy(), table.shape[1] // 2
    for i in range(half):
        cos, sin = table[position(i), i], table[position(i), half + i]
        first, second = (i, half + i) if style == "neox" else (2 * i, 2 * i + 1)
        y[first] = x[first] * cos - x[second] * sin
        y[second] = x[second] * cos + x[first] * sin
    return y


def rope(x: Arrays, w: Arrays, m: Arrays, a: dict[str, Any]) -> list[np.ndarray]:
    outputs = []
    for name in ("q", "k"):
        y = np.empty_like(x[name])
        for token, head in np.ndindex(y.shape[:2]):
            if a["mrope_sections"] is None:
                position = lambda i, t=token: x["positions"][t]  # noqa: E731
            else:
                sections = [int(n) for n in a["mrope_sections"].split(",")]
                position = lambda i, t=token, s=sections: x["positions"][_axis(i, s, a["mrope_interleaved"]), t]  # noqa: E731
            y[token, head] = _rotate(x[name][token, head], position, w["cos_sin"], a["style"])
        outputs.append(y)
    return outputs


def kv_write(x: Arrays, w: Arrays, m: Arrays, a: dict[str, Any]) -> list[np.ndarray]:
    caches = []
    for rows, cache in ((x["k"], x["k_cache"]), (x["v"], x["v_cache"])):
        cache = cache.copy()
        for row, slot in zip(rows, x["slots"], strict=True):
            cache[divmod(slot, cache.shape[1])] = row
        caches.append(cache)
    return caches


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, keep: np.ndarray | None, a: dict[str, Any]) -> np.ndarray:
    """One sequence, ``[tokens, heads, head_dim]``, query by query."""
    o, group = np.zeros_like(q), q.shape[1] // k.shape[1]
    scale = q.shape[-1] ** -0.5 if a["scale"] is None else a["scale"]
    for i, head in np.ndindex(q.shape[:2]):
        position = i + len(k) - len(q)
        seen = [
            j
            for j in range(len(k))
            if not (a["causal"] and j > position)
            and not (a["window"] is not None and position - j >= a["window"])
            and (keep is None or keep[i, j])
        ]
        if seen:
            s = k[seen, head // group] @ q[i, head] * scale
            s = s if a["soft_cap"] is None else a["soft_cap"] * np.tanh(s / a["soft_cap"])
            p = np.exp(s - s.max())
            o[i, head] = p @ v[seen, head // group] / p.sum()
    return o


def attention(x: Arrays, w: Arrays, m: Arrays, a: dict[str, Any]) -> list[np.ndarray]:
    q, k, v = x["q"], x["k"], x["v"]
    if a["layout"] == "padded":
        masks = [None] * len(q) if x["mask"] is None else x["mask"]
        return [np.stack([attend(*sequence, a) for sequence in zip(q, k, v, masks, strict=True)])]
    o = np.zeros_like(q)
    for r in range(len(x["cu_seqlens_q"]) - 1):
        rows, keys = (slice(x[n][r], x[n][r + 1]) for n in ("cu_seqlens_q", "cu_seqlens_k"))
        o[rows] = attend(q[rows], k[keys], v[keys], None, a)
    return [o]


def attention_paged(x: Arrays, w: Arrays, m: Arrays, a: dict[str, Any]) -> list[np.ndarray]:
    o, page_size = np.zeros_like(x["q"]), x["k_cache"].shape[1]
    for b, last in enumerate(m["last_page_len"]):
        pages = m["kv_indices"][m["kv_indptr"][b] : m["kv_indptr"][b + 1]]
        length = (len(pages) - 1) * page_size + last if len(pages) else 0
        k, v = (x[n][pages].reshape(-1, *x[n].shape[2:])[:length] for n in ("k_cache", "v_cache"))
        rows = slice(m["cu_seqlens_q"][b], m["cu_seqlens_q"][b + 1])
        o[rows] = attend(x["q"][rows], k, v, None, a)
    return [o]


def _convolve(x: Arrays, w: Arrays, a: dict[str, Any], axes: int) -> list[np.ndarray]:
    def every(name: str) -> list[int]:
        time = a.get(f"{name}_t")
        return [a[name] if time is None else time, a[name], a[name]] if axes == 3 else [a[name]] * axes

    stride, padding, dilation = every("stride"), every("padding"), every("dilation")
    weight, data = w["weight"], np.pad(x["x"], [(0, 0), (0, 0), *((p, p) for p in padding)])
    kernel, per_group = weight.shape[2:], len(weight) // a["groups"]
    sizes = [
        (n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(data.shape[2:], kernel, stride, dilation, strict=True)
    ]
    y = np.zeros((len(data), len(weight), *sizes))
    for b, o, *place in np.ndindex(y.shape):
        channels = slice(o // per_group * weight.shape[1], (o // per_group + 1) * weight.shape[1])
        window = tuple(
            slice(p * s, p * s + d * (k - 1) + 1, d) for p, s, d, k in zip(place, stride, dilation, kernel, strict=True)
        )
        y[(b, o, *place)] = (data[(b, channels, *window)] * weight[o]).sum()
    return [_affine(y, {"bias": w.get("bias")}, (-1, *(1 for _ in range(axes))))]


def conv1d(x: Arrays, w: Arrays, m: Arrays, a: dict[str, Any]) -> list[np.ndarray]:
    return _convolve(x, w, a, 1)


def conv2d(x: Arrays, w: Arrays, m: Arrays, a: dict[str, Any]) -> list[np.ndarray]:
    return _convolve(x, w, a, 2)


def conv3d(x: Arrays, w: Arrays, m: Arrays, a: dict[str, Any]) -> list[np.ndarray]:
    return _convolve(x, w, a, 3)


def causal_conv(x: Arrays, w: Arrays, m: Arrays, a: dict[str, Any]) -> list[np.ndarray]:
    batch, channels, steps = x["x"].shape
    width = w["weight"].shape[1]
    past = np.zeros((batch, channels, width - 1)) if x["conv_state"] is None else x["conv_state"]
    full, y = np.concatenate((past, x["x"]), axis=-1), np.empty(x["x"].shape)
    for b, c, t in np.ndindex(y.shape):
        y[b, c, t] = full[b, c, t : t + width] @ w["weight"][c]
    y = _affine(y, {"bias": w.get("bias")}, (-1, 1))
    y = _activate(y, "silu") if a["activation"] == "silu" else y
    return [y] if x["conv_state"] is None else [y, full[..., steps:]]


def quantize_activation(x: Arrays, w: Arrays, m: Arrays, a: dict[str, Any]) -> list[np.ndarray]:
    top = {"int8": 127, "fp8_e4m3": 448, "fp8_e5m2": 57344}[a["format"]]
    rows = x["x"]
    slices = {
        "tensor": rows.reshape(1, 1, -1),
        "token": rows[:, None],
        "group": rows.reshape(len(rows), -1, a["group_size"] or 1),
    }[a["granularity"]]
    amax = np.abs(slices).max(-1)
    scales = np.where(amax > 0, amax / top, 1) if x["scale"] is None else x["scale"].reshape(1, 1)
    values = np.clip(slices / scales[..., None], -top, top).reshape(rows.shape)
    return [values, scales.reshape(-1) if a["granularity"] == "tensor" else scales]


def expert_steps(x: Arrays, w: Arrays, m: Arrays, a: dict[str, Any]) -> list[np.ndarray]:
    requests, steps, layers = len(x["lengths"]), len(w["modulation"]), len(w["qkv"])
    kv_heads, dim = x["k_cache"].shape[3:]
    fixed = x["fixed"]
    heads, front = a["heads"], int(fixed is not None)
    rows = len(x["x"]) // requests + front

    def norm(h: np.ndarray, modulation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        scale, shift, gate = np.split(modulation, 3)
        return _rms(h, a["eps"]) * (1 + scale) + shift, gate

    def rotated(t: np.ndarray, position: int) -> np.ndarray:
        return _rotate(t, lambda _: position, w["cos_sin"], "neox")

    def one(actions: np.ndarray, request: int, step: int) -> np.ndarray:
        length = int(x["lengths"][request])
        h = actions @ w["in_weight"].T + w["in_bias"]
        if "time" in w:
            h = h + w["time"][step]
        if "embed_weight" in w:
            h = (h / (1 + np.exp(-h))) @ w["embed_weight"].T
        if "embed_bias" in w:
            h = h + w["embed_bias"]
        if fixed is not None:
            h = np.concatenate([fixed[request][None], h])
        for i in range(layers):
            y, gate = norm(h, w["modulation"][step, 2 * i])
            qkv = (y @ w["qkv"][i].T).reshape(rows, -1, dim)
            keys = [*x["k_cache"][i, request, :length]]
            keys += [np.stack([rotated(k, length + r) for k in qkv[r, heads:-kv_heads]]) for r in range(rows)]
            values = [*x["v_cache"][i, request, :length], *qkv[:, -kv_heads:]]
            mixed = np.zeros((rows, heads, dim))
            for r, head in np.ndindex(rows, heads):
                group = head * kv_heads // heads
                q = rotated(qkv[r, head], length + r)
                visible = length + 1 if r < front else len(keys)
                scores = np.array([q @ key[group] for key in keys[:visible]]) / math.sqrt(dim)
                share = np.exp(scores - scores.max())
                share = share / share.sum()
                mixed[r, head] = sum(s * v[group] for s, v in zip(share, values[:visible], strict=True))
            h = h + gate * (mixed.reshape(rows, -1) @ w["o"][i].T)
            y, gate = norm(h, w["modulation"][step, 2 * i + 1])
            h = h + gate * (gated_activation({"x": y @ w["gate_up"][i].T}, {}, {}, a)[0] @ w["down"][i].T)
        y, _ = norm(h[front:], w["modulation"][step, 2 * layers])
        return actions - (y @ w["out_weight"].T + w["out_bias"]) / steps

    result = []
    for request, actions in enumerate(np.split(x["x"], requests)):
        for step in range(steps):
            actions = one(actions, request, step)
        result.append(actions)
    return [np.concatenate(result)]


def transformer_encoder(x: Arrays, w: Arrays, m: Arrays, a: dict[str, Any]) -> list[np.ndarray]:
    plain = {"scale": None, "soft_cap": None, "causal": False, "window": None}
    heads, width = a["heads"], x["x"].shape[-1]

    def norm(h: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
        return _standard(h, a["eps"]) * weight + bias

    def one(h: np.ndarray) -> np.ndarray:
        for i in range(len(w["qkv"])):
            y = norm(h, w["norm1_weight"][i], w["norm1_bias"][i])
            q, k, v = ((y @ part.T).reshape(len(h), heads, -1) for part in np.split(w["qkv"][i], 3))
            biases = (b.reshape(heads, -1) for b in np.split(w["qkv_bias"][i], 3))
            q, k, v = (t + b for t, b in zip((q, k, v), biases, strict=True))
            h = h + attend(q, k, v, None, plain).reshape(-1, width) @ w["o"][i].T + w["o_bias"][i]
            y = norm(h, w["norm2_weight"][i], w["norm2_bias"][i])
            h = h + mlp({"x": y}, {name: w[name][i] for name in ("fc1", "fc1_bias", "fc2", "fc2_bias")}, m, a)[0]
        return norm(h, w["norm_weight"], w["norm_bias"])

    return [np.stack([one(h) for h in x["x"]])]
