// What the 16 blocks of a head, which have every 16th tile of keys each, publish for each other, and how they combine
// it.
#pragma once
#include "expert/consumer.cuh"

// Publish this split's maxima and sums of weights, for the blocks of the head.
__device__ __forceinline__ void publish_maxima(const Consumer& c, const float (&m)[2], float (&l)[2], u32 use) {
    const Params& p = c.p;
    const int own = ((c.rank() * SPLITS + c.cluster()) * ROWS + c.tile() * 16 + c.g()) * 8;
    char *to = computed(c.copy(p.ml, use, MAXIMA) + own), *empty = computed(c.copy(p.ml, use + 1, MAXIMA) + own);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int row = c.tile() * 16 + c.g() + h * 8;
        l[h] += __shfl_xor_sync(~0u, l[h], 1);
        l[h] += __shfl_xor_sync(~0u, l[h], 2);
        if (row >= MQ || c.q()) continue;
        store_relaxed2(to + h * 64, __float_as_uint(m[h]), __float_as_uint(l[h]));
        store_empty2(empty + h * 64);
    }
}

// Publish a half, I, of this split's sums. A 16-byte unit, 8i + 4j + q of 32, holds what one thread has of four column
// octets; each of the head's 16 blocks is the reader of two. (Wo's columns are in this order.)
template <int I> __device__ __forceinline__ void publish_split(const Consumer& c, const float (&o)[32], u32 use) {
    const Params& p = c.p;
    const u32 tag = use & 1 ^ 1;
    const int reader = c.rank() * 16 + c.group() * 8 + (c.q() >> 1);
    const int first = (reader * SPLITS + c.cluster()) * ROWS + c.tile() * 16 + c.g();
    char* to = computed(p.opart + first * 32 + (c.q() & 1) * 16);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        if (c.tile() * 16 + c.g() + h * 8 >= MQ) continue;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float* v = o + i * 16 + h * 2;
            store_relaxed4(to + (I * 4 + i * 2) * (SPLITS * ROWS * 32) + h * 256,
                           make_uint4(tagged(pack_bf16(v[0], v[1]), tag), pack_bf16(v[4], v[5]),
                                      tagged(pack_bf16(v[8], v[9]), tag), pack_bf16(v[12], v[13])));
        }
    }
}

// Where a thread finds the maximum and sum of split 2i + (tid & 1) of its row, 2·ROWS·8 bytes apart.
__device__ __forceinline__ const char* maxima(const Consumer& c, u32 use) {
    return computed(c.copy(c.p.ml, use, MAXIMA) + ((c.rank() * SPLITS + (c.tid & 1)) * ROWS + (c.tid >> 2)) * 8);
}
__device__ __forceinline__ void ask_maxima(const Consumer& c, int tiles, u32 use, uint2 (&v)[8]) {
    const char* mls = maxima(c, use);
    const int active = (c.tid >> 2) < MQ ? min(tiles, SPLITS) - (c.tid & 1) : 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        v[i] = make_uint2(__float_as_uint(NEG_INF), 0);
        if (2 * i < active) v[i] = load_relaxed2<false>(mls + i * (2 * ROWS * 8));
    }
}

// Two units of every row from all splits of the head; neighbouring threads take the even and the odd splits. `v` are
// the splits' maxima and sums, asked for. They are published long before the parts, and their factors are computed
// while the parts are on their way.
__device__ void combine(Consumer& c, int tiles, u32 use, uint2 (&v)[8]) {
    const Params& p = c.p;
    const int active = min(tiles, SPLITS), row = c.tid >> 2, pick = c.tid >> 1 & 1, half = c.tid & 1;
    const bool live = row < MQ;
    const int first = ((c.rank() * 16 + c.cluster()) * SPLITS + half) * ROWS + row;
    const char* from = computed(p.opart + first * 32 + pick * 16);
    const char* mls = maxima(c, use);
    const u32 tag = use & 1 ^ 1;
    for (u32 spins = 0;;) {
        bool again = false;
#pragma unroll
        for (int i = 0; i < 8; ++i)
            if (v[i].x == EMPTY) {
                v[i] = load_relaxed2<false>(mls + i * (2 * ROWS * 8));
                again = true;
            }
        if (!again) break;
        if (++spins > SPIN_LIMIT) __trap();
    }
    uint4 w[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        w[i] = make_uint4(tag, 0, tag, 0);
        if (live && 2 * i + half < active) w[i] = load_relaxed4<false>(from + i * (2 * ROWS * 32));
    }
    float top = NEG_INF, sum = 0.0f, f[8], y[8];  // while the parts are on their way
#pragma unroll
    for (int i = 0; i < 8; ++i) top = fmaxf(top, __uint_as_float(v[i].x));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        f[i] = power2(__uint_as_float(v[i].x) - top);
        sum += f[i] * __uint_as_float(v[i].y);
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    const float inv = __fdividef(1.0f, sum);
#pragma unroll
    for (int i = 0; i < 8; ++i) f[i] *= inv;
    for (u32 spins = 0;;) {
        bool again = false;
#pragma unroll
        for (int i = 0; i < 8; ++i)
            if (untagged(w[i], tag)) {
                w[i] = load_relaxed4<false>(from + i * (2 * ROWS * 32));
                again = true;
            }
        if (!again) break;
        if (++spins > SPIN_LIMIT) __trap();
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) y[j] = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const u32 pairs[4] = {w[i].x, w[i].y, w[i].z, w[i].w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float2 e = unpack_bf16(pairs[j]);
            y[2 * j] += f[i] * e.x;
            y[2 * j + 1] += f[i] * e.y;
        }
    }
    float mine[4];  // of the two threads, each has half of the columns
#pragma unroll
    for (int j = 0; j < 4; ++j) mine[j] = (half ? y[4 + j] : y[j]) + __shfl_xor_sync(~0u, half ? y[j] : y[4 + j], 1);
    if (!live) return;
    const int unit = c.cluster() * 2 + pick, k_step = (unit >> 2) * 2 + half;
    const int at = (c.rank() * 4 + (k_step >> 2)) * TILE + fragment(row, (k_step & 3) * 8 + (unit & 3) * 2);
    char *to = c.copy(p.obuf, use, 32 * TILE) + at, *empty = c.copy(p.obuf, use + 1, 32 * TILE) + at;
    store_relaxed(to, pack_bf16(mine[0], mine[1]));
    store_relaxed(to + 8, pack_bf16(mine[2], mine[3]));
    store_empty(empty);
    store_empty(empty + 8);
}
