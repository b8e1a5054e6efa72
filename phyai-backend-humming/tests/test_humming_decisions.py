"""What the plug-in offers, and what is decided with it, without a GPU and without the library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from phyai.catalog import Catalog
from phyai.environment import Environment
from phyai.errors import NoKernelError
from phyai.explain import explain_call
from phyai.plugins import discover
from phyai.policy import default_policy, load_policy
from phyai.quant import plan_from_policy
from phyai.quant.lowering import lower
from phyai.quant.scheme import QuantScheme, TensorQuant
from phyai.resolver import resolve

from .humming_calls import facts

POLICIES = Path(__file__).parents[2] / "policies"
PRESETS = sorted(POLICIES.glob("*/humming_*.yaml"))
W4 = QuantScheme(TensorQuant("int4", "group", group_size=128, scale_dtype="bf16"))
ROLES = ("vision", "prefix", "expert")


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return discover()


@pytest.fixture(scope="module")
def h200(catalog: Catalog) -> Environment:
    return Environment.simulated("h200", libraries={"humming": "0.1.20", "triton": "3.6.0", "torch": "2.11.0"})


def test_discovery_imports_neither_torch_nor_the_library() -> None:
    code = (
        "import sys; from phyai.plugins import discover; c = discover()\n"
        "assert any(k.id == 'humming.gemm.w4a16' for k in c.kernels)\n"
        "print([m for m in ('torch', 'humming', 'triton') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_machine_without_the_gpu_explains_every_row(catalog: Catalog, h200: Environment) -> None:
    given = {**W4.facts(), "quant.layout": "humming", "shape.M": 50, "shape.N": 2560, "shape.K": 1024, "role": "expert"}
    decision = explain_call("gemm", given, catalog, default_policy(), h200)
    assert decision.kernel is not None
    assert decision.kernel.id == "humming.gemm.w4a16"
    reasons = {rejected.kernel: rejected.reason for rejected in decision.rejected}
    assert "quant.weight" in reasons["humming.gemm.w8a16"]
    assert all(reason and "unknown" not in reason for reason in reasons.values())


def test_the_rule_of_the_readme_works_as_written(catalog: Catalog, h200: Environment, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(
        "schema: phyai.kernel/v1\nrules:\n  - id: packed\n    match: {op: gemm, quant.layout: humming}\n"
        "    restrict_to: humming.gemm.w4a16\n"
    )
    policy = load_policy(file, catalog=catalog).policy
    assert resolve(facts(W4, 2560, 1024), catalog, policy, h200).kernel.id == "humming.gemm.w4a16"
    plain = facts(W4, 2560, 1024).replace({name: None for name in facts(W4, 8, 8) if name.startswith("quant.")})
    assert resolve(plain.replace({"dtype.weight": "bf16"}), catalog, policy, h200).kernel.backend != "humming"


def test_an_ordinary_kernel_never_lands_on_a_packed_weight(catalog: Catalog, h200: Environment, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(
        "schema: phyai.kernel/v1\nrules:\n  - id: cublas\n    match: {op: gemm}\n    restrict_to: 'torch.*'\n"
    )
    with pytest.raises(NoKernelError) as raised:
        resolve(facts(W4, 2560, 1024), catalog, load_policy(file, catalog=catalog).policy, h200)
    assert "quant.scheme" in str(raised.value) or "lies as humming" in str(raised.value)


def test_a_reference_row_says_that_it_does_not_read_the_layout(catalog: Catalog, h200: Environment) -> None:
    decision = resolve(facts(W4, 2560, 1024), catalog, default_policy(), h200)
    reason = next(r.reason for r in decision.rejected if r.kernel == "reference.gemm.weight_only")
    assert "humming" in reason


def test_reproducible_numerics_choose_the_batch_invariant_row(
    catalog: Catalog, h200: Environment, tmp_path: Path
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("schema: phyai.kernel/v1\ndefaults: {numerics: reproducible}\n")
    decision = resolve(facts(W4, 2560, 1024), catalog, load_policy(file, catalog=catalog).policy, h200)
    assert decision.kernel.id == "humming.gemm.w4a16_batch_invariant"


def test_of_an_ordinary_weight_the_first_reason_is_that_it_is_not_quantized(
    catalog: Catalog, h200: Environment
) -> None:
    given = {"shape.M": 50, "shape.N": 2560, "shape.K": 1024, "role": "expert"}
    decision = explain_call("gemm", given, catalog, default_policy(), h200)
    reasons = {r.kernel: r.reason for r in decision.rejected if r.kernel.startswith("humming.")}
    assert len(reasons) == 22
    assert all(reason.startswith("quant.scheme is absent") for reason in reasons.values())


@pytest.mark.parametrize(("format", "granularity"), [("int8", "token"), ("fp8_e4m3", "token"), ("fp8_e4m3", "group")])
def test_quantizing_activations_is_an_op_of_its_own(
    format: str, granularity: str, catalog: Catalog, h200: Environment, tmp_path: Path
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(
        "schema: phyai.kernel/v1\nrules:\n  - {id: ours, match: {op: quantize_activation}, restrict_to: 'humming.*'}\n"
    )
    given = {
        "attrs.format": format, "attrs.granularity": granularity, "shape.M": 50, "shape.K": 1024, "dtype.x": "bf16",
        **({"attrs.group_size": 128} if granularity == "group" else {}),
    }  # fmt: skip
    decision = explain_call("quantize_activation", given, catalog, load_policy(file, catalog=catalog).policy, h200)
    assert decision.kernel is not None
    assert decision.kernel.id == "humming.quantize_activation"


def test_int4_inputs_are_refused_where_tensor_cores_do_not_multiply_them(catalog: Catalog) -> None:
    kernel = catalog.kernel("humming.gemm.int4_a4")
    scheme = QuantScheme(W4.weight, TensorQuant("int4", "token", dynamic=True))
    assert kernel.when.holds(facts(scheme, 4096, 4096, device="sm89"))
    reason = kernel.when.why_not(facts(scheme, 4096, 4096, device="sm90"))
    assert reason is not None
    assert reason.startswith("device.arch=sm90 is not one of sm80, sm86, sm87, sm89")


def test_lowering_takes_this_layout_where_its_kernels_run_and_no_other(catalog: Catalog, h200: Environment) -> None:
    site = facts(W4, 2560, 1024, m=None).replace({"quant.layout": None})
    choice = lower(site, catalog=catalog, policy=default_policy(), environment=h200)
    assert choice.layout == "humming"
    assert choice.format is not None
    ampere = Environment.simulated("a100", libraries={"torch": "2.11.0"})
    on_ampere = site.replace(
        {n: v for n, v in ampere.facts().items() if n.startswith("device.")} | {"lib.humming": None}
    )
    assert lower(on_ampere, catalog=catalog, policy=default_policy(), environment=ampere).layout == "plain"


def test_there_is_a_preset_for_each_scheme_and_model() -> None:
    names = {f"humming_{name}.yaml" for name in ("w4a16", "w8a16", "w8a8_int8", "fp8", "w4a8", "mxfp4", "nvfp4")}
    for model in ("pi05", "cosmos3"):
        assert names <= {preset.name for preset in PRESETS if preset.parent.name == model}


@pytest.mark.parametrize("preset", PRESETS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_a_preset_loads_and_its_scheme_has_one_row_for_every_projection(
    preset: Path, catalog: Catalog, h200: Environment
) -> None:
    policy = load_policy(preset, catalog=catalog).policy
    plan = plan_from_policy(policy.quantization)
    family = preset.parent.name
    names = {
        "pi05": ("pi05.language_model.layers.0.self_attn.q_proj", "pi05.expert.layers.3.mlp.down_proj"),
        "cosmos3": ("cosmos3.layers.0.self_attn.to_q", "cosmos3.layers.35.mlp_moe_gen.down_proj"),
    }[family]
    sizes = {"pi05": ((2560, 2048), (1024, 4096), (32768, 2048)), "cosmos3": ((6144, 4096), (4096, 12288))}[family]
    for name in names:
        scheme = plan.scheme(name, "Linear")
        assert scheme is not None, name
        for n, k in sizes:
            call = facts(scheme, n, k, **{"model.family": family, "role": "expert"})
            decision = resolve(call, catalog, policy, h200)
            assert decision.kernel is not None
            assert decision.kernel.id.startswith("humming.gemm.")
    untouched = {"pi05": "pi05.action_out_proj", "cosmos3": "cosmos3.proj_out"}[family]
    assert plan.scheme(untouched, "Linear") is None
