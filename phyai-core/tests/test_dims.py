"""Symbolic dimensions: from shapes to names and back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai.dims import bind_dims, dim_size
from phyai.errors import CallError, DeclarationError
from phyai.op import Tensor

SIZES = st.integers(0, 9)


@settings(max_examples=100, deadline=None)
@given(m=st.lists(SIZES, max_size=3), k=SIZES, b=SIZES)
def test_binding_gives_back_what_the_shape_was_made_of(m: list[int], k: int, b: int) -> None:
    tensors = (Tensor("x", ("B", "...M", "3*K")), Tensor("y", ("B+1", "K", "2")))
    shapes = {"x": (b, *m, 3 * k), "y": (b + 1, k, 2)}
    assert bind_dims(tensors, shapes) == {"B": b, "M": math.prod(m), "K": k}


@settings(max_examples=50, deadline=None)
@given(factor=st.integers(1, 5), shift=st.integers(-3, 3), size=st.integers(0, 20))
def test_a_size_that_follows_from_a_name_binds_that_name(factor: int, shift: int, size: int) -> None:
    dim = f"{factor}*N{shift:+d}" if shift else f"{factor}*N"
    total = dim_size(dim, {"N": size})
    assert total == factor * size + shift
    if total >= 0:
        assert bind_dims((Tensor("t", (dim,)),), {"t": (total,)}) == {"N": size}


@pytest.mark.parametrize(
    ("dims", "shape", "message"),
    [
        (("M", "K"), (2, 3, 4), r"x has shape \(2, 3, 4\); the signature asks for \(M K\)"),
        (("...M", "K", "D"), (2,), r"x has shape \(2,\); the signature asks for \(\.\.\.M K D\)"),
        (("2*I",), (5,), r"\(5,\), which for \(2\*I\) asks for a multiple of 2 at 2\*I, not 5"),
        (("M", "3"), (2, 4), r"\(2, 4\), which for \(M 3\) asks for 3 there"),
        (("M", "M"), (2, 4), r"makes M=4, but M=2 by the tensors before it"),
    ],
)
def test_a_shape_that_does_not_fit_is_an_error(dims: tuple[str, ...], shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(CallError, match=message):
        bind_dims((Tensor("x", dims),), {"x": shape})


def test_tensors_that_disagree_are_an_error() -> None:
    tensors = (Tensor("x", ("...M", "K")), Tensor("weight", ("N", "K")))
    with pytest.raises(CallError, match=r"weight has shape \(8, 63\).* makes K=63, but K=64 by the tensors before it"):
        bind_dims(tensors, {"x": (2, 25, 64), "weight": (8, 63)})


def test_absent_tensors_bind_nothing() -> None:
    assert bind_dims((Tensor("x", ("M",)), Tensor("mask", ("M", "K"), optional=True)), {"x": (4,)}) == {"M": 4}


def test_a_variadic_dimension_of_nothing_is_one() -> None:
    assert bind_dims((Tensor("x", ("...M", "K")),), {"x": (7,)}) == {"M": 1, "K": 7}


@pytest.mark.parametrize("dim", ["M*2", "", "M N", "2*", "+1", "M-"])
def test_a_malformed_dimension_is_an_error(dim: str) -> None:
    with pytest.raises(DeclarationError, match="must read like"):
        dim_size(dim, {"M": 1, "N": 1})
