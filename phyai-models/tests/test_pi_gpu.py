"""π models on a GPU: one CUDA graph for a whole inference, held to the CPU at small size."""

import attrs
import pytest
import torch
from phyai.engine import RuntimeConfig
from phyai.errors import InputError
from phyai_models.bench.tape import record_tape
from phyai_models.bench.where import spans_of
from phyai_models.pi.config import PiConfig
from phyai_models.pi.hosted import DeviceBatch, LerobotBatch, NewWeights
from phyai_models.pi.inputs import (
    TOKEN_MASK,
    TOKENS,
    Observation,
    blank_images,
    camera_images,
    cameras_seen,
)
from phyai_models.processors.checks import Checks
from pi_cases import (
    CASES,
    POLICIES,
    UNDER_POLICIES,
    assert_moves_alike,
    case,
    cosine,
    engine,
    inputs_of,
    random_batch,
    random_checkpoint,
    relative_error,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
GRAPH = RuntimeConfig("graph", prompt_buckets=(4, 8))
EXACT = attrs.evolve(GRAPH, prompt_buckets=())


def actions(running, batch, **how):
    return running.step(LerobotBatch(batch, **how)).actions


@pytest.mark.parametrize("runtime", [GRAPH, EXACT], ids=["buckets", "exact"])
@pytest.mark.parametrize("name", CASES)
def test_handed_cases_come_out_as_on_the_cpu(name, runtime, catalog):
    directory, inputs, expected = case(name)
    with engine(directory, catalog=catalog, device="cuda", runtime=runtime) as running:
        got = actions(running, inputs)
    if name == "pi05_c":
        assert cosine(got, expected["actions"]) > 0.999
    else:
        assert relative_error(got, expected["actions"]) < 1e-4


@pytest.mark.parametrize(("height", "width"), [(480, 640), (224, 224), (300, 200)])
def test_images_are_made_ready_on_the_gpu_as_on_the_cpu(height, width):
    config = PiConfig.standard("pi05")
    random = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (2, height, width, 3), dtype=torch.uint8, generator=random)
    key = config.cameras[1]
    seen = [
        Observation({key: pixels[0].numpy()}, "", []),
        Observation({key: pixels[1].permute(2, 0, 1) / 255}, "", []),
    ]
    mask, given = cameras_seen(seen, config, {})
    assert mask.tolist() == [[False, True, False]] * 2
    want, got = (blank_images(mask, config, torch.device(device)) for device in ("cpu", "cuda"))
    for out in (want, got):
        checks = Checks(out.device)
        camera_images(given, out, checks)
        checks.make()
    torch.testing.assert_close(got.cpu(), want, rtol=0, atol=1e-6)
    batch = {key: pixels, TOKENS: torch.zeros(2, 4, dtype=torch.int64), TOKEN_MASK: torch.ones(2, 4, dtype=torch.bool)}
    noise = torch.zeros(2, config.chunk_size, config.max_action_dim)
    want, got = (inputs_of(batch, config, noise, device).images for device in ("cpu", "cuda"))
    torch.testing.assert_close(got.cpu(), want, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("name", "policy"), UNDER_POLICIES)
def test_handed_cases_come_out_under_every_policy(name, policy, catalog):
    directory, inputs, expected = case(name)
    file = POLICIES / name.partition("_")[0] / policy
    with engine(directory, catalog=catalog, policy=file, device="cuda", runtime=EXACT) as running:
        assert_moves_alike(file, actions(running, inputs), inputs, expected["actions"])


@pytest.mark.parametrize("runtime", [GRAPH, EXACT], ids=["buckets", "exact"])
@pytest.mark.parametrize("family", ["pi05", "pi0"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_other_prompts_images_and_noise_are_copied_in_and_planned(family, dtype, runtime, tmp_path, catalog):
    directory = random_checkpoint(tmp_path, family, cameras=3, head_dim=64, width=64, expert_width=64)
    batches = [
        random_batch(directory, batch=1, tokens=tokens, present=present, seed=seed)
        for seed, (tokens, present) in enumerate([(3, 3), (2, 3), (7, 3), (3, 2), (1, 3), (8, 3), (3, 3), (12, 3)])
    ]
    batches += [random_batch(directory, batch=3, tokens=6, seed=9), random_batch(directory, batch=1, tokens=3, seed=10)]
    with (
        engine(directory, catalog=catalog) as cpu,
        engine(directory, catalog=catalog, device="cuda", runtime=runtime, dtype=dtype) as gpu,
    ):
        for batch in batches:
            got, want = actions(gpu, batch), actions(cpu, batch)
            if dtype == "float32":
                assert relative_error(got, want) < 1e-4
            else:
                noise = batch["noise"][..., : want.shape[-1]]
                assert cosine(got - noise, want - noise) > 0.995


def test_new_weights_keep_graphs_valid(tmp_path, catalog):
    old = random_checkpoint(tmp_path / "old", "pi05")
    new = random_checkpoint(tmp_path / "new", "pi05", seed=1)
    batch = random_batch(old, batch=1, tokens=3)
    with engine(new, catalog=catalog, device="cuda", runtime=GRAPH) as running:
        want = actions(running, batch)
    with engine(old, catalog=catalog, device="cuda", runtime=GRAPH) as running:
        first = actions(running, batch)
        recording = next(iter(running.model.runner._programs.values())).rest
        running.step(NewWeights(new))
        assert relative_error(actions(running, batch), want) < 1e-5
        assert next(iter(running.model.runner._programs.values())).rest is recording
        running.step(NewWeights(old))
        assert torch.equal(actions(running, batch), first)


def test_a_replay_calls_no_python_of_ours(tmp_path, catalog, monkeypatch):
    directory = random_checkpoint(tmp_path, "pi05")
    batch = random_batch(directory, batch=1, tokens=3)
    with engine(directory, catalog=catalog, device="cuda", runtime=GRAPH) as running:
        first = actions(running, batch)
        for site in running.dispatcher.sites:
            site.run = None  # nothing may call it
        assert torch.equal(actions(running, batch), first)


def test_tensors_on_the_device_are_answered_there(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05")
    batch = random_batch(directory, batch=2, tokens=6)
    with engine(directory, catalog=catalog, device="cuda", runtime=GRAPH) as running:
        want, config = actions(running, batch), running.model.config
        got = running.step(
            DeviceBatch(
                images=(torch.stack([batch[c] for c in config.cameras], 1) * 2 - 1).cuda(),
                tokens=batch["observation.language.tokens"],
                token_mask=batch["observation.language.attention_mask"],
                noise=batch["noise"].cuda(),
            )
        )
        assert got.is_cuda
        assert torch.equal(got[..., : config.action_dim].cpu(), want)


def test_a_kernel_that_fails_while_captured_is_named_and_replaced(tmp_path, catalog, caplog):
    """A product that synchronizes, which a capture does not allow."""
    directory = random_checkpoint(tmp_path, "pi05")
    batch = random_batch(directory, batch=1, tokens=3)
    with engine(directory, catalog=catalog, device="cuda", runtime=GRAPH) as running:
        import phyai_backend_reference.torch_rows.gemm as rows

        honest = rows.F.linear

        def synchronizing(*given):
            torch.cuda.synchronize()
            return honest(*given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rows.F, "linear", synchronizing)
            got = actions(running, batch)
        chosen = {d.kernel.id for s in running.dispatcher.sites if s.op.name == "gemm" for d in s.decisions}
        assert not chosen & {"torch.gemm.fp32", "torch.gemm.bf16"}
        assert "failed at" in caplog.text
        assert "another kernel takes its place" in caplog.text
        assert torch.cuda.current_stream() == torch.cuda.default_stream(), "the failed capture was left"
        assert torch.randn(3, device="cuda").isfinite().all()
    with engine(directory, catalog=catalog) as cpu:
        assert relative_error(got, actions(cpu, batch)) < 1e-4


@torch.no_grad()
def test_the_same_calls_without_call_sites_make_the_same_graph(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05")
    batch = random_batch(directory, batch=1, tokens=3)
    with engine(directory, catalog=catalog, device="cuda", runtime=GRAPH) as running:
        want = actions(running, batch)
        program = next(iter(running.model.runner._programs.values()))
        tape, graph = record_tape(program.compute, running.dispatcher), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            tape.play()
        program.actions.zero_()
        graph.replay()
        assert torch.equal(program.actions[..., : want.shape[-1]].cpu(), want)
        each, spans, in_graph = spans_of(tape, program.recording.replay, torch.device("cuda"))
        assert in_graph
        assert sum(map(len, each)) == len(spans) > len(running.dispatcher.sites)


def test_recordings_are_made_anew_after_all_of_them_went(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05")
    batch = random_batch(directory, batch=1, tokens=3)
    with engine(directory, catalog=catalog, device="cuda", runtime=GRAPH) as running:
        first = actions(running, batch)
        running.dispatcher.replace_policy(running.dispatcher.policy)
        assert torch.equal(actions(running, batch), first)


@pytest.mark.parametrize("place", ["cpu", "pinned", "cuda"])
def test_pixels_out_of_range_are_refused_and_the_next_request_is_answered(place, tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05")
    batch = random_batch(directory, batch=1, tokens=3)
    camera = next(name for name in batch if "images" in name)

    def at(tensor):
        return tensor.pin_memory() if place == "pinned" else tensor.to(place)

    with engine(directory, catalog=catalog, device="cuda", runtime=GRAPH) as running:
        want = actions(running, batch)
        for value in (1.5, -0.5, float("nan")):
            image = batch[camera].clone()
            image[0, 1, 2, 3] = value
            with pytest.raises(InputError, match=f"{camera}: floating-point pixels span"):
                actions(running, {**batch, camera: at(image)})
            assert torch.equal(actions(running, {name: at(tensor) for name, tensor in batch.items()}), want)


@pytest.mark.parametrize("place", ["cpu", "pinned", "cuda"])
def test_requests_that_nobody_waits_for_keep_their_own_inputs(place, tmp_path, catalog):
    """What lies on the host is the caller's again as soon as ``step`` returns, long before the GPU has come to it."""
    directory = random_checkpoint(tmp_path, "pi05", depth=6)
    batches = [random_batch(directory, batch=1, tokens=tokens, seed=tokens) for tokens in (3, 4, 7, 3, 8, 2)]
    with engine(directory, catalog=catalog, device="cuda", runtime=GRAPH) as running:
        config = running.model.config
        want = [actions(running, batch) for batch in batches]

        def at(tensor):
            return tensor.pin_memory() if place == "pinned" else tensor.to(place)

        requests = [
            DeviceBatch(
                images=at(torch.stack([batch[c] for c in config.cameras], 1) * 2 - 1),
                tokens=batch[TOKENS].clone(), token_mask=batch[TOKEN_MASK].clone(), noise=at(batch["noise"]),
            )
            for batch in batches
        ]  # fmt: skip
        torch.cuda.synchronize()
        torch.cuda._sleep(100_000_000)  # the GPU is late, some 50 ms
        got = []
        for request in requests:
            got.append(running.step(request).clone())
            for tensor in (request.images, request.tokens, request.noise, request.token_mask):
                tensor.zero_()
        for one, other in zip(got, want, strict=True):
            assert torch.equal(one[..., : config.action_dim].cpu(), other)
