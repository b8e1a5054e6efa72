// Stage B: attention of the chunk's queries over one key and value head, split over 16 tiles of 64 keys (flash
// decoding). A block has one query head and every 16th tile; then the head's 16 blocks combine 16 columns each. Tiles
// come through the ring with the prefix's keys; those of this step are put behind them here (`Keys` in layout.cuh).
#pragma once
#include "expert/new_keys.cuh"
#include "expert/splits.cuh"

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
    c.settle_chunks<true>(q, at, 0, 4);
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

// One tile: warpgroup 0 multiplies q and k and takes the softmax; both multiply with two of the four column chunks of
// v. After the last of the block's tiles maxima and sums are published while v is multiplied, and the first half of o
// while the other half is. (The wait for that half must stand in no branch, or ptxas serializes all products.)
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
    pause(QUERIES_PAUSE);
    attend_tile<true>(c, keys, c.cluster(), queries, o, m, l, use, c.cluster() + SPLITS >= keys.tiles);
#pragma unroll 1
    for (int t = c.cluster() + SPLITS; t < keys.tiles; t += SPLITS)
        attend_tile<false>(c, keys, t, queries, o, m, l, use, t + SPLITS >= keys.tiles);
    ask_maxima(c, keys.tiles, use, mls);
    publish_split<1>(c, o[1], use);
}
