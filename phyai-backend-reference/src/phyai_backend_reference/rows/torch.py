"""The records of ``torch.*``, except attention's: torch's own library calls, where they are real kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from phyai.kernel import Band, Capture, Kernel, Numerics
from phyai.predicates import Predicate, match

#: bf16 arithmetic is in the hardware from sm80 on.
DTYPE_DEVICES: Mapping[str, list[Mapping[str, Any]]] = {
    "bf16": [{"device.type": "cpu"}, {"device.type": "cuda", "device.arch": ">=sm80"}],
    "fp16": [{"device.type": "cpu"}, {"device.type": "cuda"}],
    "fp32": [{"device.type": "cpu"}, {"device.type": "cuda"}],
    "fp64": [{"device.type": "cpu"}, {"device.type": "cuda"}],
}


def row(
    id: str, when: Mapping[str, Any], prepare: str, *, capture: Capture = Capture.SAFE, batch_invariant: bool = False,
    rank: int = 0, bands: Mapping[Band, Predicate] | None = None, doc: str = "",
) -> Kernel:  # fmt: skip
    """A record of the ``torch`` family."""
    return Kernel(
        id=id,
        op=id.split(".")[1],
        when=match(when),
        prepare=f"phyai_backend_reference.torch_rows.{prepare}",
        capture=capture,
        numerics=Numerics(reproducible=True, batch_invariant=batch_invariant),
        band=Band.GENERAL,
        rank=rank,
        bands=bands or {},
        doc=doc,
    )


def one_dtype(
    required: Iterable[str], optional: Iterable[str] = (), dtypes: Iterable[str] = DTYPE_DEVICES
) -> dict[str, Any]:
    """All tensors have one and the same of ``dtypes``, optional ones where they are given, on a device that has it."""
    return {
        "any_of": [
            {
                **{f"dtype.{name}": dtype for name in required},
                "all_of": [
                    *({"any_of": [{f"dtype.{name}": None}, {f"dtype.{name}": dtype}]} for name in optional),
                    {"any_of": DTYPE_DEVICES[dtype]},
                ],
            }
            for dtype in dtypes
        ]
    }


def _gemm(dtype: str) -> Kernel:
    return row(
        f"torch.gemm.{dtype}",
        {"quant.scheme": None, **one_dtype(("x", "weight", "y"), ("bias",), (dtype,))},
        "gemm:prepare",
        capture=Capture.AFTER_WARMUP,
        doc="torch.nn.functional.linear: cuBLAS, oneDNN or MKL",
    )


_ABSENT_OR_FALSE = [
    {"any_of": [{f"quant.{name}": None}, {f"quant.{name}": False}]} for name in ("second_scale", "g_idx", "pre_scale")
]
_FP8: Mapping[str, Any] = {
    "quant.layout": "plain",
    "quant.weight": "fp8_e4m3",
    "quant.activation": "fp8_e4m3",
    "quant.scale_dtype": ["fp32", "bf16", "fp16"],
    "quant.fields.activation_scale_rule": "amax",
    "quant.fields.output": None,
    "shape.N": "%16",
    "shape.K": "%16",
    "all_of": [
        *_ABSENT_OR_FALSE,
        {"any_of": [{"device.type": "cpu"}, {"device.type": "cuda", "device.arch": ">=sm89"}]},
    ],
}


def _fp8(variant: str, dtypes: tuple[str, ...], granularities: list[tuple[str, str]], doc: str) -> Kernel:
    """``granularities`` pairs the weight's with the input's. The bias has the output's dtype."""
    scales = [{"quant.granularity": w, "quant.activation_granularity": a} for w, a in granularities]
    outputs = [{"dtype.y": dtype, "any_of": [{"dtype.bias": None}, {"dtype.bias": dtype}]} for dtype in dtypes]
    return row(
        f"torch.gemm.fp8_{variant}",
        {"all_of": [_FP8, {"any_of": scales}, {"any_of": outputs}]},
        f"gemm_fp8:prepare_{variant}",
        capture=Capture.AFTER_WARMUP,
        doc=doc,
    )


def _activation(op: str, name: str, doc: str) -> Kernel:
    when = {"attrs.activation": name, **one_dtype(("x", "y"))}
    return row(f"torch.{op}.{name}", when, f"activation:prepare_{op}", doc=doc)


#: On a CPU, torch's norms also take half-precision inputs with fp32 parameters.
_HALF_WITH_FP32: Mapping[str, Any] = {
    "device.type": "cpu",
    "any_of": [{"dtype.x": dtype, "dtype.y": dtype} for dtype in ("bf16", "fp16")],
    "all_of": [{"any_of": [{f"dtype.{name}": None}, {f"dtype.{name}": "fp32"}]} for name in ("weight", "bias")],
}
_AFFINE: Mapping[str, Any] = {"any_of": [one_dtype(("x", "y"), ("weight", "bias")), _HALF_WITH_FP32]}

#: cuBLASLt's epilogue is the function with tanh; what torch does elsewhere is the one with erf.
_MLP: Mapping[str, Any] = {
    "device.type": "cuda",
    "device.vendor": "nvidia",
    "attrs.activation": "gelu_tanh",
    **one_dtype(("x", "fc1", "fc1_bias", "fc2", "y"), ("fc2_bias",), ("bf16", "fp16")),
}

KERNELS: tuple[Kernel, ...] = (
    *(_gemm(dtype) for dtype in ("bf16", "fp16", "fp32", "fp64")),
    _fp8("tensor", ("bf16", "fp16"), [("tensor", "tensor")], "torch._scaled_mm with one scale for each side"),
    _fp8(
        "channel",
        ("bf16",),
        [("channel", "token"), ("channel", "tensor"), ("tensor", "token")],
        "torch._scaled_mm with a scale for every row of either side",
    ),
    row(
        "torch.rms_norm",
        # 1 + w is rounded to the weight's dtype beforehand, which half precision cannot afford
        {
            **one_dtype(("x", "y"), ("weight",)),
            "all_of": [{"any_of": [{"attrs.offset": 0}, {"dtype.weight": ["fp32", "fp64"]}, {"dtype.weight": None}]}],
        },
        "norms:prepare_rms_norm",
        doc="torch.nn.functional.rms_norm",
    ),
    row("torch.layer_norm", _AFFINE, "norms:prepare_layer_norm", doc="torch.nn.functional.layer_norm"),
    row("torch.group_norm", _AFFINE, "norms:prepare_group_norm", doc="torch.nn.functional.group_norm"),
    *(
        _activation("activation", name, f"torch.nn.functional.{name.removesuffix('_tanh')}")
        for name in ("silu", "gelu", "gelu_tanh")
    ),
    *(
        _activation("gated_activation", name, f"torch.nn.functional.{name.removesuffix('_tanh')}, then torch.mul")
        for name in ("silu", "gelu", "gelu_tanh")
    ),
    *(
        row(
            f"torch.conv{axes}d",
            one_dtype(("x", "weight", "y"), ("bias",)),
            "conv:prepare",
            capture=Capture.AFTER_WARMUP,
            doc="torch's convolution (cuDNN, oneDNN), deterministic and without TF32",
        )
        for axes in (1, 2, 3)
    ),
    row(
        "torch.conv2d.patches",
        {"attrs.patches": True, **one_dtype(("x", "weight", "y"), ("bias",))},
        "conv:prepare_patches",
        capture=Capture.AFTER_WARMUP,
        rank=1,
        doc="patches as rows of a matrix, then one product; its result lies channels last",
    ),
    row(
        "torch.causal_conv",
        one_dtype(("x", "weight", "y"), ("bias", "conv_state")),
        "conv:prepare_causal",
        capture=Capture.AFTER_WARMUP,
        doc="torch's grouped convolution over the state and the input",
    ),
    row(
        "torch.mlp.addmm_activation",
        _MLP,
        "mlp:prepare",
        capture=Capture.AFTER_WARMUP,
        doc="bias and activation in the first product's epilogue; torch's call for that is a private one",
    ),
    row(
        "torch.embedding",
        {**one_dtype(("weight", "y")), "attrs.start": None, "attrs.end": None},
        "embedding:prepare",
        batch_invariant=True,
        doc="torch.nn.functional.embedding, then torch.mul where there is a factor",
    ),
    row(
        "torch.gated_residual",
        one_dtype(("residual", "y")),  # x and gate are promoted with it
        "residual:prepare",
        doc="torch.addcmul",
    ),
    row(
        "torch.kv_write",
        {
            "device.type": ["cpu", "cuda"],
            "any_of": [{f"dtype.{n}": d for n in ("k", "v", "k_cache", "v_cache")} for d in DTYPE_DEVICES],
        },
        "kv_write:prepare",
        batch_invariant=True,
        doc="torch.Tensor.index_copy_",
    ),
)
