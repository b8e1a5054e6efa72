// The ends of a denoising step: actions to x, and x to actions.
#pragma once
#include "expert/consumer.cuh"

__device__ void project_in(Consumer& c) {
    const Params& p = c.p;
    if (!c.owns()) return;
    const float* a = p.actions + c.own_row() * AD;
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = p.in_b[c.own_col() + i];
    for (int j = 0; j < AD; j += 4) {
        const float4 v = __ldcg(reinterpret_cast<const float4*>(a + j));  // other blocks wrote it: not from L1
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float4 w = *reinterpret_cast<const float4*>(p.in_w + (c.own_col() + i) * AD + j);
            x[i] += v.x * w.x + v.y * w.y + v.z * w.z + v.w * w.w;
        }
    }
    c.set_x(make_float4(x[0], x[1], x[2], x[3]));
}

// actions += dt · (norm(x) Wout + bias): block b does row b, eight threads to a column.
__device__ void project_out(Consumer& c, int step, const char* xs) {
    const Params& p = c.p;
    const u32 area = c.take_scratch();
    if (c.block() >= MQ) return;
    const char* at = xs + (c.tid >> 4) * TILE + fragment(c.block(), c.tid & 15);
    uint2 v = load_relaxed2<false>(at);
    for (u32 spins = 0; v.x == EMPTY; v = load_relaxed2<false>(at))
        if (++spins > SPIN_LIMIT) __trap();
    store_shared2(area + c.tid * 8, __uint_as_float(v.x), __uint_as_float(v.y));
    c.sync();
    const u64* squares = c.squares(c.block());
    const float r = c.norm(load_relaxed(squares), squares);
    const int col = c.tid >> 3, part = c.tid & 7;
    float dot = 0.0f;
#pragma unroll 8
    for (int i = part; i < D / 4; i += 8) {
        const float2 xv = load_shared2(area + i * 8);
        const uint2 wv = *reinterpret_cast<const uint2*>(p.out_w + col * D + i * 4);
        const float2 x0 = unpack_bf16(__float_as_uint(xv.x)), x1 = unpack_bf16(__float_as_uint(xv.y));
        const float2 w0 = unpack_bf16(wv.x), w1 = unpack_bf16(wv.y);
        dot += x0.x * w0.x + x0.y * w0.y + x1.x * w1.x + x1.y * w1.y;
    }
#pragma unroll
    for (int i = 1; i < 8; i *= 2) dot += __shfl_xor_sync(~0u, dot, i);
    if (part == 0) p.actions[c.block() * AD + col] += p.dt[step] * (dot * r + p.shift_out[step * AD + col]);
    c.sync();
    if (c.tid == 0) add_release(p.done);
}
