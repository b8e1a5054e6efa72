// The ends of a denoising step: actions to x, and x to actions.
#pragma once
#include "expert/consumer.cuh"

__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// This thread's columns of its action, projected: a Win + bias.
__device__ __forceinline__ float4 projected(const Consumer& c) {
    const Params& p = c.p;
    const float* a = p.actions + (FIXED ? max(c.own_row() - FIXED, 0) : c.own_row()) * AD;
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
    return make_float4(x[0], x[1], x[2], x[3]);
}

__device__ void project_in(Consumer& c) {
    if (!c.owns()) return;
    if (FIXED && c.own_row() < FIXED) c.set_x(c.own_columns(c.p.fixed + c.own_row() * D));
    else c.set_x(projected(c));
}

// The same with EMBED: x = silu(a Win + bias + time) Wembed + bias. Like stage A, and a block's octet of columns is that
// of x which it owns.
__device__ void embed_in(Consumer& c, int step) {
    const Params& p = c.p;
    float acc[4], y[1][2];
    if (c.owns()) {
        const float4 a = projected(c), t = c.own_columns(p.time + step * D);
        const int at = c.cluster() * TILE + fragment(c.own_row(), c.rank() * 2 + (c.tid & 1));
        store_relaxed2(c.copy(p.zs, step, 16 * TILE) + at, pack_bf16(silu(a.x + t.x), silu(a.y + t.y)),
                       pack_bf16(silu(a.z + t.z), silu(a.w + t.w)));
        store_empty2(c.copy(p.zs, step + 1, 16 * TILE) + at);
    }
    const int col = c.cluster() * 64 + c.rank() * 8 + 2 * c.q();
    const float2 bias = *reinterpret_cast<const float2*>(p.embed_b + col);
    c.product<1, 16>(acc, c.copy(p.zs, step, 16 * TILE), c.block() / 4, nullptr);
    c.exchange<1>(acc, y);
    float2 x = make_float2(y[0][0] + bias.x, y[0][1] + bias.y);
    if (FIXED && c.row() < FIXED) x = *reinterpret_cast<const float2*>(p.fixed + c.row() * D + col);
    if (c.row() < MQ) store_shared2(Consumer::x_area() + c.row() * 32 + c.q() * 8, x.x, x.y);
    c.sync();
}

// actions += dt · (norm(x) Wout + bias): block b does row b, eight threads to a column. What is fixed stays.
__device__ void project_out(Consumer& c, int step, const char* xs) {
    const Params& p = c.p;
    const u32 area = c.take_scratch();
    if (c.block() >= MQ || (FIXED && c.block() < FIXED)) return;
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
    if (part == 0) p.actions[(c.block() - FIXED) * AD + col] += p.dt[step] * (dot * r + p.shift_out[step * AD + col]);
    c.sync();
    if (c.tid == 0) add_release(p.done);
}
