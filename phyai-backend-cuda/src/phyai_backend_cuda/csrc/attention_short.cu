// Attention of short sequences: all keys and values of a head come into shared memory at once, by the copy engine.
//
// A block has 64 · GROUPS queries of one head, a warpgroup 64 of them, with all keys.
// Keys are taken in panels of 128: while the powers of one panel's scores are computed, the next panel's scores are made.
// What is bigger than all before rescales what was summed. The weights go from the registers of the first product into
// the second. A row is computed alike, whatever is beside it.
#include "wgmma_tiles.cuh"

// HD: size of a head, a multiple of 8 up to 128. CHUNKS: of 64 keys. GROUPS: warpgroups of a block.
constexpr int PARTS = (HD + 63) / 64, LAST = HD - 64 * (PARTS - 1);  // parts of a row: whole ones of 64 elements, then LAST
constexpr int LAST_WIDTH = LAST <= 16 ? 16 : LAST <= 32 ? 32 : 64;   // as the last part lies in memory, zeros behind it
constexpr int BIG = 64 * 128, TILE = 64 * 2 * (64 * (PARTS - 1) + LAST_WIDTH);  // bytes of 64 rows: of a whole part, of all
constexpr int STEPS = 4 * (PARTS - 1) + (LAST + 15) / 16, THREADS = 128 * GROUPS, PANELS = (CHUNKS + 1) / 2;
constexpr int K_AT = GROUPS * TILE, V_AT = K_AT + CHUNKS * TILE, BARRIERS_AT = V_AT + CHUNKS * TILE;

struct Maps { TensorMap q[PARTS], k[PARTS], v[PARTS], o[PARTS]; };  // of [batch, heads, rows, elements], 64 rows of a part

struct Params {
    int queries, keys, group, tiles;  // group: query heads of a key head; tiles: of 64 · GROUPS queries, of a sequence
    float factor;                     // of scores, as powers of two
};

__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Unit `unit` of a part of row `row` of a tile.
__device__ __forceinline__ u32 place(u32 tile, int row, int part, int unit) {
    if (part + 1 < PARTS) return tile + part * BIG + row * 128 + swizzled<64>(row, unit) * 16;
    return tile + part * BIG + row * LAST_WIDTH * 2 + swizzled<LAST_WIDTH>(row, unit) * 16;
}
__device__ __forceinline__ void load(u32 tile, const TensorMap (&maps)[PARTS], int head, int row, int sequence, u32 bar) {
#pragma unroll
    for (int part = 0; part < PARTS; ++part) tile_load(tile + part * BIG, maps[part], part * 64, row, head, sequence, bar);
}
// s = the scores of 64 keys.
__device__ __forceinline__ void score(float (&s)[32], const u32 (&q)[STEPS][4], u32 k) {
#pragma unroll
    for (int t = 0; t < STEPS; ++t) {
        const bool last = t / 4 + 1 == PARTS;
        mma_rows(s, q[t], last ? tile_desc<LAST_WIDTH>(k + t / 4 * BIG) + t % 4 * 2 : tile_desc<64>(k + t / 4 * BIG) + t % 4 * 2, t);
    }
}
// o (whole parts) and tail += weights of 64 keys · their values.
__device__ __forceinline__ void weigh(float (&o)[PARTS][32], float (&tail)[LAST / 2], const u32* weight, u32 v, int add) {
#pragma unroll
    for (int t = 0; t < 4; ++t) {
#pragma unroll
        for (int part = 0; part + 1 < PARTS; ++part)
            mma_columns<8>(o[part], weight + 4 * t, tile_desc<64>(v + part * BIG) + t * 128, add | t);
        mma_columns<LAST / 8>(
            tail, weight + 4 * t, tile_desc<LAST_WIDTH>(v + (PARTS - 1) * BIG) + t * 2 * LAST_WIDTH, add | t);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, GROUPS == 1 && HD <= 80 ? 2 : 1)
    attention_short(const __grid_constant__ Maps maps, const __grid_constant__ Params p) {
    extern __shared__ __align__(1024) char smem[];
    launch_next();
    const u32 base = smem_u32(smem), k_bar = base + BARRIERS_AT, v_bar = k_bar + 8 * CHUNKS;
    const int lane = threadIdx.x & 31, warp = __shfl_sync(~0u, threadIdx.x >> 5, 0);
    const int sequence = blockIdx.x / p.tiles, top = (blockIdx.x - sequence * p.tiles) * 64 * GROUPS, head = blockIdx.y;
    if (threadIdx.x == 0) {
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            prefetch_map(maps.q[part]);
            prefetch_map(maps.k[part]);
            prefetch_map(maps.v[part]);
            prefetch_map(maps.o[part]);
        }
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            mbar_init(k_bar + 8 * c, 1);
            mbar_init(v_bar + 8 * c, 1);
        }
        fence_barriers();
    }
    __syncthreads();

    if (threadIdx.x == 0) {
        wait_previous();
        const int kv_head = head / p.group;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            mbar_expect(k_bar + 8 * c, (c ? 1 : 1 + GROUPS) * TILE);
            if (c == 0)
#pragma unroll
                for (int i = 0; i < GROUPS; ++i) load(base + i * TILE, maps.q, head, top + i * 64, sequence, k_bar);
            load(base + K_AT + c * TILE, maps.k, kv_head, c * 64, sequence, k_bar + 8 * c);
        }
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            mbar_expect(v_bar + 8 * c, TILE);
            load(base + V_AT + c * TILE, maps.v, kv_head, c * 64, sequence, v_bar + 8 * c);
        }
    }
    __syncwarp();

    const int mine = warp >> 2, g = lane >> 2, q4 = lane & 3, row = (warp & 3) * 16;
    const u32 tile = base + mine * TILE;
    float s[2][2][32], o[PARTS][32], tail[LAST / 2], greatest[2] = {NEG_INF, NEG_INF}, sum[2] = {0.0f, 0.0f};
    u32 a[STEPS][4];
    mbar_wait(k_bar, 0);
    // lane l names row l % 8 of matrix l / 8: rows 0–7 and 8–15 of the first unit, then of the second
#pragma unroll
    for (int t = 0; t < STEPS; ++t)
        load_matrices(a[t], place(tile, row + (lane & 15), t / 4, t % 4 * 2 + (lane >> 4)));
    if (CHUNKS > 1) mbar_wait(k_bar + 8, 0);
    gmma_fence();
#pragma unroll
    for (int c = 0; c < 2 && c < CHUNKS; ++c) score(s[0][c], a, base + K_AT + c * TILE);
    gmma_commit();
#pragma unroll
    for (int panel = 0; panel < PANELS; ++panel) {
        float (&w)[2][32] = s[panel & 1];
        const int halves = 2 * panel + 1 < CHUNKS ? 2 : 1;
        float most[4] = {NEG_INF, NEG_INF, NEG_INF, NEG_INF}, rescale[2];
        if (panel) gmma_wait<2>();  // the two that came after it are of values
        else gmma_wait<0>();
#pragma unroll
        for (int half = 0; half < halves; ++half) {
            const int first = (2 * panel + half) * 64 + 2 * q4;
#pragma unroll
            for (int j = 0; j < 32; ++j) asm volatile("" : "+f"(w[half][j])::"memory");  // not to be read before
            if (2 * panel + half == CHUNKS - 1 && p.keys < 64 * CHUNKS)
#pragma unroll
                for (int j = 0; j < 32; ++j)
                    if (first + (j >> 2) * 8 + (j & 1) >= p.keys) w[half][j] = NEG_INF;
#pragma unroll
            for (int j = 0; j < 32; ++j) most[j & 3] = fmaxf(most[j & 3], w[half][j]);
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float next = fmaxf(most[2 * h], most[2 * h + 1]);
            next = fmaxf(next, __shfl_xor_sync(~0u, next, 1));
            next = fmaxf(greatest[h], fmaxf(next, __shfl_xor_sync(~0u, next, 2)) * p.factor);
            rescale[h] = power_of_two(greatest[h] - next);
            greatest[h] = next;
            sum[h] *= rescale[h];
        }
#pragma unroll
        for (int half = 0; half < halves; ++half) {
            const int c = 2 * panel + half;
            u32 weight[16];
#pragma unroll
            for (int j = 0; j < 16; ++j) {
                const float x = fmaf(w[half][2 * j], p.factor, -greatest[j & 1]);
                const float y = fmaf(w[half][2 * j + 1], p.factor, -greatest[j & 1]);
                const float u = power_of_two(x), z = power_of_two(y);
                sum[j & 1] += u + z;
                weight[j] = pack_elem(u, z);
            }
            if (half == 0 && panel + 1 < PANELS) {
                const int count = 2 * panel + 3 < CHUNKS ? 2 : 1;
                mbar_wait(k_bar + 8 * (2 * panel + 1 + count), 0);
                mbar_wait(k_bar + 8 * (2 * panel + 2), 0);
                gmma_fence();
#pragma unroll
                for (int i = 0; i < count; ++i) score(s[(panel + 1) & 1][i], a, base + K_AT + (2 * panel + 2 + i) * TILE);
                gmma_commit();
            }
            mbar_wait(v_bar + 8 * c, 0);
            if (half == 0 && panel) {
                if (panel + 1 < PANELS) gmma_wait<1>();  // the one that came after it is of scores
                else gmma_wait<0>();
#pragma unroll
                for (int part = 0; part + 1 < PARTS; ++part)
#pragma unroll
                    for (int j = 0; j < 32; ++j) {
                        asm volatile("" : "+f"(o[part][j])::"memory");
                        o[part][j] *= rescale[(j >> 1) & 1];
                    }
#pragma unroll
                for (int j = 0; j < LAST / 2; ++j) {
                    asm volatile("" : "+f"(tail[j])::"memory");
                    tail[j] *= rescale[(j >> 1) & 1];
                }
            }
            gmma_fence();
            weigh(o, tail, weight, base + V_AT + c * TILE, c);
            gmma_commit();
        }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        sum[h] += __shfl_xor_sync(~0u, sum[h], 1);
        sum[h] = __fdividef(1.0f, sum[h] + __shfl_xor_sync(~0u, sum[h], 2));
    }
    gmma_wait<0>();

    // The output where the queries were, which all of the warpgroup have in registers.
    named_barrier(1 + mine, 128);
#pragma unroll
    for (int j = 0; j < HD / 8; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int part = j / 8, i = 4 * (j % 8) + 2 * h;
            const float x = part + 1 < PARTS ? o[part][i] : tail[i % (LAST / 2)];
            const float y = part + 1 < PARTS ? o[part][i + 1] : tail[(i + 1) % (LAST / 2)];
            store_shared(place(tile, row + g + 8 * h, part, j % 8) + q4 * 4, pack_elem(x * sum[h], y * sum[h]));
        }
    fence_async();
    named_barrier(1 + mine, 128);
    if ((threadIdx.x & 127) == 0) {
#pragma unroll
        for (int part = 0; part < PARTS; ++part)
            tile_store(maps.o[part], part * 64, top + mine * 64, head, sequence, tile + part * BIG);
        store_commit();
        store_wait_read();
    }
}
