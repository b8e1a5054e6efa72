// Stage B: attention of the chunk's queries over one key and value head, split over 16 tiles of 64 keys (flash
// decoding). A block has one query head and every 16th tile; then the head's 16 blocks combine 16 columns each.
#pragma once
#include "expert/consumer.cuh"

// Units of 16 bytes of a tile that holds keys of this step, from the cache and from what blocks have just published, into
// the slots that the producer has kept free: `thread` of THREADS writes 8 of them, from item FIRST of the tile's four on.
template <int FIRST, int THREADS>
__device__ void fill(Consumer& c, int layer, int tile, int prefix, u32 use, int thread) {
    const Params& p = c.p;
    const char* src[8];
    uint4 v[8];
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        const int u = n * THREADS + thread, item = FIRST + (u >> 10), half = u >> 9 & 1, r = u >> 3 & 63, pu = u & 7;
        const int chunk = item < 2 ? item * 2 + half : item - 2 + half * 2, key = tile * 64 + r;
        const size_t old = ((size_t(layer) * p.kv_tiles + tile) * 4 + (item & 1) * 2 + half) * TILE + r * 128 + pu * 16;
        const int now = (((use & 1) * 2 + (item >> 1)) * ROWS + key - prefix) * 512 + chunk * 128 + ((pu ^ (r & 7)) << 4);
        src[n] = key < prefix ? (item < 2 ? p.kbuf : p.vbuf) + old : p.fresh + now;
        v[n] = make_uint4(0, 0, 0, 0);
        if (key < prefix + MQ) v[n] = load_relaxed4<true>(src[n]);
    }
    u32 spins = 0;
    while (missing<8, true>(v)) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            const uint4 one[1] = {v[n]};
            if (missing<1, true>(one)) v[n] = load_relaxed4<true>(src[n]);
        }
        if (++spins > SPIN_LIMIT) __trap();
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        const int u = n * THREADS + thread, item = FIRST + (n * THREADS >> 10);
        if ((n * THREADS & 1023) == 0) c.ring.wait_full(item);
        store_shared4(c.ring.data(item) + (u & 1023) * 16, v[n]);
    }
    fence_async();
}

// s[64 queries, 64 keys] = q · kᵀ, for one warpgroup; k is the ring's next two items.
__device__ __forceinline__ void scores(Consumer& c, float (&s)[32], const char* queries) {
    uint4 q[4][4];
    Consumer::fetch_first<true>(q[0], queries);
#pragma unroll
    for (int i = 1; i < 4; ++i) Consumer::fetch<true>(q[i], queries + i * TILE);
#pragma unroll
    for (int i = 0; i < 32; ++i) s[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (!(i & 1)) c.ring.wait_full(i >> 1);
        Consumer::settle<4, true>(q[i], queries + i * TILE);
        const u64 k = uniform_desc(c.ring.data(i >> 1) + (i & 1) * TILE);
        gmma_fence();
#pragma unroll
        for (int j = 0; j < 4; ++j) gmma<8>(s, q[i][j], k + 2 * j);
        gmma_commit();
    }
    gmma_wait<0>();
    gmma_pin(s);
    c.release(0, 2);
    c.release(1, 2);
}

// What exponents are relative to: where every row sees a key of every tile, the maximum.
__device__ __forceinline__ float relative_to(float maximum) { return FIXED && maximum == NEG_INF ? 0.0f : maximum; }

// Weights e^(s - maximum) as fragments, with the running maxima m, sums l, and factors f of what was there before. A
// fixed row sees the first of the new keys as well, and no other of them: of some tiles it may see none.
__device__ __forceinline__ void softmax(const Consumer& c, float (&s)[32], int first_key, int keys, float (&m)[2],
                                        float (&l)[2], float (&f)[2], uint4 (&weights)[4]) {
    const float scale = 1.4426950408889634f / 16.0f;  // log2(e) / sqrt(HD)
    const bool is_fixed = FIXED && c.tile() * 16 + c.g() < FIXED;
    const int seen[2] = {is_fixed ? keys - MQ + FIXED : keys, keys};
    float mx[2] = {m[0], m[1]};
#pragma unroll
    for (int i = 0; i < 32; ++i) {
        const int key = first_key + (i >> 2) * 8 + 2 * c.q() + (i & 1);
        s[i] = key < seen[(i >> 1) & 1] ? s[i] * scale : NEG_INF;
        mx[(i >> 1) & 1] = fmaxf(mx[(i >> 1) & 1], s[i]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        mx[h] = fmaxf(mx[h], __shfl_xor_sync(~0u, mx[h], 1));
        mx[h] = fmaxf(mx[h], __shfl_xor_sync(~0u, mx[h], 2));
        f[h] = exp2f(m[h] - relative_to(mx[h]));  // a tile always has a valid key: but for fixed rows, mx is finite
        m[h] = mx[h];
        l[h] *= f[h];
    }
    u32 e[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const float a = exp2f(s[2 * i] - relative_to(m[i & 1])), b = exp2f(s[2 * i + 1] - relative_to(m[i & 1]));
        l[i & 1] += a + b;
        e[i] = pack_bf16(a, b);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) weights[i] = make_uint4(e[4 * i], e[4 * i + 1], e[4 * i + 2], e[4 * i + 3]);
}

// Publish this split's sums, maxima and weights of the head. A 16-byte unit, 8i + 4j + q of 32, holds what one thread
// has of four column octets; each of the head's 16 blocks is the reader of two. (Wo's columns are in this order.)
__device__ __forceinline__ void publish_split(const Consumer& c, const float (&o)[2][32], const float (&m)[2],
                                              float (&l)[2], u32 use) {
    const Params& p = c.p;
    const u32 tag = use & 1 ^ 1;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int row = c.tile() * 16 + c.g() + h * 8;
        l[h] += __shfl_xor_sync(~0u, l[h], 1);
        l[h] += __shfl_xor_sync(~0u, l[h], 2);
        if (row >= MQ) continue;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int unit = (c.group() * 2 + (i >> 1)) * 8 + (i & 1) * 4 + c.q();
            const int split = (c.rank() * 16 + (unit >> 1)) * SPLITS + c.cluster();
            const float* v = o[i >> 1] + (i & 1) * 16 + h * 2;
            store_relaxed4(p.opart + (split * ROWS + row) * 32 + (unit & 1) * 16,
                           make_uint4(tagged(pack_bf16(v[0], v[1]), tag), pack_bf16(v[4], v[5]),
                                      tagged(pack_bf16(v[8], v[9]), tag), pack_bf16(v[12], v[13])));
        }
        if (c.group() == 0 && c.q() == 0) {
            const int own = ((c.rank() * SPLITS + c.cluster()) * ROWS + row) * 8;
            store_relaxed2(c.copy(p.ml, use, MAXIMA) + own, __float_as_uint(m[h]), __float_as_uint(l[h]));
            store_empty2(c.copy(p.ml, use + 1, MAXIMA) + own);
        }
    }
}

// Warpgroup 0 multiplies q and k and takes the softmax; both multiply with two of the four column chunks of v.
__device__ void attend(Consumer& c, int layer, int prefix, int tiles, u32 use) {
    const char* queries = c.copy(c.p.qbuf, use, 32 * TILE) + c.rank() * 4 * TILE + c.unit();
    float o[2][32], m[2] = {NEG_INF, NEG_INF}, l[2] = {0.0f, 0.0f}, f[2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 32; ++j) o[i][j] = 0.0f;
#pragma unroll 1
    for (int tile = c.cluster(); tile < tiles; tile += SPLITS) {
        const bool fresh = tile >= prefix / 64;
        if (fresh) {
            fill<0, 256>(c, layer, tile, prefix, use, c.tid);
            c.sync();
        }
        const u32 area = c.take_scratch() + (c.tid & 127) * 16;
        uint4 weights[4];
        if (c.group() == 0) {
            float s[32];
            scores(c, s, queries);
            c.mark();
            softmax(c, s, tile * 64, prefix + MQ, m, l, f, weights);
#pragma unroll
            for (int i = 0; i < 4; ++i) store_shared4(area + i * 2048, weights[i]);
            store_shared2(area + 8192, f[0], f[1]);
        } else if (fresh) {
            fill<2, 128>(c, layer, tile, prefix, use, c.tid & 127);
            fill<3, 128>(c, layer, tile, prefix, use, c.tid & 127);
        }
        c.sync();
        if (c.group() == 1) {
#pragma unroll
            for (int i = 0; i < 4; ++i) weights[i] = load_shared4(area + i * 2048);
            const float2 v = load_shared2(area + 8192);
            f[0] = v.x;
            f[1] = v.y;
        }
        c.mark();
        if (tile != c.cluster())
#pragma unroll
            for (int i = 0; i < 64; ++i) o[i >> 5][i & 31] *= f[(i >> 1) & 1];
        c.ring.next();
        c.ring.next();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            c.ring.wait_full();
            const u64 v = uniform_desc(c.ring.data() + c.group() * TILE);
            gmma_fence();
#pragma unroll
            for (int j = 0; j < 4; ++j) gmma_mn(o[i], weights[j], v + 128 * j);
            gmma_commit();
            c.ring.next();
        }
        gmma_wait<0>();
        gmma_pin(o[0]);
        gmma_pin(o[1]);
        c.release(-2);
        c.release(-1);
        c.mark();
    }
    publish_split(c, o, m, l, use);
}

// Two units of every row from all splits of the head; neighbouring threads take the even and the odd splits.
__device__ void combine(Consumer& c, int tiles, u32 use) {
    const Params& p = c.p;
    const int active = min(tiles, SPLITS), row = c.tid >> 2, pick = c.tid >> 1 & 1, half = c.tid & 1;
    const bool live = row < MQ;
    const char* from = p.opart + (((c.rank() * 16 + c.cluster()) * SPLITS + half) * ROWS + row) * 32 + pick * 16;
    const char* mls = c.copy(p.ml, use, MAXIMA) + ((c.rank() * SPLITS + half) * ROWS + row) * 8;
    const u32 tag = use & 1 ^ 1;
    uint4 w[8];
    uint2 v[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        w[i] = make_uint4(tag, 0, tag, 0);
        v[i] = make_uint2(__float_as_uint(NEG_INF), 0);
        if (live && 2 * i + half < active) {
            w[i] = load_relaxed4<false>(from + i * (2 * ROWS * 32));
            v[i] = load_relaxed2<false>(mls + i * (2 * ROWS * 8));
        }
    }
    u32 spins = 0;
    bool again = live;
    while (again) {
        again = false;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (untagged(w[i], tag)) {
                w[i] = load_relaxed4<false>(from + i * (2 * ROWS * 32));
                again = true;
            }
            if (v[i].x == EMPTY) {
                v[i] = load_relaxed2<false>(mls + i * (2 * ROWS * 8));
                again = true;
            }
        }
        if (++spins > SPIN_LIMIT) __trap();
    }
    float top = NEG_INF, sum = 0.0f, y[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) top = fmaxf(top, __uint_as_float(v[i].x));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
#pragma unroll
    for (int j = 0; j < 8; ++j) y[j] = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float f = exp2f(__uint_as_float(v[i].x) - top);
        const u32 pairs[4] = {w[i].x, w[i].y, w[i].z, w[i].w};
        sum += f * __uint_as_float(v[i].y);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float2 e = unpack_bf16(pairs[j]);
            y[2 * j] += f * e.x;
            y[2 * j + 1] += f * e.y;
        }
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
#pragma unroll
    for (int j = 0; j < 8; ++j) y[j] += __shfl_xor_sync(~0u, y[j], 1);
    if (!live) return;
    const float inv = 1.0f / sum;
    const int unit = c.cluster() * 2 + pick, k_step = (unit >> 2) * 2 + half;
    const int at = (c.rank() * 4 + (k_step >> 2)) * TILE + fragment(row, (k_step & 3) * 8 + (unit & 3) * 2);
    char *to = c.copy(p.obuf, use, 32 * TILE) + at, *empty = c.copy(p.obuf, use + 1, 32 * TILE) + at;
    store_relaxed(to, pack_bf16((half ? y[4] : y[0]) * inv, (half ? y[5] : y[1]) * inv));
    store_relaxed(to + 8, pack_bf16((half ? y[6] : y[2]) * inv, (half ? y[7] : y[3]) * inv));
    store_empty(empty);
    store_empty(empty + 8);
}
