"""The vision tower's layers as one call: what its weights and inputs say is what the layers compute one by one."""

import pytest
import torch
from phyai.dispatch import Chain, Dispatcher
from phyai.environment import Environment
from phyai.ops.transformer_encoder import OP
from phyai.policy import parse_policy
from phyai_models.layers import Stack
from phyai_models.pi.hosted import LerobotBatch, NewWeights
from pi_cases import engine, random_batch, random_checkpoint, relative_error

RULE = "schema: phyai.kernel/v1\nrules:\n- {{id: layers, match: {{op: transformer_encoder}}, restrict_to: {}}}\n"
QUANTIZED = (
    "schema: phyai.kernel/v1\nquantization:\n  method: rtn\n  rules:\n"
    '  - {{id: one, match: {{glob: "{}"}}, scheme: {{weight: {{dtype: int8, granularity: channel}}}}}}\n'
)


def written(tmp_path, text):
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    return path


def chosen(running):
    return [d.kernel.id for s in running.dispatcher.sites if s.op.name == "transformer_encoder" for d in s.decisions]


@pytest.mark.parametrize("family", ["pi05", "pi0"])
def test_one_call_and_layer_by_layer_agree_also_with_new_weights(family, tmp_path, catalog):
    old, new = (random_checkpoint(tmp_path / str(seed), family, seed=seed) for seed in range(2))
    tensors, found = random_batch(old, batch=1), {}
    for kernel in ("reference.transformer_encoder", "decomposed.transformer_encoder"):
        with engine(old, catalog=catalog, policy=written(tmp_path, RULE.format(kernel))) as running:
            first = running.step(LerobotBatch(tensors, trace=True)).stages["vision.cam0"]
            running.step(NewWeights(new))
            then = running.step(LerobotBatch(tensors, trace=True)).stages["vision.cam0"]
            assert chosen(running) == [kernel]
            found[kernel] = first, then
    for got, want in zip(*found.values(), strict=True):
        assert relative_error(got, want) < 2e-6
    assert relative_error(*found["reference.transformer_encoder"]) > 1e-2


@pytest.mark.parametrize("name", ["self_attn.k_proj", "self_attn.out_proj", "mlp.fc1"])
def test_where_a_weight_is_quantized_there_is_no_such_call(name, tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05")
    policy = written(tmp_path, QUANTIZED.format(f"*vision_tower.layers.1.{name}"))
    with engine(directory, catalog=catalog, policy=policy) as running:
        running.step(LerobotBatch(random_batch(directory)))
        assert any("quant.scheme" in fact for site in running.dispatcher.sites for fact in site.static)
        assert chosen(running) == []


def weights_of(seed):
    """Two layers 64 wide; those of all layers as one, without copies."""
    made, sizes = torch.Generator().manual_seed(seed), {"layers": 2, "D": 64, "3*D": 192, "I": 24}
    full = {t.name: torch.randn([sizes[d] for d in t.dims], generator=made) * 0.1 for t in OP.weights}
    return {t.name: Stack(list(full[t.name])) if t.dims[0] == "layers" else full[t.name] for t in OP.weights}


def test_weights_that_lie_elsewhere_are_taken_for_every_layer(catalog):
    policy = parse_policy(RULE.format("reference.transformer_encoder"), catalog=catalog).policy
    dispatcher = Dispatcher(catalog, policy, Environment.detect("cpu", libraries=()))
    old, new = (
        dispatcher.bind(
            "transformer_encoder", role="vision", layer=f"v{seed}", weights=weights_of(seed), attrs={"heads": 1},
            dtypes={"x": "fp32", "y": "fp32"}, chain=Chain(lambda x, out=None, state=None: x, ()),
        )
        for seed in range(2)
    )  # fmt: skip
    x = torch.randn(1, 3, 64, generator=torch.Generator().manual_seed(2))
    assert not torch.allclose(old.run(x), new.run(x))
    old.refresh(weights_of(1))
    assert torch.equal(old.run(x), new.run(x))
