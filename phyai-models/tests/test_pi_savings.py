"""What is left out by default does not change the answer."""

import itertools

import pytest
import torch
from phyai_models.pi.eager import layout_of
from phyai_models.pi.layout import make_layout
from phyai_models.pi.model import Savings
from pi_cases import engine, inputs_of, random_batch, random_checkpoint, relative_error, run

SWITCHES = ("drop_masked", "skip_last_layer", "hoist_conditions")


@pytest.mark.parametrize("family", ["pi05", "pi0"])
@pytest.mark.parametrize("switch", SWITCHES)
def test_each_saving_is_exact(family, switch, tmp_path, catalog):
    directory = random_checkpoint(tmp_path, family, cameras=3)
    batch = random_batch(directory, present=2, batch=3)
    got = run(directory, batch, catalog=catalog)
    want = run(directory, batch, catalog=catalog, savings=Savings(**{switch: False}))
    assert set(got) == set(want)
    for name in got:
        if got[name].dtype != torch.bool:
            assert relative_error(got[name], want[name]) < 1e-6, name


def test_all_savings_together_are_exact(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05", cameras=3)
    batch = random_batch(directory, present=1)
    got = run(directory, batch, catalog=catalog)["actions"]
    want = run(directory, batch, catalog=catalog, savings=Savings.none())["actions"]
    assert relative_error(got, want) < 1e-6


def test_dropping_saves_rows(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05", cameras=3)
    batch = random_batch(directory, present=1, batch=1)
    batch["observation.language.attention_mask"][0, 3:] = False
    rows = {}
    for savings in (Savings(), Savings(drop_masked=False)):
        with engine(directory, catalog=catalog, savings=savings) as running:
            model = running.model.runner.model
            rows[savings.drop_masked] = len(layout_of(model, inputs_of(batch, model.config)).gather)
    assert rows == {True: 4 + 3, False: 3 * 4 + 7}


def test_skipping_leaves_the_last_layers_other_weights_unread(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05", depth=2)
    taken = {}
    for skip in (True, False):
        with engine(directory, catalog=catalog, savings=Savings(skip_last_layer=skip)) as running:
            taken[skip] = {site.name for site in running.dispatcher.sites if ".language_model.layers.1." in site.name}
    assert not any("mlp" in name or "o_proj" in name or "attention_paged" in name for name in taken[True])
    assert any("mlp" in name for name in taken[False])


def test_conditions_are_computed_once_per_number_of_steps(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05")
    with engine(directory, catalog=catalog) as running:
        model = running.model.runner.model
        first = model.schedule(4)
        assert model.schedule(4) is first
        assert model.schedule(5) is not first
        assert len(first) == 4


def test_layout_by_hand():
    cameras = torch.tensor([[True, False], [True, True]])
    words = torch.tensor([[True, False, True], [False, True, False]])
    tokens = torch.tensor([[10, 11, 12], [13, 14, 15]])
    layout = make_layout(cameras, words, tokens, patches=1, segments=(1, 2), page=16, drop_masked=True)
    assert layout.token_ids.tolist() == [10, 12, 14]
    # images of the kept cameras are rows 0, 1, 2; the kept words follow as rows 3, 4, 5
    assert layout.gather.tolist() == [0, 3, 4, 1, 2, 5]
    assert layout.rows.tolist() == [[0, 0], [0, 2], [0, 4], [1, 0], [1, 1], [1, 3]]
    assert layout.prefix.positions.tolist() == [0, 1, 2, 0, 1, 2]
    assert layout.prefix.slots.tolist() == [0, 1, 2, 16, 17, 18]
    assert layout.prefix.metadata["cu_seqlens_q"].tolist() == [0, 3, 6]
    assert layout.prefix.metadata["last_page_len"].tolist() == [3, 3]
    assert layout.suffix.positions.tolist() == [3, 4, 5, 3, 4, 5]
    assert layout.suffix.slots.tolist() == [3, 4, 5, 19, 20, 21]
    assert layout.suffix.metadata["cu_seqlens_q"].tolist() == [0, 1, 3, 4, 6]
    assert layout.suffix.metadata["kv_indices"].tolist() == [0, 0, 1, 1]
    assert layout.suffix.metadata["last_page_len"].tolist() == [4, 6, 4, 6]


@pytest.mark.parametrize("drop", [True, False])
def test_layout_never_reuses_a_slot_and_masked_keys_are_out_of_reach(drop):
    generator = torch.Generator().manual_seed(0)
    for _, batch in itertools.product(range(20), (1, 3)):
        cameras = torch.rand(batch, 2, generator=generator) < 0.6
        words = torch.rand(batch, 5, generator=generator) < 0.6
        tokens = torch.zeros(batch, 5, dtype=torch.int64)
        layout = make_layout(cameras, words, tokens, patches=3, segments=(4,), page=16, drop_masked=drop)
        slots = torch.cat([layout.prefix.slots, layout.suffix.slots])
        assert len(set(slots.tolist())) == len(slots)
        valid = torch.cat([cameras.repeat_interleave(3, 1), words], dim=1)
        reach = layout.suffix.metadata["last_page_len"]
        for (request, slot), where in zip(layout.rows.tolist(), layout.prefix.slots.tolist(), strict=True):
            assert (where % 16 < reach[request]) == bool(valid[request, slot])
            assert where // 16 == request
