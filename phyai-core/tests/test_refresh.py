"""New weights in the memory of the old ones."""

import attrs
import pytest
from phyai.quant import QuantScheme, TensorQuant
from phyai.refresh import in_place, renewed

torch = pytest.importorskip("torch")

from phyai.quant.realize import quantize_weight  # noqa: E402

INT8 = QuantScheme(TensorQuant("int8", "channel"))


def quantized(seed: int):
    return quantize_weight(torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)), INT8)


def test_quantized_and_plain_weights_keep_their_memory_and_absent_ones_stay_absent():
    held = {"weight": quantized(0), "scale": torch.zeros(3), "bias": None}
    addresses = [held["weight"].codes.data_ptr(), held["weight"].scale.data_ptr(), held["scale"].data_ptr()]
    new = quantized(1)
    in_place(held)({"weight": new, "scale": torch.ones(3), "bias": None})
    assert torch.equal(held["weight"].codes, new.codes)
    assert torch.equal(held["weight"].scale, new.scale)
    assert held["scale"].tolist() == [1, 1, 1]
    assert held["bias"] is None
    assert [held["weight"].codes.data_ptr(), held["weight"].scale.data_ptr(), held["scale"].data_ptr()] == addresses


def test_tensors_that_only_a_kernel_has_are_left_to_it():
    old, new = quantized(0), quantized(1)
    arranged = attrs.evolve(old, packed={"arranged": torch.zeros(2)})
    assert renewed(arranged, new) is arranged
    assert arranged.packed["arranged"].tolist() == [0, 0]
    assert torch.equal(arranged.codes, new.codes)
