// x: sums over the blocks that have the same columns and a part of K each, and publishing it. Stages C and E.
#pragma once
#include "expert/consumer.cuh"

// Publish bf16(x · f) for the use'th time in this buffer, and this block's part of the sums of squares.
__device__ void publish(Consumer& c, char* xs, u32 use, const float4& f) {
    const Params& p = c.p;
    const float4 x = c.x();
    float s = x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
    s += __shfl_xor_sync(~0u, s, 1);
    if (c.owns()) {
        const int at = c.cluster() * TILE + fragment(c.own_row(), c.rank() * 2 + (c.tid & 1));
        store_relaxed2(c.copy(xs, use, 16 * TILE) + at, pack_bf16(x.x * f.x, x.y * f.y), pack_bf16(x.z * f.z, x.w * f.w));
        if (!(c.tid & 1))
            add_relaxed(p.ssq + ((c.uses & 3) * ROWS + c.own_row()) * 16, __float2ull_rn(s * SQUARES) << 8 | 1);
        store_empty2(c.copy(xs, use + 1, 16 * TILE) + at);
    }
    ++c.uses;
    // those of three publications ago, which every block has read before it published again
    if (c.block() == 0 && c.tid < MQ) store_relaxed2(p.ssq + ((c.uses + 1 & 3) * ROWS + c.tid) * 16, 0, 0);
}

// x += gate · Σ y over the 8 blocks of the same columns, in the order of their ranks; octet j of y belongs to rank j.
// What blocks pass on is bf16, as a product's output is where products are kernels of their own. PHASE 0 and 1 of a
// layer have areas of their own.
template <int PHASE> __device__ void reduce_into_x(Consumer& c, const float (&y)[8][2], const float4& gate, u32 use) {
    constexpr int PART = ROWS * 16, BLOCK = RANKS * PART;  // bytes of what one block gives another, and all others
    const u32 tag = use & 1 ^ 1;
    char* area = c.p.part + PHASE * (G * BLOCK);
    char* mine = area + c.block() * BLOCK + c.row() * 16 + 4 * c.q();
    if (c.row() < MQ)
#pragma unroll
        for (int j = 0; j < RANKS; ++j) store_relaxed(mine + j * PART, tagged(pack_bf16(y[j][0], y[j][1]), tag));
    c.mark();
    if (!c.owns()) return;
    const char* from = area + c.cluster() * BLOCK + c.rank() * PART + c.tid * 8;  // row tid / 2, of rank 0's block
    uint2 v[RANKS];
#pragma unroll
    for (int r = 0; r < RANKS; ++r) v[r] = load_relaxed2<true>(from + r * (16 * BLOCK));
    bool again = true;
    for (u32 spins = 0; again; ++spins) {
        again = false;
#pragma unroll
        for (int r = 0; r < RANKS; ++r)
            if (untagged(v[r], tag)) {
                v[r] = load_relaxed2<true>(from + r * (16 * BLOCK));
                again = true;
            }
        if (spins > SPIN_LIMIT) __trap();
    }
    float4 s = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int r = 0; r < RANKS; ++r) {
        const float2 a = unpack_bf16(v[r].x), b = unpack_bf16(v[r].y);
        s.x += a.x; s.y += a.y; s.z += b.x; s.w += b.y;
    }
    const float4 x = c.x();
    c.set_x(make_float4(x.x + gate.x * s.x, x.y + gate.y * s.y, x.z + gate.z * s.z, x.w + gate.w * s.w));
}

// x += gate · (a W) over CHUNKS chunks of K here and the other ranks' elsewhere; then publish x.
template <int CHUNKS, int PHASE>
__device__ void stage_residual(Consumer& c, const char* a, const float* gates, const float* scales, char* xs,
                               u32 xs_use, u32 use) {
    float acc[32], y[8][2];
    const float4 gate = c.own_columns(gates), scale = c.own_columns(scales);
    c.product<8, CHUNKS>(acc, a, c.cluster() / 4, nullptr);
    c.exchange<8>(acc, y);
    reduce_into_x<PHASE>(c, y, gate, use);
    publish(c, xs, xs_use, scale);
    c.mark();
}
