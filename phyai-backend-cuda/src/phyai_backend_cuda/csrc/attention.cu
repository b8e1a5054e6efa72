// Attention of few queries to many keys in a paged cache, the keys split over a cluster of blocks.
//
// The query heads that share a key head are rows beside each other: row r of a request is query r / GROUP, head
// r % GROUP. A cluster of SPLITS blocks has 64 such rows; block s has every SPLITS-th tile of 64 keys, so which keys
// meet where depends on the keys alone. The blocks of a cluster then read each other's normalized sums (in the
// element type) and weights from shared memory, each for its share of the rows, in the order of the splits.
// Blocks of a cluster run at the same time by construction: nothing spins, no scratch memory, no order of arrival.
#include "attention_rows.cuh"

// HD: size of a head, a multiple of 64 up to 256. GROUP: query heads of a key head. SPLITS: 1, 2, 4, 8 or 16.
// STAGES: tiles of keys and values in flight. SLABS: every request has one page, entry b is request b's.
constexpr int CHUNKS = HD / 64, TILE = 8192, SIZE = CHUNKS * TILE;  // bytes of 64 rows × 64, and × HD
constexpr int SHARE = 64 / SPLITS, RECORD = HD * 2 + 16;            // rows of a block at the end; bytes of a partial row
constexpr float LOG2E = 1.4426950408889634f;

struct Block {
    const Params& p;
    const Rows& rows;
    u32 base;  // of shared memory: Q, then per stage a tile of K and one of V
    int head, tid, row, unit;  // this thread copies unit `unit` of rows row, row + 16, + 32, + 48 of a tile
    u32 within;

    __device__ u32 stage(int i) const { return base + SIZE * (1 + 2 * (i % STAGES)); }
    __device__ void load_q(int c) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int r = rows.tile * 64 + i * 16 + row, query = r / GROUP;
            const bool there = query < rows.queries;
            const elem* at = p.q + (size_t(rows.first + (there ? query : 0)) * p.heads + head * GROUP + r % GROUP) * HD;
            copy16_if(base + c * TILE + i * 2048 + within, at + c * 64 + unit * 8, there);
        }
    }
    // Where this thread's keys and values of a tile are; nullptr past the last key.
    __device__ void locate(int tile, const elem* (&k)[4], const elem* (&v)[4]) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int key = tile * 64 + i * 16 + row;
            k[i] = v[i] = nullptr;
            if (key < rows.keys) {
#if SLABS
                const int entry = rows.entry, offset = key;
#else
                const int entry = rows.entry + key / p.page_size, offset = key % p.page_size;
#endif
                const long long page = __ldcg(p.indices + entry);
                k[i] = p.k + page * p.k_page + size_t(offset) * p.k_key + size_t(head) * p.k_head + unit * 8;
                v[i] = p.v + page * p.v_page + size_t(offset) * p.v_key + size_t(head) * p.v_head + unit * 8;
            }
        }
    }
    __device__ void load(u32 to, const elem* const (&from)[4], int c, const elem* any) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const bool there = from[i] != nullptr;
            copy16_if(to + c * TILE + i * 2048 + within, there ? from[i] + c * 64 : any, there);
        }
    }
    // One group of copies for the keys, one for the values; empty ones past the last tile.
    __device__ void load_tile(int i, int tile, int end) const {
        const elem *k[4], *v[4];
        if (tile < end) {
            locate(tile, k, v);
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) load(stage(i), k, c, p.k);
        }
        copy_commit();
        if (tile < end)
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) load(stage(i) + SIZE, v, c, p.v);
        copy_commit();
    }
    // All but the last `pending` groups of everybody's copies are there for wgmma to read.
    __device__ void copied(int pending) const {
        copy_wait_for(pending);
        fence_async();
        __syncthreads();
    }
    __device__ void score(float (&s)[32], u32 k, int c) const {
        const u64 a = uniform_desc(base + c * TILE), b = uniform_desc(k + c * TILE);
        gmma_fence();
#pragma unroll
        for (int i = 0; i < 4; ++i) mma<8>(s, a + 2 * i, b + 2 * i);
        gmma_commit();
    }
};

extern "C" __global__ void __launch_bounds__(128) attention(const __grid_constant__ Params p) {
    extern __shared__ __align__(1024) char smem[];
    launch_next();
    const int tid = threadIdx.x, lane = tid & 31, warp = __shfl_sync(~0u, tid >> 5, 0), g = lane >> 2, q = lane & 3;
    const int split = SPLITS > 1 ? cluster_rank() : 0;
    Rows rows;
    wait_previous();
    if (!find(p, blockIdx.y, lane, rows)) return;  // as every block of the cluster does
    Block b{p, rows, smem_u32(smem), int(blockIdx.z), tid, tid / 8, tid % 8, 0};
    b.within = b.row * 128 + ((b.unit ^ (b.row & 7)) << 4);

    const int own = rows.queries * GROUP, top = rows.tile * 64;
    const int from = visible(p, rows, top).x / 64;
    const int to = top < own ? (max(visible(p, rows, min(top + 63, own - 1)).y, 0) + 63) / 64 : 0;
    int tile = from + (split - from % SPLITS + SPLITS) % SPLITS;  // tiles of `split`: those that are it, modulo SPLITS

    {
        const elem *k[4], *v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) k[i] = v[i] = nullptr;
        if (tile < to) b.locate(tile, k, v);
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            b.load_q(c);
            b.load(b.stage(0), k, c, p.k);
            copy_commit();
        }
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) b.load(b.stage(0) + SIZE, v, c, p.v);
        copy_commit();
    }
#pragma unroll
    for (int i = 1; i < STAGES; ++i) b.load_tile(i, tile + i * SPLITS, to);

    int2 see[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) see[h] = visible(p, rows, top + warp * 16 + g + h * 8);
    const float factor = p.cap > 0.0f ? p.scale / p.cap : p.scale * LOG2E, cap = p.cap * LOG2E;
    float o[CHUNKS][32], m[2] = {NEG_INF, NEG_INF}, l[2] = {0.0f, 0.0f};
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
        for (int i = 0; i < 32; ++i) o[c][i] = 0.0f;

#pragma unroll 1
    for (int i = 0; tile < to; ++i, tile += SPLITS) {
        float s[32];
#pragma unroll
        for (int j = 0; j < 32; ++j) s[j] = 0.0f;
        const u32 k = b.stage(i);
        if (i == 0) {  // chunk by chunk, as they arrive
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) {
                b.copied(CHUNKS - 1 - c + 1 + 2 * (STAGES - 1));
                b.score(s, k, c);
            }
        } else {
            b.copied(1 + 2 * (STAGES - 1));
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) b.score(s, k, c);
        }
        gmma_wait<0>();
        float top_score[2] = {m[0], m[1]};
#pragma unroll
        for (int j = 0; j < 32; ++j) {
            const int key = tile * 64 + (j >> 2) * 8 + 2 * q + (j & 1), h = (j >> 1) & 1;
            float v = s[j] * factor;
            if (p.cap > 0.0f) v = cap * tanhf(v);
            s[j] = key >= see[h].x && key < see[h].y ? v : NEG_INF;
            top_score[h] = fmaxf(top_score[h], s[j]);
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            top_score[h] = fmaxf(top_score[h], __shfl_xor_sync(~0u, top_score[h], 1));
            top_score[h] = fmaxf(top_score[h], __shfl_xor_sync(~0u, top_score[h], 2));
            // nothing seen yet: any finite value will do, for all that it is subtracted from is -inf
            const float next = top_score[h] == NEG_INF ? 0.0f : top_score[h], f = exp2f(m[h] - next);
            m[h] = top_score[h];
            top_score[h] = next;
            l[h] *= f;
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                    o[c][j * 4 + h * 2] *= f;
                    o[c][j * 4 + h * 2 + 1] *= f;
                }
        }
        u32 weight[16];
#pragma unroll
        for (int j = 0; j < 16; ++j) {
            const float x = exp2f(s[2 * j] - top_score[j & 1]), y = exp2f(s[2 * j + 1] - top_score[j & 1]);
            l[j & 1] += x + y;
            weight[j] = pack_elem(x, y);
        }
        b.copied(2 * (STAGES - 1));
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            const u64 v = uniform_desc(k + SIZE + c * TILE);
            gmma_fence();
#pragma unroll
            for (int j = 0; j < 4; ++j) mma_regs_mn(o[c], weight + 4 * j, v + 128 * j);
            gmma_commit();
        }
        gmma_wait<0>();
        __syncthreads();  // everybody has read this stage
        b.load_tile(i, tile + STAGES * SPLITS, to);
    }

    // Partial rows, normalized: HD elements, then the greatest score (in powers of two) and the sum.
    copy_wait<0>();
    __syncthreads();
    const u32 partial = b.base + SIZE;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        l[h] += __shfl_xor_sync(~0u, l[h], 1);
        l[h] += __shfl_xor_sync(~0u, l[h], 2);
        const float f = l[h] > 0.0f ? 1.0f / l[h] : 0.0f;
        const u32 at = partial + (warp * 16 + g + h * 8) * RECORD;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
            for (int j = 0; j < 8; ++j)
                store_shared(at + (c * 64 + j * 8 + 2 * q) * 2,
                             pack_elem(o[c][j * 4 + h * 2] * f, o[c][j * 4 + h * 2 + 1] * f));
        if (q == 0) store_shared(at + HD * 2, make_float2(m[h], l[h]));
    }
    if (SPLITS > 1) {
        cluster_arrive();
        cluster_wait();
    } else {
        __syncthreads();
    }
#pragma unroll
    for (int u = tid; u < SHARE * HD / 8; u += 128) {
        const int row = split * SHARE + u / (HD / 8), unit = u % (HD / 8);
        uint4 v[SPLITS];
        float2 ml[SPLITS];
#pragma unroll
        for (int s = 0; s < SPLITS; ++s) {
            const u32 at = SPLITS > 1 ? peer(partial + row * RECORD, s) : partial + row * RECORD;
            ml[s] = load_peer2(at + HD * 2);
            v[s] = load_peer4(at + unit * 16);
        }
        float greatest = NEG_INF, total = 0.0f, sum[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
#pragma unroll
        for (int s = 0; s < SPLITS; ++s) greatest = fmaxf(greatest, ml[s].x);
#pragma unroll
        for (int s = 0; s < SPLITS; ++s) {
            const float f = ml[s].y > 0.0f ? ml[s].y * exp2f(ml[s].x - greatest) : 0.0f;
            const u32 words[4] = {v[s].x, v[s].y, v[s].z, v[s].w};
            total += f;
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                const float2 pair = unpack_elem(words[w]);
                sum[2 * w] += f * pair.x;
                sum[2 * w + 1] += f * pair.y;
            }
        }
        const float f = total > 0.0f ? 1.0f / total : 0.0f;
        const int r = top + row, query = r / GROUP;
        if (query < rows.all) {
            elem* at = p.o + (size_t(rows.first + query) * p.heads + b.head * GROUP + r % GROUP) * HD + unit * 8;
            *reinterpret_cast<uint4*>(at) = make_uint4(
                pack_elem(sum[0] * f, sum[1] * f), pack_elem(sum[2] * f, sum[3] * f),
                pack_elem(sum[4] * f, sum[5] * f), pack_elem(sum[6] * f, sum[7] * f));
        }
    }
    if (SPLITS > 1) {  // a block's shared memory outlives the reads of its peers
        cluster_arrive();
        cluster_wait();
    }
}
