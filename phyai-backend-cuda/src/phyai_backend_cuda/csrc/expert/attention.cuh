// Stage B: attention of the chunk's queries over one key and value head, split over 16 tiles of 64 keys (flash
// decoding). A block has one query head and every 16th tile; then the head's 16 blocks combine 16 columns each. Tiles
// come through the ring with the prefix's keys; those of this step are put behind them here (`Keys` in layout.cuh).
#pragma once
#include "expert/consumer.cuh"

__device__ __forceinline__ float power2(float x) {  // 2^x; denormal results become zero
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// A tile's new keys and values on their way into its items of the ring: warpgroup 1, 16 bytes a thread at a time, 4 keys
// together. The first values are asked for before the keys are there.
struct Patch {
    const char* from;        // this thread's unit of the first of its keys
    int row, units, stride;  // that key's row in the tile; units of all threads; bytes to the thread's next key
    int thread;

    __device__ Patch(const Consumer& c, const Tile& tile, int t, int tiles, u32 use) : thread(c.tid & 127) {
        from = c.p.fresh + (use & 1) * FRESH + (t + (thread >> 5) * tiles) * 512 + (thread & 31) * 16;
        row = tile.old + (thread >> 5);
        units = tile.fresh * 32;
        stride = tiles * 4 * 512;
    }
    template <int VALUES> __device__ uint4 load(int i) const {
        return load_relaxed4<true>(from + VALUES * (ROWS * 512) + i * stride);
    }
    template <int VALUES> __device__ void put(const Consumer& c, uint4 v) const {
        const int chunk = thread >> 3 & 3, place = VALUES ? (chunk & 1) * 2 + (chunk >> 1) : chunk;
        c.ring.wait_full(VALUES * 2);
        c.ring.wait_full(VALUES * 2 + 1);
        const u32 to = c.ring.data(VALUES * 2 + (place >> 1)) + (place & 1) * TILE;
#pragma unroll 1
        for (int i = 0; i * 128 + thread < units; ++i) {
            if (i) v = load<VALUES>(i);
            const int r = row + i * 4;
            for (u32 spins = 0; max(max(v.x, v.y), max(v.z, v.w)) == EMPTY; v = load<VALUES>(i))
                if (++spins > SPIN_LIMIT) __trap();
            store_shared4(to + r * 128 + (((thread & 7) ^ (r & 7)) << 4), v);
        }
        fence_async();
    }
    __device__ void run(Consumer& c) const {
        uint4 k[1] = {make_uint4(0, 0, 0, 0)}, v = k[0];
        if (thread < units) {
            k[0] = load<0>(0);
            v = load<1>(0);
        }
        c.queries.learn(__any_sync(~0u, missing<1, true>(k)));
        put<0>(c, k[0]);
        asm volatile("bar.arrive 2, 256;" ::: "memory");  // `scores` waits for it
        put<1>(c, v);
    }
};

// s[64 queries, 64 keys] = q · kᵀ, for one warpgroup; k is the ring's next two items.
__device__ __forceinline__ void scores(Consumer& c, float (&s)[32], const char* queries) {
    const auto at = [&](int i) { return queries + i * TILE; };
    uint4 q[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) Consumer::fetch<true>(q[i], at(i));
    c.ring.wait_full(0);  // while they are on their way
    c.ring.wait_full(1);
    const u64 keys[2] = {uniform_desc(c.ring.data()), uniform_desc(c.ring.data(1))};
#pragma unroll
    for (int i = 0; i < 32; ++i) s[i] = 0.0f;
    c.queries.learn(c.settle_chunks<true>(q, at, 0, 4));
    asm volatile("bar.sync 2, 256;" ::: "memory");  // the new keys are there
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        gmma_fence();
#pragma unroll
        for (int j = 0; j < 4; ++j) gmma<8>(s, q[i][j], keys[i >> 1] + (i & 1) * (TILE / 16) + 2 * j);
        gmma_commit();
    }
    gmma_wait<0>();
    gmma_pin(s);
    c.release(0, 2);
    c.release(1, 2);
}

// What exponents are relative to: where every row sees a key of every tile, the maximum.
__device__ __forceinline__ float relative_to(float maximum) { return FIXED && maximum == NEG_INF ? 0.0f : maximum; }

// Weights e^(s - maximum) as fragments, with the running maxima m, sums l, and factors f of what was there before. Rows
// see the tile's first `keys` keys; fixed rows, which see the first of the new keys and no other, its first `fixed`.
__device__ __forceinline__ void softmax(const Consumer& c, float (&s)[32], int keys, int fixed, float (&m)[2],
                                        float (&l)[2], float (&f)[2], uint4 (&weights)[4]) {
    const float scale = 1.4426950408889634f / 16.0f;  // log2(e) / sqrt(HD)
    const bool is_fixed = FIXED && c.tile() * 16 + c.g() < FIXED;
    const int seen[2] = {is_fixed ? fixed : keys, keys};
    if (FIXED || keys < 64)
#pragma unroll
        for (int i = 0; i < 32; ++i)
            if ((i >> 2) * 8 + 2 * c.q() + (i & 1) >= seen[i >> 1 & 1]) s[i] = NEG_INF;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float top[4];  // a tree, not a chain
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float* v = s + i * 8 + h * 2;
            top[i] = fmaxf(fmaxf(v[0], v[1]), fmaxf(v[4], v[5]));
        }
        float mx = fmaxf(fmaxf(top[0], top[1]), fmaxf(top[2], top[3]));
        mx = fmaxf(mx, __shfl_xor_sync(~0u, mx, 1));
        mx = fmaxf(mx, __shfl_xor_sync(~0u, mx, 2));
        mx = fmaxf(m[h], mx * scale);
        f[h] = power2(m[h] - relative_to(mx));  // a tile always has a valid key: but for fixed rows, mx is finite
        m[h] = mx;
        l[h] *= f[h];
    }
    u32 e[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const float base = -relative_to(m[i & 1]);
        const float a = power2(fmaf(s[2 * i], scale, base)), b = power2(fmaf(s[2 * i + 1], scale, base));
        l[i & 1] += a + b;
        e[i] = pack_bf16(a, b);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) weights[i] = make_uint4(e[4 * i], e[4 * i + 1], e[4 * i + 2], e[4 * i + 3]);
}

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

// One tile: warpgroup 0 multiplies q and k and takes the softmax; both multiply with two of the four column chunks of v.
// After the last of the block's tiles maxima and sums are published while v is multiplied, and the first half of o while
// the other half is. (The wait for that half must stand in no branch, or ptxas serializes all products.)
template <bool FIRST>
__device__ __forceinline__ void attend_tile(Consumer& c, const Keys& keys, int t, const char* queries,
                                            float (&o)[2][32], float (&m)[2], float (&l)[2], u32 use, bool last) {
    const Tile here = keys.tile(t);
    const u32 area = c.take_scratch() + (c.tid & 127) * 16;
    uint4 weights[4];
    float f[2];
    if (c.group() == 0) {
        float s[32];
        scores(c, s, queries);
        c.mark();
        int fixed = here.old;  // keys that the fixed rows see
        for (int j = t; j < FIXED; j += keys.tiles) ++fixed;
        softmax(c, s, here.old + here.fresh, fixed, m, l, f, weights);
#pragma unroll
        for (int i = 0; i < 4; ++i) store_shared4(area + i * 2048, weights[i]);
        if (!FIRST) store_shared2(area + 8192, f[0], f[1]);
    } else {
        Patch(c, here, t, keys.tiles, use).run(c);
    }
    c.sync();
    if (c.group() == 1) {
#pragma unroll
        for (int i = 0; i < 4; ++i) weights[i] = load_shared4(area + i * 2048);
        if (!FIRST) {
            const float2 v = load_shared2(area + 8192);
            f[0] = v.x;
            f[1] = v.y;
        }
    }
    c.mark();
#pragma unroll
    for (int i = 0; i < 64; ++i) o[i >> 5][i & 31] = FIRST ? 0.0f : o[i >> 5][i & 31] * f[i >> 1 & 1];
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
    c.forget();  // addresses of what is published are not computed before now
    if (last && c.group() == 0) publish_maxima(c, m, l, use);
    gmma_wait<1>();
    gmma_pin(o[0]);
    if (last) publish_split<0>(c, o[0], use);
    gmma_wait<0>();
    gmma_pin(o[0]);
    gmma_pin(o[1]);
    c.release(-2);
    c.release(-1);
    c.mark();
}

// All tiles of a block, which has one at least; then asks for the head's maxima and sums.
__device__ void attend(Consumer& c, const Keys& keys, u32 use, uint2 (&mls)[8]) {
    const char* queries = c.copy(c.p.qbuf, use, 32 * TILE) + c.rank() * 4 * TILE + c.unit();
    float o[2][32], m[2] = {NEG_INF, NEG_INF}, l[2] = {0.0f, 0.0f};
    c.queries.wait();
    attend_tile<true>(c, keys, c.cluster(), queries, o, m, l, use, c.cluster() + SPLITS >= keys.tiles);
#pragma unroll 1
    for (int t = c.cluster() + SPLITS; t < keys.tiles; t += SPLITS)
        attend_tile<false>(c, keys, t, queries, o, m, l, use, t + SPLITS >= keys.tiles);
    ask_maxima(c, keys.tiles, use, mls);
    publish_split<1>(c, o[1], use);
}

// Two units of every row from all splits of the head; neighbouring threads take the even and the odd splits. `v` are the
// splits' maxima and sums, asked for. They are published long before the parts, and their factors are computed while the
// parts are on their way.
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
