"""A norm and the block behind it as one call: the model computes what it computes with two."""

import pytest
import torch
from phyai_models.layers.normed import Normed
from phyai_models.pi.hosted import LerobotBatch, NewWeights
from pi_cases import engine, random_batch, random_checkpoint

JOINED = {"rms_norm_add_gated_mlp", "rms_norm_add_qkv_rope_kv_write"}
INT8 = """
schema: phyai.kernel/v1
quantization:
  method: rtn
  rules:
  - {match: {glob: "%s"}, scheme: {weight: {dtype: int8, granularity: channel}}}
"""
LAYERS_ONLY = "overrides:\n- {id: layers, match: {op: expert_steps}, restrict_to: decomposed.expert_steps}\n"


def apart(self, op, source, *, weights, facts, **call):
    """A block's call, and the norm's in front of it."""
    self.load_norm(source)
    self.fused = self.scope.bind(op, weights=weights, facts=facts, **call)


def answers(old, new, policy, catalog):
    batch = LerobotBatch(random_batch(old, batch=2, tokens=5))
    with engine(old, catalog=catalog, policy=policy) as running:
        first = running.step(batch).actions
        running.step(NewWeights(new))
        ops = {(site.static["role"], site.op.name) for site in running.dispatcher.sites}
        return first, running.step(batch).actions, ops


@pytest.mark.parametrize("family", ["pi05", "pi0"])
@pytest.mark.parametrize("glob", [None, "*.mlp.*_proj", "*.layers.1.self_attn.k_proj", "*.layers.1.mlp.up_proj"])
def test_one_call_gives_the_bits_of_two_also_with_new_weights(family, glob, tmp_path, monkeypatch, catalog):
    old, new = (random_checkpoint(tmp_path / str(seed), family, seed=seed) for seed in range(2))
    path = tmp_path / "policy.yaml"
    path.write_text((INT8 % glob if glob else "schema: phyai.kernel/v1\n") + LAYERS_ONLY)
    got = answers(old, new, path, catalog)
    monkeypatch.setattr(Normed, "bind_fused", apart)
    want = answers(old, new, path, catalog)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(got[:2], want[:2], strict=True))
    assert not torch.equal(got[0], got[1])
    roles = {"prefix", "expert"} if family == "pi0" else {"prefix"}
    joined = {(role, op) for role in roles for op in JOINED}
    assert joined >= {(role, op) for role, op in got[2] if op in JOINED}
    assert glob or joined <= got[2]
    assert not {op for _, op in want[2]} & JOINED


def test_calls_keep_the_layers_by_which_rules_find_them(tmp_path, catalog):
    with engine(random_checkpoint(tmp_path, "pi05"), catalog=catalog) as running:
        running.step(LerobotBatch(random_batch(tmp_path, batch=1)))
        found = {s.op.name: str(s.static["layer"]) for s in running.dispatcher.sites if s.static["role"] == "prefix"}
    layer = "pi05.language_model.layers.1"
    assert found["rms_norm_add_qkv_rope_kv_write"].endswith(".self_attn")
    assert {name.rsplit(".", 1)[-1] for op, name in found.items() if op == "rms_norm_add"} <= {
        "input_layernorm", "post_attention_layernorm"
    }  # fmt: skip
    assert found["gated_mlp"].endswith(".mlp")
    assert found["gated_activation"].endswith(".mlp.activation")
    assert all("block" not in name for name in found.values()), layer
