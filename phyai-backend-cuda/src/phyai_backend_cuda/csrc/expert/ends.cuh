// The ends of a denoising step: actions to x, and x to actions.
#pragma once
#include "expert/consumer.cuh"

__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// This thread's two columns of a row of actions, projected: a Win + bias.
__device__ __forceinline__ float2 projected(const Consumer& c, int row) {
    const Params& p = c.p;
    const float* a = p.actions + (row - FIXED) * AD;
    float x[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) x[i] = p.in_b[c.own_col() + i];
#pragma unroll
    for (int j = 0; j < AD; j += 4) {
        const float4 v = __ldcg(reinterpret_cast<const float4*>(a + j));  // other blocks wrote it: not from L1
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float4 w = *reinterpret_cast<const float4*>(p.in_w + (c.own_col() + i) * AD + j);
            x[i] += v.x * w.x + v.y * w.y + v.z * w.z + v.w * w.w;
        }
    }
    return make_float2(x[0], x[1]);
}
// What this thread has of x in front of the first layer, or of EMBED: of no row it has zero.
__device__ __forceinline__ float2 entering(const Consumer& c, int row) {
    if (row >= MQ) return make_float2(0.f, 0.f);
    return row < FIXED ? c.own_columns(c.p.fixed + row * D) : projected(c, row);
}

__device__ void project_in(Consumer& c) {
    if (!c.owns()) return;
    const float2 x = entering(c, c.first_row()), x8 = entering(c, c.first_row() + 8);
    c.set_x(make_float4(x.x, x.y, x8.x, x8.y));
}

// The same with EMBED: x = silu(a Win + bias + time) Wembed + bias. Like stage A, and a block's octet of columns is that
// of x which it owns.
__device__ void embed_in(Consumer& c, int step) {
    const Params& p = c.p;
    float acc[4], y[1][2];
    if (c.owns()) {
        const float2 a = entering(c, c.first_row()), b = entering(c, c.first_row() + 8), t = c.own_columns(p.time + step * D);
        store_relaxed2(c.copy(p.zs, step, 16 * TILE) + c.own_word(), pack_bf16(silu(a.x + t.x), silu(a.y + t.y)),
                       pack_bf16(silu(b.x + t.x), silu(b.y + t.y)));
        store_empty2(c.copy(p.zs, step + 1, 16 * TILE) + c.own_word());
    }
    float2 bias;
    c.product<1, 16, false>(acc, c.copy(p.zs, step, 16 * TILE), c.block() / 4,
                            [&] { bias = *reinterpret_cast<const float2*>(p.embed_b + c.own_col()); });
    c.exchange_rows<1>(acc, y);
    float2 x = make_float2(y[0][0] + bias.x, y[0][1] + bias.y);
    if (FIXED && c.row() < FIXED) x = *reinterpret_cast<const float2*>(p.fixed + c.row() * D + c.own_col());
    if (c.row() >= MQ) x = make_float2(0.f, 0.f);
    store_shared2(c.own_x() + c.group() * 8, x.x, x.y);
    c.sync();
}

// actions += dt · (norm(x) Wout + bias): block b does row b, eight threads to a column. What is fixed stays.
__device__ void project_out(Consumer& c, int step, const char* xs) {
    const Params& p = c.p;
    const u32 area = c.take_scratch();
    if (c.block() >= MQ || (FIXED && c.block() < FIXED)) return;
    const int col = c.tid >> 3, part = c.tid & 7;
    uint2 w[D / 32];  // read ahead of x
#pragma unroll
    for (int i = 0; i < D / 32; ++i) w[i] = *reinterpret_cast<const uint2*>(p.out_w + col * D + (part + i * 8) * 4);
    const char* at = xs + (c.tid >> 4) * TILE + fragment(c.block() & ~8, (c.tid & 15) * 2);
    uint4 v[1] = {load_relaxed4<false>(at)};
    Consumer::settle<1, false>(v, at);
    const bool below = c.block() & 8;
    store_shared2(area + c.tid * 8, __uint_as_float(below ? v[0].y : v[0].x), __uint_as_float(below ? v[0].w : v[0].z));
    c.sync();
    const u64* squares = c.squares(c.block());
    const float r = c.norm(load_relaxed(squares), squares);
    float dot = 0.0f;
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
        const float2 xv = load_shared2(area + (part + i * 8) * 8);
        const float2 x0 = unpack_bf16(__float_as_uint(xv.x)), x1 = unpack_bf16(__float_as_uint(xv.y));
        const float2 w0 = unpack_bf16(w[i].x), w1 = unpack_bf16(w[i].y);
        dot += x0.x * w0.x + x0.y * w0.y + x1.x * w1.x + x1.y * w1.y;
    }
#pragma unroll
    for (int i = 1; i < 8; i *= 2) dot += __shfl_xor_sync(~0u, dot, i);
    if (part == 0) p.actions[(c.block() - FIXED) * AD + col] += p.dt[step] * (dot * r + p.shift_out[step * AD + col]);
    c.sync();
    if (c.tid == 0) add_release(p.done);
}
