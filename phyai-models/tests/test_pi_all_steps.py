"""All denoising steps as one call: what its weights and inputs say is what the model's own loop computes."""

import pytest
import torch
from phyai.engine import RuntimeConfig
from phyai_models.pi.hosted import LerobotBatch, NewWeights
from phyai_models.pi.model import Savings
from pi_cases import engine, random_batch, random_checkpoint, relative_error

RULE = "schema: phyai.kernel/v1\nrules:\n- {{id: steps, match: {{op: expert_steps}}, restrict_to: {}}}\n"


def policy(tmp_path, kernel):
    path = tmp_path / f"{kernel}.yaml"
    path.write_text(RULE.format(kernel))
    return path


def chosen(running):
    return {d.kernel.id for s in running.dispatcher.sites if s.op.name == "expert_steps" for d in s.decisions}


@pytest.mark.parametrize("family", ["pi05", "pi0"])
@pytest.mark.parametrize("batch", [1, 3])
def test_one_call_and_the_models_loop_agree_also_with_new_weights(family, batch, tmp_path, catalog):
    old, new = (random_checkpoint(tmp_path / str(seed), family, seed=seed) for seed in range(2))
    tensors = random_batch(old, batch=batch)
    found = {}
    for kernel in ("reference.expert_steps", "decomposed.expert_steps"):
        rule = policy(tmp_path, kernel)
        with engine(old, catalog=catalog, policy=rule, runtime=RuntimeConfig(max_batch=3)) as running:
            first = running.step(LerobotBatch(tensors)).actions
            running.step(NewWeights(new))
            found[kernel] = first, running.step(LerobotBatch(tensors)).actions
            assert chosen(running) == {kernel}
    noise = tensors["noise"][..., : found["reference.expert_steps"][0].shape[-1]]
    for got, want in zip(*found.values(), strict=True):
        assert relative_error(got - noise, want - noise) < 2e-6
    assert relative_error(found["reference.expert_steps"][1], found["reference.expert_steps"][0]) > 1e-2


def test_the_states_token_is_a_part_of_the_call(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi0")
    tensors = random_batch(directory, batch=1)
    with engine(directory, catalog=catalog, policy=policy(tmp_path, "reference.expert_steps")) as running:
        first = running.step(LerobotBatch(tensors)).actions
        other = {**tensors, "observation.state": tensors["observation.state"] + 1}
        assert not torch.equal(running.step(LerobotBatch(other)).actions, first)


@pytest.mark.parametrize("family", ["pi05", "pi0"])
def test_without_constants_of_the_steps_there_is_no_such_call(family, tmp_path, catalog):
    directory = random_checkpoint(tmp_path, family)
    with engine(directory, catalog=catalog, savings=Savings(hoist_conditions=False)) as running:
        running.step(LerobotBatch(random_batch(directory)))
        assert chosen(running) == set()


@pytest.mark.parametrize("family", ["pi05", "pi0"])
@pytest.mark.parametrize("glob", ["*action_out_proj", "*expert.layers.1.mlp.*"])
def test_where_a_weight_is_quantized_there_is_no_such_call(family, glob, tmp_path, catalog):
    directory = random_checkpoint(tmp_path, family)
    path = tmp_path / "int8.yaml"
    path.write_text(
        "schema: phyai.kernel/v1\nquantization:\n  method: rtn\n  rules:\n"
        f'  - {{id: one, match: {{glob: "{glob}"}}, scheme: {{weight: {{dtype: int8, granularity: channel}}}}}}\n'
    )
    with engine(directory, catalog=catalog, policy=path) as running:
        running.step(LerobotBatch(random_batch(directory)))
        assert any("quant.scheme" in fact for site in running.dispatcher.sites for fact in site.static)
        assert chosen(running) == set()
