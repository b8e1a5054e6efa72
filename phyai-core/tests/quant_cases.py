"""The checkpoints and configurations in ``data/quant``, as tests use them."""

from __future__ import annotations

import json
from pathlib import Path

DATA = Path(__file__).parent / "data" / "quant"
CONFIGS = DATA / "configs"
#: Every checkpoint: a folder with ``model.safetensors`` and what its own library says that it stands for.
CHECKPOINTS = sorted(p.parent for p in DATA.glob("*/model.safetensors"))
#: Every configuration as found in public models, with what must be made of it.
INDEX = json.loads((CONFIGS / "index.json").read_text())


def meta(folder: Path) -> dict:
    return json.loads((folder / "meta.json").read_text())
