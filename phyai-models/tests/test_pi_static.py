"""Recorded inference on fixed buffers: buckets, padding, the number of recordings, and the order freeze asks for."""

import attrs
import pytest
import torch
from phyai.engine import RuntimeConfig
from phyai.errors import CallError, InputError
from phyai.policy import Policy, Restriction, Rule, load_policy
from phyai.predicates import match
from phyai_models.pi.hosted import DeviceBatch, LerobotBatch
from phyai_models.pi.inputs import STATE
from phyai_models.pi.model import Savings
from pi_cases import CASES, case, engine, inputs_of, random_batch, random_checkpoint, relative_error

STATIC = RuntimeConfig("static", prompt_buckets=(4, 8))


def actions(running, batch, **how):
    return running.step(LerobotBatch(batch, **how)).actions


@pytest.mark.parametrize("family", ["pi05", "pi0"])
@pytest.mark.parametrize("runtime", [STATIC, attrs.evolve(STATIC, prompt_buckets=())], ids=["buckets", "exact"])
def test_a_padded_batch_gets_the_answer_of_its_own_lengths(family, runtime, tmp_path, catalog):
    directory = random_checkpoint(tmp_path, family, cameras=3)
    batches = [
        random_batch(directory, batch=1, tokens=3), random_batch(directory, batch=1, tokens=5, seed=1),
        random_batch(directory, batch=1, tokens=3, present=2, seed=2),
        random_batch(directory, batch=1, tokens=3, seed=3),
        random_batch(directory, batch=3, tokens=8, seed=4), random_batch(directory, batch=1, tokens=12, seed=5),
        random_batch(directory, batch=1, tokens=2, seed=6),
    ]  # fmt: skip
    with engine(directory, catalog=catalog) as eager, engine(directory, catalog=catalog, runtime=runtime) as static:
        for batch in batches:
            assert relative_error(actions(static, batch), actions(eager, batch)) < 1e-6


def rule(op, kernel, **more):
    return Rule(f"only-{kernel}", match({"op": op, **more}), restriction=Restriction((kernel,)))


@pytest.mark.parametrize("how", ["policy", "failure"])
def test_a_call_of_many_layers_that_is_turned_off_runs_layer_by_layer_from_then_on(how, tmp_path, catalog):
    directory, op = random_checkpoint(tmp_path, "pi05"), "transformer_encoder"
    batch = random_batch(directory, batch=1)
    whole = Policy(rules=(Rule("whole", match({"op": op}), prefer=(f"reference.{op}",)),))
    with engine(directory, catalog=catalog, policy=whole, runtime=STATIC) as running:
        site = next(site for site in running.dispatcher.sites if site.op.name == op)
        want = actions(running, batch)
        assert [decision.kernel.id for decision in site.decisions] == [f"reference.{op}"]
        if how == "policy":
            running.dispatcher.replace_policy(Policy(rules=(rule(op, f"decomposed.{op}"),)))
        else:
            running.dispatcher.exclude(f"reference.{op}", "it failed in a capture")
        got = actions(running, batch)
        assert [decision.kernel.id for decision in site.decisions] == [f"decomposed.{op}"]
    assert got.shape == want.shape


def test_a_policy_that_changes_something_else_leaves_other_shapes_to_come(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05")
    many = Rule("many", match({"op": "attention", "shape.B": ">=3"}), prefer=("reference.attention",))
    runtime = attrs.evolve(STATIC, max_batch=2)
    with engine(directory, catalog=catalog, policy=Policy(rules=(many,)), runtime=runtime) as running:
        actions(running, random_batch(directory, batch=1))
        more = (many, rule("embedding", "reference.embedding"))
        assert running.dispatcher.replace_policy(Policy(rules=more)).thawed
        assert actions(running, random_batch(directory, batch=2)).shape[0] == 2


@pytest.mark.parametrize("name", CASES)
def test_handed_cases_come_out_as_they_do_kernel_by_kernel(name, catalog):
    directory, inputs, _ = case(name)
    with engine(directory, catalog=catalog) as eager, engine(directory, catalog=catalog, runtime=STATIC) as static:
        assert relative_error(actions(static, inputs), actions(eager, inputs)) < (5e-2 if name == "pi05_c" else 1e-6)


def test_what_fills_up_a_bucket_changes_nothing(tmp_path, catalog):
    """Other masked tokens, another missing camera's image: the same bits."""
    directory = random_checkpoint(tmp_path, "pi05", cameras=2)
    batch = random_batch(directory, batch=2, tokens=7)
    other = {**batch}
    mask = batch["observation.language.attention_mask"]
    other["observation.language.tokens"] = batch["observation.language.tokens"].where(mask, 39)
    with engine(directory, catalog=catalog, runtime=STATIC, savings=Savings(drop_masked=False)) as running:
        assert torch.equal(actions(running, batch), actions(running, other))


def test_missing_cameras_between_others_are_left_out(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05", cameras=3)
    with engine(directory, catalog=catalog) as eager, engine(directory, catalog=catalog, runtime=STATIC) as static:
        inputs = inputs_of(random_batch(directory, batch=2), eager.model.config)
        inputs = attrs.evolve(inputs, camera_mask=torch.tensor([[False, True, True], [True, False, False]]))
        want, got = eager.model.runner(inputs, 3), static.model.runner(inputs, 3)
        assert static.model.runner.shape(inputs, 3).cameras == 2
        assert relative_error(got, want) < 1e-6


def recorded(running):
    return [(s.batch, s.cameras, s.prompt) for s in running.model.runner._programs]


def test_lengths_of_one_bucket_share_a_recording(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05")
    with engine(directory, catalog=catalog, runtime=STATIC) as running:
        for tokens in (1, 4, 2, 5, 8, 9, 12):
            actions(running, random_batch(directory, batch=1, tokens=tokens))
        assert recorded(running) == [(1, 2, 4), (1, 2, 8), (1, 2, 12)]
        assert running.model.runner.memory().recordings == 3


def test_the_least_recently_used_recording_goes_first(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05")
    with engine(directory, catalog=catalog, runtime=attrs.evolve(STATIC, max_graphs=2)) as running:
        for tokens in (4, 8, 4, 12):
            actions(running, random_batch(directory, batch=1, tokens=tokens))
        assert recorded(running) == [(1, 2, 4), (1, 2, 12)]


def test_without_new_graphs_all_buckets_are_recorded_at_the_start(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05", cameras=2)
    runtime = attrs.evolve(STATIC, new_graphs=False)
    with engine(directory, catalog=catalog, runtime=runtime) as running, engine(directory, catalog=catalog) as eager:
        assert recorded(running) == [(1, 2, 4), (1, 2, 8), (1, 2, 12)]
        fewer = random_batch(directory, batch=1, tokens=3, present=1)
        assert relative_error(actions(running, fewer), actions(eager, fewer)) < 1e-6
        with pytest.raises(InputError, match=r"no recording serves batch 2, .*there are: batch 1.*new_graphs"):
            actions(running, random_batch(directory, batch=2))
        assert len(recorded(running)) == 3


def test_a_batch_over_the_limit_is_refused(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05")
    batch = random_batch(directory, batch=3)
    with (
        engine(directory, catalog=catalog, runtime=attrs.evolve(STATIC, max_batch=2)) as running,
        pytest.raises(InputError, match=r"3 requests; this engine takes 2 .*max_batch"),
    ):
        actions(running, batch)


def test_graphs_need_a_gpu(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05")
    with pytest.raises(InputError, match="needs a GPU"):
        engine(directory, catalog=catalog, runtime=RuntimeConfig("graph"))


@pytest.mark.parametrize(
    "bad", [{"execution": "fast"}, {"max_batch": 0}, {"prompt_buckets": (8, 4)}, {"max_graphs": 0}]
)
def test_a_runtime_that_cannot_be_is_refused(bad):
    with pytest.raises(CallError, match=next(iter(bad))):
        RuntimeConfig(**bad)


def test_everything_is_frozen_while_it_is_replayed(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05")
    with engine(directory, catalog=catalog, runtime=STATIC) as running:
        batch = random_batch(directory, batch=1, tokens=3)
        actions(running, batch)
        assert running.dispatcher.frozen
        decided = [site.decisions for site in running.dispatcher.sites]
        actions(running, random_batch(directory, batch=1, tokens=2, seed=1))
        assert [site.decisions for site in running.dispatcher.sites] == decided


def test_another_policy_makes_recordings_anew(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05")
    rules = tmp_path / "reference.yaml"
    rules.write_text("schema: phyai.kernel/v1\nrules:\n- {id: all, match: {op: gemm}, restrict_to: 'reference.*'}\n")
    with engine(directory, catalog=catalog, runtime=STATIC) as running:
        batch = random_batch(directory, batch=1, tokens=3)
        first = actions(running, batch)
        program = next(iter(running.model.runner._programs.values()))
        running.dispatcher.replace_policy(load_policy(rules, catalog=catalog).policy)
        assert relative_error(actions(running, batch), first) < 1e-5
        assert next(iter(running.model.runner._programs.values())) is not program
        kernels = {d.kernel.id for s in running.dispatcher.sites if s.op.name == "gemm" for d in s.decisions}
        assert kernels == {"reference.gemm"}


def test_a_trace_between_replays_leaves_recordings_valid(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05")
    with engine(directory, catalog=catalog, runtime=STATIC) as running:
        batch = random_batch(directory, batch=1, tokens=3)
        first = actions(running, batch)
        program = next(iter(running.model.runner._programs.values()))
        traced = running.step(LerobotBatch(batch, trace=True))
        assert relative_error(traced.actions, first) < 1e-6
        assert torch.equal(actions(running, batch), first)
        assert next(iter(running.model.runner._programs.values())) is program


def test_a_device_batch_is_answered_where_it_lies(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05")
    batch = random_batch(directory, batch=2, tokens=6)
    with engine(directory, catalog=catalog, runtime=STATIC) as running:
        want = actions(running, batch)
        config = running.model.config
        request = DeviceBatch(
            images=torch.stack([batch[c] for c in config.cameras], 1) * 2 - 1,
            tokens=batch["observation.language.tokens"],
            token_mask=batch["observation.language.attention_mask"],
            noise=batch["noise"],
        )
        got = running.step(request)
        assert got.shape == (2, config.chunk_size, config.max_action_dim)
        assert torch.equal(got[..., : config.action_dim], want)
        with pytest.raises(InputError, match=r"noise has shape .*; give \[2, 6, 6\]"):
            running.step(attrs.evolve(request, noise=request.noise[:1]))
        with pytest.raises(InputError, match="images of 0 cameras"):
            running.step(attrs.evolve(request, images=request.images[:, :0]))


@pytest.mark.parametrize("runtime", [STATIC, RuntimeConfig("eager")], ids=["static", "eager"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": lambda t: (t * 255).to(torch.uint8)}, r"images is uint8; give a floating dtype, in \[-1, 1\]"),
        ({"tokens": lambda t: t.float()}, "tokens is float32; give int64"),
        ({"tokens": lambda t: t.tolist()}, "tokens is a list; give a tensor of int64"),
        ({"token_mask": lambda t: t.long()}, "token_mask is int64; give bool"),
        ({"camera_mask": lambda t: torch.ones(2, 2)}, "camera_mask is float32; give bool"),
        ({"noise": lambda t: t.long()}, "noise is int64; give a floating dtype"),
    ],
)
def test_a_device_batch_of_other_dtypes_is_refused(change, message, runtime, tmp_path, catalog):
    """Pixels of 0 to 255 would be taken for normalized ones, and nothing would say so."""
    directory = random_checkpoint(tmp_path, "pi05")
    batch = random_batch(directory, batch=2, tokens=6)
    with engine(directory, catalog=catalog, runtime=runtime) as running:
        request = DeviceBatch(
            images=torch.stack([batch[c] for c in running.model.config.cameras], 1),
            tokens=batch["observation.language.tokens"],
            token_mask=batch["observation.language.attention_mask"],
            noise=batch["noise"],
        )
        ((name, changed),) = change.items()
        with pytest.raises(InputError, match=message):
            running.step(attrs.evolve(request, **{name: changed(getattr(request, name))}))


@pytest.mark.parametrize("runtime", [STATIC, RuntimeConfig("eager")], ids=["static", "eager"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_a_device_batch_of_any_floating_dtype_is_answered_as_its_values_in_float32(dtype, runtime, tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi0")
    batch = random_batch(directory, batch=1, tokens=3)
    with engine(directory, catalog=catalog, runtime=runtime) as running:
        config = running.model.config
        images = torch.stack([batch[c] for c in config.cameras], 1) * 2 - 1
        state = torch.nn.functional.pad(batch[STATE], (0, config.max_state_dim - batch[STATE].shape[1]))
        given = {name: t.to(dtype) for name, t in (("images", images), ("noise", batch["noise"]), ("state", state))}
        request = DeviceBatch(tokens=batch["observation.language.tokens"], **given)
        got = running.step(request).clone()
        assert got.dtype == torch.float32
        assert torch.equal(got, running.step(attrs.evolve(request, **{name: t.float() for name, t in given.items()})))


def test_a_device_batch_without_any_camera_is_answered_alike_in_a_recording(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05")
    batch = random_batch(directory, batch=1, tokens=3)
    answers = []
    for runtime in (RuntimeConfig("eager"), STATIC):
        with engine(directory, catalog=catalog, runtime=runtime) as running:
            images = torch.stack([batch[c] for c in running.model.config.cameras], 1) * 2 - 1
            request = DeviceBatch(images, batch["observation.language.tokens"], batch["noise"])
            without = attrs.evolve(request, camera_mask=torch.zeros(images.shape[:2], dtype=torch.bool))
            answers.append([running.step(each).clone() for each in (request, without)])
    assert not torch.equal(*answers[0])
    for eager, recorded in zip(*answers, strict=True):
        torch.testing.assert_close(recorded, eager, rtol=1e-5, atol=1e-6)


def test_pi0_needs_the_state_of_a_device_batch(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi0")
    batch = random_batch(directory, batch=1, tokens=3)
    with engine(directory, catalog=catalog, runtime=STATIC) as running:
        config = running.model.config
        images = torch.stack([batch[c] for c in config.cameras], 1) * 2 - 1
        request = DeviceBatch(images, batch["observation.language.tokens"], batch["noise"])
        with pytest.raises(InputError, match="lacks state"):
            running.step(request)
        state = torch.nn.functional.pad(batch[STATE], (0, config.max_state_dim - batch[STATE].shape[1]))
        got = running.step(attrs.evolve(request, state=state))
        whole = {**batch, "observation.language.attention_mask": torch.ones(1, 3, dtype=torch.bool)}
        torch.testing.assert_close(got[..., : config.action_dim], actions(running, whole), rtol=1e-5, atol=1e-6)


def test_a_request_that_fails_on_the_way_in_leaves_no_lengths_behind(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05")
    short, long = (random_batch(directory, batch=1, tokens=n, seed=n) for n in (2, 4))
    with engine(directory, catalog=catalog) as running:
        want = actions(running, long)
    with engine(directory, catalog=catalog, runtime=STATIC) as running:
        actions(running, short)
        runner = running.model.runner
        program = next(iter(runner._programs.values()))
        inputs = inputs_of(long, runner.config, None)
        with pytest.raises(RuntimeError):
            program.load(attrs.evolve(inputs, noise=inputs.noise[:, :1, :1].expand(1, 2, 3)), replan=False)
        assert relative_error(actions(running, long), want) < 1e-6


def test_a_bf16_model_answers_alike_eager_and_static(tmp_path, catalog):
    """Its vision tower is in another type than the images, which the buffer holds in float32."""
    directory = random_checkpoint(tmp_path, "pi05")
    batch = LerobotBatch(random_batch(directory, batch=1, tokens=3))
    answers = []
    for runtime in (RuntimeConfig(), RuntimeConfig("static", prompt_buckets=(4, 8))):
        with engine(directory, catalog=catalog, dtype="bf16", runtime=runtime) as running:
            answers.append(running.step(batch).actions)
    torch.testing.assert_close(answers[0], answers[1], rtol=2e-2, atol=2e-2)
