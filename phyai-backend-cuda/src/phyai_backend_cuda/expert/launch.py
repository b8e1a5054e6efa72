"""Host side of ``csrc/expert/expert.cu``: its scratch, and the launch. Weights: :mod:`.weights`."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from phyai_backend_cuda.expert.weights import BLOCKS, HEADS, RANKS, LayerWeights, pack_embed, pack_layer, pack_out
from phyai_backend_cuda.runtime.launch import current_stream, load

if TYPE_CHECKING:
    import torch

WIDTH, ACTION_DIM = 1024, 32
ROWS = 56  # the most there are, and those stored of partial results
TILE, SPLITS = 8192, 16  # bytes of 64 × 64 bf16; parts of the keys
THREADS, SLOTS = 384, 8  # of a block; of its ring of weights
CARVEOUTS = (100, 132, 164, 196, 228)  # KiB of an SM's 256 that can be shared memory (CUDA programming guide, 9.0)

PARAM_FIELDS: tuple[str, ...] = (
    "wqkv", "wo", "wgu", "wd", "in_w", "in_b", "out_w",
    "scale1", "gate1", "scale2", "gate2", "shift_qkv", "shift_gu", "scale_f", "shift_out", "dt", "cos_sin", "lengths",
    "actions", "kbuf", "vbuf", "xs1", "xs2", "xf", "qbuf", "obuf", "act", "fresh", "ml", "opart", "part",
    "ssq", "kept", "trace",
)  # fmt: skip
#: Those that only some experts have; they come last.
OPTIONAL_FIELDS: tuple[str, ...] = ("fixed", "time", "wembed", "embed_b", "zs")

#: Bytes of what blocks exchange. A launch starts from a blank copy of these; the first eight come as two copies.
EXCHANGE: dict[str, int] = {
    "xs1": 2 * 16 * TILE, "xs2": 2 * 16 * TILE, "xf": 2 * 16 * TILE, "qbuf": 2 * 32 * TILE, "obuf": 2 * 32 * TILE,
    "act": 2 * 64 * TILE, "fresh": 2 * 2 * ROWS * 512, "ml": 2 * HEADS * SPLITS * ROWS * 8, "ssq": 4 * ROWS * 128,
}  # fmt: skip
#: What an expert with an embedding exchanges besides, in two copies.
EMBEDDED: dict[str, int] = {"zs": 2 * 16 * TILE}
FRAGMENTS = ("xs1", "xs2", "xf", "qbuf", "obuf", "act", "zs")
#: A launch starts with these zero: the first use's tag is one.
TAGGED: dict[str, int] = {"opart": HEADS * 16 * SPLITS * ROWS * 32, "part": 2 * BLOCKS * RANKS * 1024}


class _Params(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in PARAM_FIELDS),
        ("layers", ctypes.c_int), ("steps", ctypes.c_int), ("kv_tiles", ctypes.c_int), ("eps", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in OPTIONAL_FIELDS),
    )  # fmt: skip


def shared_bytes(slots: int) -> int:
    """Shared memory of a block: the ring, what its two warpgroups exchange, barriers, x."""
    return slots * 2 * TILE + 2 * 16384 + slots * 16 + 128 * 16


def carveout(slots: int) -> int:
    """Percent of the most shared memory that an SM can have: the least that a block fits in, for the rest is L1."""
    needed = shared_bytes(slots) + 1024  # the system's, of every block
    return min(size for size in CARVEOUTS if size * 1024 >= needed) * 100 // CARVEOUTS[-1]


def areas(buffer: torch.Tensor, sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """``buffer`` (bytes) cut into areas of these sizes."""
    return dict(zip(sizes, buffer.split_with_sizes(list(sizes.values())), strict=True))


@attrs.frozen(eq=False)
class Embedding:
    """A layer that actions pass on their way into the expert, the time of a step among them:
    ``x = silu(x + time[s]) @ weight.T + bias``.

    ``time`` is ``[S, 1024]``, ``weight`` ``[1024, 1024]`` (rounded to bf16 here), ``bias`` ``[1024]``.
    """

    time: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor

    def tensors(self) -> dict[str, torch.Tensor]:
        """As the kernel takes them."""
        from phyai_backend_cuda.runtime.memory import aligned

        packed = pack_embed(self.weight.bfloat16())
        return {"time": aligned(self.time.float()), "wembed": packed, "embed_b": aligned(self.bias.float())}


def blank_exchange(sizes: Mapping[str, int], rows: int, device: Any = None) -> torch.Tensor:
    """All ones where a word says that it is not written yet; zeros in counts and in rows that nobody writes."""
    import torch

    buffer = torch.full((sum(sizes.values()),), 255, dtype=torch.uint8, device=device)
    views = areas(buffer, sizes)
    views["ssq"].zero_()
    for name in sizes.keys() & FRAGMENTS:
        units = views[name].view(-1, 4, 8, 8, 2, 4)  # k-step, row tile, row, pair of columns, row + 8, bytes
        row = torch.arange(4)[:, None, None] * 16 + torch.arange(8)[:, None] + torch.arange(2)[None, None] * 8
        units.masked_fill_((row >= rows)[:, :, None, :, None].to(device), 0)
    return buffer


class Expert:
    """All denoising steps of the expert for up to ``capacity`` keys, as one launch.

    ``run`` updates ``actions`` ``[queries, 32]`` fp32 in place. ``lengths`` (int32, on the device) holds the number of
    prefix keys and the position of the first row; ``cos_sin`` is ``[P, 256]`` fp32. With ``fixed`` there is a row in
    front of the actions', the tensor ``fixed`` ``[1024]`` fp32, that sees the prefix and itself. ``defines`` are macros
    of ``csrc/expert/layout.cuh``: ``SLOTS``, ``QUERIES_PAUSE``, ``SUMS_PAUSE``, ``TRACE``.
    """

    def __init__(
        self, layers: Sequence[LayerWeights], tables: dict[str, torch.Tensor], *, in_weight: torch.Tensor,
        in_bias: torch.Tensor, out_weight: torch.Tensor, dt: torch.Tensor, cos_sin: torch.Tensor, queries: int,
        capacity: int, eps: float, fixed: bool = False, embedding: Embedding | None = None,
        defines: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        import torch

        from phyai_backend_cuda.runtime.memory import aligned

        rows = queries + fixed
        if not 1 <= queries <= ROWS - fixed:
            raise ValueError(f"queries is {queries}; the kernel takes 1 to {ROWS - fixed}")
        device = in_weight.device
        tiles, n = -(-capacity // 64), len(layers)
        self.queries, self.tiles, self.layers = queries, tiles, n
        packed = [torch.stack(parts) for parts in zip(*(pack_layer(layer) for layer in layers), strict=True)]

        def zeros(*shape: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        exchange = EXCHANGE if embedding is None else EXCHANGE | EMBEDDED
        self._blank = torch.cat((blank_exchange(exchange, rows, device), zeros(sum(TAGGED.values()))))
        self._exchange = self._blank.clone()
        self.tensors: dict[str, torch.Tensor] = {
            **dict(zip(("wqkv", "wo", "wgu", "wd"), packed, strict=True)),
            "in_w": aligned(in_weight.float()), "in_b": aligned(in_bias.float()),
            "out_w": pack_out(out_weight.bfloat16()), **tables, "dt": aligned(dt.float()),
            "cos_sin": aligned(cos_sin.float()), "lengths": zeros(2, dtype=torch.int32),
            "actions": zeros(queries, ACTION_DIM, dtype=torch.float32),
            "kbuf": zeros(n, tiles, 4 * TILE), "vbuf": zeros(n, tiles, 4 * TILE),
            **areas(self._exchange, exchange | TAGGED),
            "kept": zeros(BLOCKS, 256, 8, dtype=torch.float32),
            "trace": zeros(BLOCKS, 1024, dtype=torch.int64),
            **({"fixed": zeros(WIDTH, dtype=torch.float32)} if fixed else {}),
            **({} if embedding is None else embedding.tensors()),
        }  # fmt: skip
        given = (*PARAM_FIELDS, *(name for name in OPTIONAL_FIELDS if name in self.tensors))
        pointers = {name: self.tensors[name].data_ptr() for name in given}
        self._params = _Params(**pointers, layers=n, steps=dt.numel(), kv_tiles=tiles, eps=eps)
        form = {"MQ": rows, "FIXED": int(fixed), "EMBED": int(embedding is not None)}
        macros = {**form, "SLOTS": SLOTS, **(defines or {})}
        slots = macros["SLOTS"]
        self._kernel = load(
            "expert/expert.cu", "expert", macros, arch="sm_90a", shared_bytes=shared_bytes(slots),
            carveout=carveout(slots),
        )  # fmt: skip
        self._pack = load("expert/prefix.cu", "pack_kv", {"MQ": rows}, arch="sm_90a")
        self._pointers: torch.Tensor | None = None

    def bind_cache(self, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
        """The prefix's cache per layer, ``[keys, 256]`` bf16: rows without gaps inside that begin at multiples of 16
        bytes, with one row stride for all."""
        import torch

        strides = {t.stride(0) for t in (*keys, *values)}
        if len(strides) != 1:
            raise ValueError(f"the caches' row strides differ: {sorted(strides)}")
        self._stride = strides.pop()
        pointers = [[t.data_ptr() for t in keys], [t.data_ptr() for t in values]]
        self._pointers = torch.tensor(pointers, dtype=torch.int64, device=keys[0].device)

    def load_prefix(self) -> None:
        """Copy the bound cache's first ``lengths[0]`` keys into the kernel's layout."""
        if self._pointers is None:
            raise RuntimeError("bind_cache comes before load_prefix")
        bound = (self._pointers[0], self._pointers[1], *(self.tensors[n] for n in ("lengths", "kbuf", "vbuf")))
        arguments = (*(ctypes.c_void_p(t.data_ptr()) for t in bound), ctypes.c_int(self._stride))
        self._pack.launch((self.tiles, self.layers), 256, arguments, current_stream())

    def run(self) -> torch.Tensor:
        """Every step; ``tensors["actions"]`` holds the noise before and the actions after."""
        self._exchange.copy_(self._blank)
        self._kernel.launch((BLOCKS,), THREADS, (self._params,), current_stream(), cooperative=True)
        return self.tensors["actions"]
