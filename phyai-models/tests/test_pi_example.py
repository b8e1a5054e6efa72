"""The request that models warm up and tune with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from phyai.engine import Engine, EngineArgs

TINY = Path(__file__).parents[2] / "examples" / "pi05-tiny"


@pytest.mark.skipif(not TINY.is_dir(), reason="the example checkpoint comes with the repository")
def test_the_example_is_answered_the_same_each_time(catalog):
    from phyai_models.pi05 import PI05Args

    with Engine(EngineArgs("pi05", PI05Args(TINY)), catalog=catalog) as engine:
        request = catalog.model("pi05").example_request(engine.model)
        first, second = engine.step(request).actions, engine.step(request).actions
    assert first.shape == (1, 50, 7)
    torch.testing.assert_close(first, second)
