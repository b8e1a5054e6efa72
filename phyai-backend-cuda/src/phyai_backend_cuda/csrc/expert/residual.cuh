// x: sums over the blocks that have the same columns and a part of K each, and publishing it. Stages C and E.
#pragma once
#include "expert/consumer.cuh"

// Publish bf16(x · f) for the use'th time in this buffer, and this block's part of the sums of squares.
__device__ void publish(Consumer& c, char* xs, u32 use, const float2& f) {
    const Params& p = c.p;
    if (c.tid < 128) {
        const float4 x = c.x();
        if (c.owns())
            store_relaxed2(c.copy(xs, use, 16 * TILE) + c.own_word(), pack_bf16(x.x * f.x, x.y * f.y),
                           pack_bf16(x.z * f.x, x.w * f.y));
        float s = x.x * x.x + x.y * x.y, s8 = x.z * x.z + x.w * x.w;  // of a row; of the row eight below
        s += __shfl_xor_sync(~0u, s, 1);
        s8 += __shfl_xor_sync(~0u, s8, 1);
        s = c.q() & 1 ? s8 : s;
        s += __shfl_xor_sync(~0u, s, 2);
        const int row = c.first_row() + (c.q() & 1) * 8;
        if (c.q() < 2 && row < MQ)
            add_relaxed(p.ssq + ((c.uses & 3) * ROWS + row) * 16, __float2ull_rn(s * SQUARES) << 8 | 1);
        if (c.owns()) store_empty2(c.copy(xs, use + 1, 16 * TILE) + c.own_word());
    }
    ++c.uses;
    // those of three publications ago, which every block has read before it published again
    if (c.block() == 0 && c.tid < MQ) store_relaxed2(p.ssq + ((c.uses + 1 & 3) * ROWS + c.tid) * 16, 0, 0);
}

// x += gate · Σ y over the 8 blocks of the same columns, in the order of their ranks; octet j of y belongs to rank j.
// What blocks pass on is bf16, as a product's output is where products are kernels of their own. PHASE 0 and 1 of a
// layer have areas of their own.
template <int PHASE> __device__ void reduce_into_x(Consumer& c, const float (&acc)[32], const float2& gate, u32 use) {
    constexpr int PART = 1024, BLOCK = RANKS * PART * HALVES;  // bytes of what one block gives another, and all others
    const u32 tag = use & 1 ^ 1;
    char* area = c.p.part + PHASE * (G * BLOCK);
    char* mine = area + c.block() * BLOCK + (c.tid & 127) * 8;
    if (HALVES == 2) {
        if (c.first_row() < MQ)
#pragma unroll
            for (int j = 0; j < RANKS; ++j)
                store_relaxed2(mine + (j * HALVES + c.group()) * PART,
                               tagged(pack_bf16(acc[4 * j], acc[4 * j + 1]), tag), pack_bf16(acc[4 * j + 2], acc[4 * j + 3]));
    } else {
        float4 y[4];
        c.exchange_octets(acc, y);
        if (c.first_row() < MQ)
#pragma unroll
            for (int j = 0; j < 4; ++j)
                store_relaxed2(mine + (c.group() * 4 + j) * PART, tagged(pack_bf16(y[j].x, y[j].y), tag),
                               pack_bf16(y[j].z, y[j].w));
    }
    c.mark();
    if (!c.owns()) return;
    const char* from = area + c.cluster() * BLOCK + c.rank() * (PART * HALVES) + c.tid * 8;  // of rank 0's block
    const auto at = [&](int i) { return from + (i / HALVES) * (16 * BLOCK) + (i % HALVES) * PART; };
    constexpr int PARTS = RANKS * HALVES;
    uint2 v[PARTS];
#pragma unroll
    for (int i = 0; i < PARTS; ++i) v[i] = load_relaxed2<false>(at(i));
    for (u32 spins = 0;; ++spins) {
        u32 wrong = 0;
#pragma unroll
        for (int i = 0; i < PARTS; ++i) wrong |= v[i].x ^ tag;
        if (!(wrong & 1)) break;
#pragma unroll
        for (int i = 0; i < PARTS; ++i)
            if ((v[i].x ^ tag) & 1) v[i] = load_relaxed2<false>(at(i));
        if (spins > SPIN_LIMIT) __trap();
    }
    c.detail(60);
    float4 s = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {
        const float2 a = unpack_bf16(v[i].x), b = unpack_bf16(v[i].y);
        s.x += a.x; s.y += a.y; s.z += b.x; s.w += b.y;
    }
    const float4 x = c.x();
    c.set_x(make_float4(x.x + gate.x * s.x, x.y + gate.y * s.y, x.z + gate.x * s.z, x.w + gate.y * s.w));
}

// x += gate · (a W) over CHUNKS chunks of K here and the other ranks' elsewhere; then publish x. PHASE 0: a's words are
// of 4 bytes.
template <int CHUNKS, int PHASE>
__device__ void stage_residual(Consumer& c, const char* a, const float* gates, const float* scales, char* xs,
                               u32 xs_use, u32 use) {
    float acc[32];
    float2 gate, scale;
    if (!LATE) gate = c.own_columns(gates), scale = c.own_columns(scales);
    c.product<8, CHUNKS, PHASE == 0>(acc, a, c.cluster() / 4, [&] {
        if (LATE) gate = c.own_columns(gates), scale = c.own_columns(scales);
    });
    reduce_into_x<PHASE>(c, acc, gate, use);
    publish(c, xs, xs_use, scale);
    c.mark();
}
