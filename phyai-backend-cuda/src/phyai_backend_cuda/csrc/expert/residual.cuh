// x: sums over the blocks that have the same columns and a part of K each, and publishing it. Stages C and E.
#pragma once
#include "expert/consumer.cuh"

// Publish bf16(x · f) for the use'th time in `word`'s buffer, keep x, and publish this block's part of the sums of
// squares. All of warpgroup 0; what others wait for goes first.
__device__ void publish(Consumer& c, char* word, u32 use, const float2& f, const float4& x) {
    const Params& p = c.p;
    if (c.owns()) {
        store_relaxed2(word, pack_bf16(x.x * f.x, x.y * f.y), pack_bf16(x.z * f.x, x.w * f.y));
        c.set_x(x);
    }
    float s = x.x * x.x + x.y * x.y, s8 = x.z * x.z + x.w * x.w;  // of a row; of the row eight below
    s += __shfl_xor_sync(~0u, s, 1);
    s8 += __shfl_xor_sync(~0u, s8, 1);
    s = c.q() & 1 ? s8 : s;
    s += __shfl_xor_sync(~0u, s, 2);
    const int row = c.first_row() + (c.q() & 1) * 8;
    if (c.q() < 2 && row < MQ)
        add_relaxed(p.ssq + ((c.uses & 3) * ROWS + row) * 16, __float2ull_rn(s * SQUARES) << 8 | 1);
    if (c.owns()) store_empty2(use & 1 ? word - 16 * TILE : word + 16 * TILE);
    // those of three publications ago, which every block has read before it published again
    if (c.block() == 0 && c.tid < MQ) store_relaxed2(p.ssq + ((c.uses + 2 & 3) * ROWS + c.tid) * 16, 0, 0);
}

// Publish this block's part of a W for the 8 blocks of the same columns: octet j of y is rank j's. What blocks pass on
// is bf16, as a product's output is where products are kernels of their own. PHASE 0 and 1 of a layer have areas of
// their own.
constexpr int PART = 1024, PARTS = RANKS * PART;  // bytes of what one block gives another, and all others
__device__ void publish_parts(Consumer& c, char* mine, const float (&acc)[32], u32 tag) {
    float4 y[4];
    c.exchange_octets(acc, y);
    if (c.first_row() < MQ)
#pragma unroll
        for (int j = 0; j < 4; ++j)
            store_relaxed2(mine + j * PART, tagged(pack_bf16(y[j].x, y[j].y), tag), pack_bf16(y[j].z, y[j].w));
}
// The sum of these parts, in the order of ranks, of a thread that owns a part of x.
template <int PHASE> __device__ float4 sum_of_parts(Consumer& c, u32 tag) {
    const char* from = c.p.part + PHASE * (G * PARTS) + c.cluster() * PARTS + c.rank() * PART + c.tid * 8;
    uint2 v[RANKS];
    pause(SUMS_PAUSE);
#pragma unroll
    for (int i = 0; i < RANKS; ++i) v[i] = load_relaxed2<false>(from + i * (16 * PARTS));
    for (u32 spins = 0;; ++spins) {
        u32 wrong = 0;
#pragma unroll
        for (int i = 0; i < RANKS; ++i) wrong |= v[i].x ^ tag;
        if (!(wrong & 1)) break;
#pragma unroll
        for (int i = 0; i < RANKS; ++i)
            if ((v[i].x ^ tag) & 1) v[i] = load_relaxed2<false>(from + i * (16 * PARTS));
        if (spins > SPIN_LIMIT) __trap();
    }
    float4 s = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int i = 0; i < RANKS; ++i) {
        s.x += low_bf16(v[i].x); s.y += high_bf16(v[i].x); s.z += low_bf16(v[i].y); s.w += high_bf16(v[i].y);
    }
    return s;
}

// x += gate · (a W) over CHUNKS chunks of K here and the other ranks' elsewhere; then publish x. PHASE 0: a's words are
// of 4 bytes.
template <int CHUNKS, int PHASE>
__device__ void stage_residual(Consumer& c, const char* a, const float* gates, const float* scales, char* xs,
                               u32 xs_use, u32 use) {
    float acc[32];
    float2 gate, scale;
    char *mine, *word;
    c.product<8, CHUNKS, PHASE == 0>(acc, a, c.cluster() / 4, [&] {
        gate = c.own_columns(gates);
        scale = c.own_columns(scales);
        mine = computed(c.p.part + PHASE * (G * PARTS) + c.block() * PARTS + c.group() * (4 * PART) +
                        (c.tid & 127) * 8);
        word = computed(c.copy(xs, xs_use, 16 * TILE) + c.own_word());
    });
    const u32 tag = use & 1 ^ 1;
    publish_parts(c, mine, acc, tag);
    c.mark();
    if (c.group() == 0) {
        float4 x = c.x();
        if (c.owns()) {
            const float4 s = sum_of_parts<PHASE>(c, tag);
            x = make_float4(x.x + gate.x * s.x, x.y + gate.y * s.y, x.z + gate.x * s.z, x.w + gate.y * s.w);
        }
        publish(c, word, xs_use, scale, x);
    }
    ++c.uses;
    c.mark();
}
