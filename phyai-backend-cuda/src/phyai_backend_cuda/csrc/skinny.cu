// y = x · Wᵀ for at most 64 rows of x: the rows of W are the rows of the product, those of x its columns.
//
// A block is one warpgroup: it multiplies 64 rows of W by all of x, and two blocks fit on a processor, of this launch and
// of the one behind. Weights do not depend on the kernel in front: before waiting for it as many as fit are asked for in
// shared memory and, more, in registers. What is behind the wait is short: x, in a ring; products; exchange; output.
//
// The blocks of a cluster share K. Each pushes its partial sums to the block that finishes those rows of x, which adds
// them up in the order of the blocks. So nothing spins on global memory, nothing depends on the order of arrival, and a
// row's result does not depend on the other rows.
#include "skinny_epilogues.cuh"
#include "skinny_weights.cuh"

// M8, ACTIVATION: see skinny.cuh; EPILOGUE and what belongs to it: skinny_epilogues.cuh. CHUNKS: chunks of 64 of K of a
// block; K is SPLITS times as much. SPLITS: blocks of a cluster. BITS, GROUP, CENTRED: of a weight, see
// skinny_weights.cuh.
// RING: chunks of 16-bit W in shared memory. HELD: chunks of W in registers as wgmma takes them. XRING: chunks of x in
// shared memory. Where chunks are refilled, while two others are multiplied, a ring has at least three.
constexpr bool EXCHANGE = SPLITS > 1 || TWO;
constexpr int WCHUNK = 512 * BITS;  // bytes of 64 of K
constexpr int SLOTS = BITS == 16 ? RING : 0;
constexpr bool XREFILL = XRING < CHUNKS, WREFILL = BITS == 16 && RING + HELD < CHUNKS, REFILL = XREFILL || WREFILL;
constexpr int OUT = GATED ? 32 : 64;                   // outputs of a block
static_assert(HELD <= CHUNKS && XRING <= CHUNKS && (!WREFILL || RING >= 3) && (!XREFILL || XRING >= 3), "");
static_assert(BITS < 16 || HELD < 2 || RING > 1, "");

struct Block {
    const Params& p;
    u32 w, x;  // of shared memory
    int first, tile;  // chunk of K, outputs
    u64 policy;  // weights are read once: they do not push out what is read again

    __device__ u32 slot(int c) const { return w + (SLOTS ? c % SLOTS : 0) * WCHUNK; }
    __device__ u32 x_slot(int c) const { return x + (c % XRING) * XCHUNK; }
    // Row of W that is row r of this block's: with gates 32 of gate, then 32 of up. Rows beyond the last are the last.
    __device__ int row(int r) const {
        return TWO ? sixteenth(r >> 4) * 16 + (r & 15) : min(tile * 64 + r, p.n - 1);
    }
    // Which 16 rows of W, or of a packed weight, which is in tiles of 64, are those of `warp`. Those of warps 0 and 2, and
    // of 1 and 3, meet.
    __device__ int sixteenth(int warp) const {
#if EPILOGUE == 2
        const Sixteens at(tile * 2 + (warp & 1), p.n);
        return at.head * (HEAD_DIM / 16) + at.begin(warp >> 1) / 16;
#else
        return GATED ? (warp >> 1) * (p.n / 32) + tile * 2 + (warp & 1) : tile * 4 + warp;
#endif
    }
    __device__ void load_w(int c) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int r = i * 16 + threadIdx.x / 8, unit = threadIdx.x % 8;
            const char* from = p.w + (size_t(row(r)) * p.k + (first + c) * 64 + unit * 8) * 2;
            copy16_hint(slot(c) + r * 128 + ((unit ^ (r & 7)) << 4), from, policy);
        }
    }
    // What does not fit yet comes as far as L2.
    __device__ void prefetch() const {
        if (threadIdx.x < 64)
            prefetch_l2(p.w + (size_t(row(threadIdx.x)) * p.k + (first + RING + HELD) * 64) * 2, (CHUNKS - RING - HELD) * 128);
    }
};

// The sum of the blocks' partial results of four elements.
__device__ __forceinline__ void sum_parts(float (&v)[4], u32 from) {
    float4 sum = as_float4(load_shared4(from));
#pragma unroll
    for (int s = 1; s < SPLITS; ++s) {
        const float4 part = as_float4(load_shared4(from + s * SHARE * 2048));
        sum.x += part.x; sum.y += part.y; sum.z += part.z; sum.w += part.w;
    }
    v[0] = sum.x; v[1] = sum.y; v[2] = sum.z; v[3] = sum.w;
}

// Four elements as a thread has them after a product, where its columns begin: two, and two eight further on.
__device__ __forceinline__ void store(elem* to, const float (&v)[4], bool low, bool high) {
    const u32 first = transposed(pack_elem(v[0], v[1])), second = transposed(pack_elem(v[2], v[3]));
    if (low) *reinterpret_cast<u32*>(to) = first;
    if (high) *reinterpret_cast<u32*>(to + 8) = second;
}

extern "C" __global__ void __launch_bounds__(128, 2) skinny(const __grid_constant__ Params p) {
    extern __shared__ __align__(1024) char smem[];
    launch_next();
    const int warp = __shfl_sync(~0u, threadIdx.x >> 5, 0), lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    const int split = SPLITS > 1 ? cluster_rank() : 0, tile = blockIdx.y;
    // Peers push while this block still multiplies; what it keeps to itself comes over what was multiplied.
    const u32 base = smem_u32(smem), parts = SPLITS > 1 ? base + SLOTS * WCHUNK + XRING * XCHUNK : base;
    const u32 bar = parts + SPLITS * SHARE * 2048;
    const Block b{p, base, base + SLOTS * WCHUNK, split * CHUNKS, tile, evict_first()};

    // ---- weights
    Codes codes;
    if (BITS == 16) {
#pragma unroll
        for (int c = 0; c < RING; ++c) {
            b.load_w(c);
            copy_commit();
        }
        if (WREFILL) b.prefetch();
    } else {
        codes.load(p.w, p.group_scale, p.group_zero, p.k, b.first, b.sixteenth(warp), b.policy);
    }
    if (SPLITS > 1) {
        if (threadIdx.x == 0) {
            mbar_init(bar, 1);
            fence_mbar_init();
            const int mine = min(SHARE, M8 - split * SHARE);
            if (mine > 0) mbar_expect(bar, SPLITS * mine * 2048);
        }
        __syncwarp();
        cluster_arrive();
    }
    const int rows[2] = {b.row(warp * 16 + g), b.row(warp * 16 + g + 8)};
    float factor[2] = {1.0f, 1.0f};
    if (BITS < 16 && !GROUP) {
        factor[0] = __ldg(p.row_scale + rows[0]);
        factor[1] = __ldg(p.row_scale + rows[1]);
    }
    u32 held[HELD ? HELD : 1][16];
    if (BITS == 16) {
#pragma unroll
        for (int h = 0; h < HELD; ++h) {
            copy_wait_for(RING - 1 - (h > 0));
            __syncthreads();
            if (h && h - 1 + RING < CHUNKS) b.load_w(h - 1 + RING);
            if (h) copy_commit();
            const u32 from = b.slot(h) + (warp * 16 + (lane & 15)) * 128;
#pragma unroll
            for (int s = 0; s < 4; ++s) load_matrices(held[h] + s * 4, from + (((s * 2 + (lane >> 4)) ^ (lane & 7)) << 4));
        }
        if (HELD) {
            __syncthreads();
            if (HELD - 1 + RING < CHUNKS) b.load_w(HELD - 1 + RING);
            copy_commit();
        }
    } else {
#pragma unroll
        for (int h = 0; h < HELD; ++h) codes.values(held[h], h);
        if (p.m < 0) {  // never; but used here, so loaded and computed before the wait, behind which the compiler moves it
            u32 used = codes.rest(HELD) ^ __float_as_uint(factor[0]) ^ __float_as_uint(factor[1]);
#pragma unroll
            for (int h = 0; h < HELD; ++h)
#pragma unroll
                for (int i = 0; i < 16; ++i) used ^= held[h][i];
            store_shared(base, used);
        }
    }
    float acc[M8 * 4];
#pragma unroll
    for (int i = 0; i < M8 * 4; ++i) acc[i] = 0.0f;

    const Rows x_rows(p, b.x, b.first);

    // ---- everything else
    wait_previous();
    [[maybe_unused]] const int column = tile * OUT + (GATED ? warp & 1 : warp) * 16 + 2 * q;
    [[maybe_unused]] const int columns = GATED ? p.n / 2 : p.n;
#if EPILOGUE == 2
    Heads heads(tile * 2 + (warp & 1), p.n);
#pragma unroll
    for (int i = 0; i < TURNS; ++i)
        if (EARLY) heads.find(p, i, (split * SHARE + eight_of(i, warp)) * 8, lane);
#endif
#pragma unroll
    for (int c = 0; c < XRING; ++c) {
        x_rows.load(p, c, c);
        copy_commit();
    }
    float bias[2] = {0.0f, 0.0f}, bias_two[2] = {0.0f, 0.0f};
    if (!GATED && p.bias) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            bias[h] = float(p.bias[SPLIT_HEADS ? b.row((warp & 1) * 16 + g + 8 * h) : rows[h]]);
            if (SPLIT_HEADS) bias_two[h] = float(p.bias[b.row((warp & 1) * 16 + 32 + g + 8 * h)]);
        }
    }
#if EPILOGUE == 1
    Branch branch;
#pragma unroll
    for (int i = 0; i < TURNS; ++i)
        if (EARLY) branch.load(p, i, (split * SHARE + i) * 8 + g, column);
#elif EPILOGUE == 2
#pragma unroll
    for (int i = 0; i < TURNS; ++i)
        if (EARLY) heads.load(p, i, lane);
#endif
    u32 a[2][16];
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        // (The other way round, waiting for copies first, the compiler of CUDA 12 crashes at some sizes.)
        if (c > 1 && (REFILL || (BITS < 16 && c > HELD + 1))) gmma_wait<1>();  // chunk c - 2 is done with
        const int asked = XRING + (REFILL ? max(0, c - 2) : 0);                // groups of copies until here
        const int needed = max(c, WREFILL && c >= RING + HELD ? XRING + c - RING : 0);
        copy_wait_for(asked - needed - 1);
        fence_async();
        __syncthreads();
        if (REFILL && c > 1) {
            if (XREFILL && c - 2 + XRING < CHUNKS) x_rows.load(p, (c - 2) % XRING, c - 2 + XRING);
            if (WREFILL && c - 2 >= HELD && c - 2 + RING < CHUNKS) b.load_w(c - 2 + RING);
            copy_commit();
        }
        const u64 x = uniform_desc(b.x_slot(c));
        if (c >= HELD && BITS == 16) {
            const u64 w = uniform_desc(b.slot(c));
            gmma_fence();
#pragma unroll
            for (int i = 0; i < 4; ++i) mma<M8>(acc, w + 2 * i, x + 2 * i);
        } else {
            u32* v = c < HELD ? held[c] : a[c & 1];
            if (c >= HELD) codes.values(v, c);
            gmma_fence();
#pragma unroll
            for (int i = 0; i < 4; ++i) mma_regs<M8>(acc, v + 4 * i, x + 2 * i);
        }
        gmma_commit();
    }
    gmma_wait<0>();
    copy_wait<0>();
    if (BITS < 16 && !GROUP) {  // rounded: the compiler makes one of it and of adding a bias at some M8, not at others
#pragma unroll
        for (int i = 0; i < M8 * 4; ++i) acc[i] = __fmul_rn(acc[i], factor[i >> 1 & 1]);
    }

    // ---- partial results, [block][eight of rows of x][thread] of four elements, to whom they belong
    if (SPLITS > 1) {
        cluster_wait();  // every block has begun, and its barrier is ready: arrived at long ago
#pragma unroll
        for (int j = 0; j < M8; ++j) {
            const u32 at = parts + ((split * SHARE + j % SHARE) * 128 + threadIdx.x) * 16;
            push4(peer(at, j / SHARE), peer(bar, j / SHARE), acc + 4 * j);
        }
        if (split * SHARE < M8) mbar_wait(bar, 0);
    } else if (TWO) {
        __syncthreads();
#pragma unroll
        for (int j = 0; j < M8; ++j) store_shared4(parts + (j * 128 + threadIdx.x) * 16, acc + 4 * j);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < TURNS; ++i) {
        const int j = eight_of(i, warp), m = (split * SHARE + j) * 8 + g;
        float v[4], two[4];  // rows of x 2q and 2q + 1, of outputs g, and g + 8
        if (EXCHANGE) {
            const u32 from = parts + (min(j, SHARE - 1) * 128 + (threadIdx.x & (TWO ? 63 : 127))) * 16;
            sum_parts(v, from);
            if (TWO) sum_parts(two, from + 1024);
        } else {
#pragma unroll
            for (int e = 0; e < 4; ++e) v[e] = acc[4 * i + e];
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            if (GATED) {
                v[e] = activate(v[e]) * two[e];
            } else {
                v[e] += bias[e / 2];
                if (SPLIT_HEADS) two[e] += bias_two[e / 2];
            }
        }
        const bool here = j < SHARE && m < p.m;
#if EPILOGUE == 2
        if (!EARLY) {
            heads.find(p, i, m - g, lane);
            heads.load(p, i, lane);
        }
        heads.rotate(v, two, i, lane);
        elem* to = heads.place(p, i, m) + 2 * q;
        const bool there = here && tile * 2 + (warp & 1) < p.n / 32;
        store(to + heads.at.begin(0), v, there, there);
        store(to + heads.at.begin(1), two, there, there);
#else
#if EPILOGUE == 1
        if (!EARLY) branch.load(p, i, m, column);
        branch.add(v, i);
#endif
        store(p.y + m * p.y_row + column, v, here && column < columns, here && column + 8 < columns);
#endif
    }
}
