// The ends of a denoising step: actions to x, and x to actions. Every block computes all actions, for it needs them
// all, and its own columns of x.
#pragma once
#include "expert/consumer.cuh"

__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// a Win + bias: what this thread of warpgroup 0 has of x in front of the first layer, or of EMBED; of no row, zero.
class Entry {
    static constexpr int ROW = AD * 4 + 16;  // bytes of a row of actions in shared memory: rows are in different banks
    float4 w[2][AD / 4];
    float2 bias;

    __device__ float2 row(const Consumer& c, u32 area, int row) const {
        if (row < FIXED) return c.own_columns(c.p.fixed + row * D);
        float x[2] = {bias.x, bias.y};
#pragma unroll
        for (int j = 0; j < AD / 4; ++j) {
            const float4 a = as_float4(load_shared4(area + row * ROW + j * 16));
#pragma unroll
            for (int i = 0; i < 2; ++i) x[i] += a.x * w[i][j].x + a.y * w[i][j].y + a.z * w[i][j].z + a.w * w[i][j].w;
        }
        return row < MQ ? make_float2(x[0], x[1]) : make_float2(0.f, 0.f);
    }

   public:
    __device__ explicit Entry(const Consumer& c) {  // asks for the weights
        const float* from = c.p.in_w + c.own_col() * AD;
        bias = *reinterpret_cast<const float2*>(c.p.in_b + c.own_col());
#pragma unroll
        for (int i = 0; i < 2 * AD / 4; ++i) w[i / (AD / 4)][i % (AD / 4)] = reinterpret_cast<const float4*>(from)[i];
    }
    // All threads bring two columns of each octet of their row's action.
    __device__ float4 enter(Consumer& c, const float2 (&a)[AD / 8]) const {
        const u32 area = c.take_scratch();
#pragma unroll
        for (int j = 0; j < AD / 8; ++j) store_shared2(area + c.row() * ROW + j * 32 + c.q() * 8, a[j].x, a[j].y);
        c.sync();
        if (!c.owns()) return make_float4(0.f, 0.f, 0.f, 0.f);
        const float2 x = row(c, area, c.first_row()), x8 = row(c, area, c.first_row() + 8);
        return make_float4(x.x, x.y, x8.x, x8.y);
    }
};

__device__ __forceinline__ float* action(const Consumer& c, int j) {
    return c.p.actions + (c.row() - FIXED) * AD + j * 8 + 2 * c.q();
}
__device__ __forceinline__ bool has_action(const Consumer& c) { return c.row() >= FIXED && c.row() < MQ; }
// Where this thread keeps its part of the actions between steps.
__device__ __forceinline__ float4* kept(const Consumer& c) {
    return reinterpret_cast<float4*>(c.p.kept) + (c.block() * 256 + c.tid) * (AD / 16);
}
__device__ __forceinline__ void keep(const Consumer& c, const float2 (&a)[AD / 8]) {
#pragma unroll
    for (int j = 0; j < AD / 16; ++j) kept(c)[j] = make_float4(a[2 * j].x, a[2 * j].y, a[2 * j + 1].x, a[2 * j + 1].y);
}

// x of the first step.
__device__ float4 first_entry(Consumer& c) {
    const Entry entry(c);
    float2 a[AD / 8];
#pragma unroll
    for (int j = 0; j < AD / 8; ++j)
        a[j] = has_action(c) ? *reinterpret_cast<const float2*>(action(c, j)) : make_float2(0.f, 0.f);
    keep(c, a);
    return entry.enter(c, a);
}

// actions += dt · (norm(x) Wout + bias), and x of the next step. After the last, block b leaves row b's.
__device__ float4 next_entry(Consumer& c, int step, const char* xs) {
    const Params& p = c.p;
    float acc[AD / 2], y[AD / 8][2], dt;
    float2 shift[AD / 8], a[AD / 8];
    u64 sum;
    c.product<AD / 8, 16, false>(acc, xs, 0, [&] {
        sum = load_relaxed(c.squares(c.row()));
        dt = p.dt[step];
#pragma unroll
        for (int j = 0; j < AD / 8; ++j)
            shift[j] = *reinterpret_cast<const float2*>(p.shift_out + step * AD + j * 8 + 2 * c.q());
#pragma unroll
        for (int j = 0; j < AD / 16; ++j) {
            const float4 v = kept(c)[j];
            a[2 * j] = make_float2(v.x, v.y);
            a[2 * j + 1] = make_float2(v.z, v.w);
        }
    });
    const Entry entry(c);
    c.exchange_rows<AD / 8>(acc, y);
    const float r = c.norm(sum, c.squares(c.row()));
#pragma unroll
    for (int j = 0; j < AD / 8; ++j) {
        a[j].x += dt * (y[j][0] * r + shift[j].x);
        a[j].y += dt * (y[j][1] * r + shift[j].y);
    }
    if (step + 1 < p.steps) {
        keep(c, a);
        return entry.enter(c, a);
    }
    if (has_action(c) && c.block() == c.row())
#pragma unroll
        for (int j = 0; j < AD / 8; ++j) *reinterpret_cast<float2*>(action(c, j)) = a[j];
    return make_float4(0.f, 0.f, 0.f, 0.f);
}

// With EMBED: silu(x + time) Wembed + bias instead of x. Like stage A, and a block's octet of columns is that of x
// which it owns.
__device__ float4 embed(Consumer& c, int step, const float4& x) {
    const Params& p = c.p;
    float acc[4], y[1][2];
    if (c.owns()) {
        const float2 t = c.own_columns(p.time + step * D);
        store_relaxed2(c.copy(p.zs, step, 16 * TILE) + c.own_word(), pack_bf16(silu(x.x + t.x), silu(x.y + t.y)),
                       pack_bf16(silu(x.z + t.x), silu(x.w + t.y)));
        store_empty2(c.copy(p.zs, step + 1, 16 * TILE) + c.own_word());
    }
    float2 bias;
    c.product<1, 16, false>(acc, c.copy(p.zs, step, 16 * TILE), c.block() / 4,
                            [&] { bias = *reinterpret_cast<const float2*>(p.embed_b + c.own_col()); });
    c.exchange_rows<1>(acc, y);
    float2 z = make_float2(y[0][0] + bias.x, y[0][1] + bias.y);
    if (FIXED && c.row() < FIXED) z = *reinterpret_cast<const float2*>(p.fixed + c.row() * D + c.own_col());
    if (c.row() >= MQ) z = make_float2(0.f, 0.f);
    store_shared2(c.own_x() + c.group() * 8, z.x, z.y);
    c.sync();
    return c.x();
}
