"""Draw the README's picture: one real decision, as ``phyai explain`` prints it.

python docs/make_images.py
"""

from __future__ import annotations

import io
from pathlib import Path

from phyai import Environment, discover
from phyai.explain import explain_call, render
from phyai.policy import parse_policy
from rich.console import Console

HERE = Path(__file__).parent
POLICY = """
schema: phyai.kernel/v1
rules:
  - id: no-cudnn-in-the-expert
    match: {op: attention_paged, role: expert}
    restrict_to: ["flashinfer.*", "torch.attention_paged.sdpa_flash", "torch.attention_paged.sdpa_math"]
"""


def main() -> None:
    catalog = discover()
    loaded = parse_policy(POLICY.strip().encode(), file="policy.yaml", catalog=catalog)
    decision = explain_call(
        "attention_paged",
        {"role": "expert", "dtype.q": "bf16"},
        catalog,
        loaded.policy,
        Environment.simulated("sm90", libraries=catalog.libraries),
    )
    console = Console(record=True, width=132, file=io.StringIO())
    console.print(render(decision))
    title = "phyai explain --device sm90 --op attention_paged --role expert -d bf16 --policy policy.yaml"
    console.save_svg(str(HERE / "images" / "decision.svg"), title=title)


if __name__ == "__main__":
    main()
