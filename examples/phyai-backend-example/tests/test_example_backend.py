"""The example does what it declares, and computes what ``activation(gate) * up`` is."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="the kernel computes with it")

from phyai.environment import Environment  # noqa: E402
from phyai.facts import Facts  # noqa: E402
from phyai.plugins import discover  # noqa: E402
from phyai.testing.conformance import conform  # noqa: E402
from phyai_backend_example.gated_activation import prepare  # noqa: E402

CLOSED_FORMS = {
    "silu": lambda x: x / (1 + math.exp(-x)),
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
}


@pytest.mark.parametrize("rows", [0, 16])
@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_it_computes_the_closed_form(name, rows):
    x = torch.tensor([[-2.0, 0.5, 3.0, 4.0], [0.0, 1.0, -1.0, 0.25]], dtype=torch.float64)
    run = prepare(Facts({"attrs.activation": name}), {}, {"rows": rows}, None).run
    want = [[CLOSED_FORMS[name](row[i]) * row[i + 2] for i in range(2)] for row in x.tolist()]
    torch.testing.assert_close(run(x), torch.tensor(want, dtype=torch.float64), rtol=1e-12, atol=1e-14)


def test_every_kernel_does_what_it_declares():
    catalog = discover()
    if not any(kernel.backend == "example" for kernel in catalog.kernels):
        pytest.skip("phyai-backend-example is not installed: pip install -e examples/phyai-backend-example")
    report = conform("example", catalog, Environment.detect("cpu", libraries=catalog.libraries), seconds=10)
    assert report.passed, "\n".join(f"{s.name}: {c.name}: {c.reason}\n{c.line}" for s, c in report.failures())
