// y = x · Wᵀ as skinny.cu, for 16-bit weights of which the blocks of 64 rows fill the device and x does not fit beside
// them: there x waits in line, chunk by chunk, behind the weights that the next launch has asked for.
//
// A block is one warpgroup: it multiplies 128 rows of W, two tiles, by half of K, so by half of x, which fits as a whole.
// All of its weights are asked for before the wait, as many as fit in shared memory and the others in registers. Behind
// the wait x is asked for once. Each of the two blocks of a cluster finishes one tile and pushes its partial sums of the
// other tile to its peer. A row's result does not depend on the other rows.
#include "skinny.cuh"

// M8, ACTIVATION: see skinny.cuh. CHUNKS: chunks of 64 of K of a block; K is twice as much.
// A unit is 64 rows of W by 64 of K. FLIGHT: units in flight; with more x waits longer, with fewer the units do. The last
// three chunks, RING units, stay in shared memory. LEAVING: weights go from L2 before all else; not where outputs are
// many. Settings are those that measured fastest.
constexpr int UNIT = 8192, UNITS = 2 * CHUNKS, RING = 6, HELD = UNITS - RING, FLIGHT = 4;
constexpr bool LEAVING = GATED || M8 <= 2;
constexpr int OUT = GATED ? 32 : 64;               // outputs of a tile
constexpr int MATRICES = GATED ? M8 : 2 * M8;      // of eight rows of x by eight outputs, of a warp
static_assert(CHUNKS >= 4 && FLIGHT < RING, "");

struct Block {
    const Params& p;
    u32 w;  // of shared memory
    int first, tile;  // chunk of K, tile of 64 rows of W
    u64 policy;

    __device__ u32 slot(int u) const { return w + u % RING * UNIT; }
    // Row of W that is row r of tile t: with gates, rows of gate and of up take turns of eight, so that a thread has
    // both. Rows beyond the last are the last.
    __device__ int row(int t, int r) const {
        if (!GATED) return min((tile + t) * 64 + r, p.n - 1);
        return (r >> 3 & 1) * (p.n / 2) + min((tile + t) * 32 + (r >> 4) * 8 + (r & 7), p.n / 2 - 1);
    }
    __device__ void load_w(int u) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int r = i * 16 + threadIdx.x / 8, unit = threadIdx.x % 8;
            const u32 to = slot(u) + r * 128 + ((unit ^ (r & 7)) << 4);
            const char* from = p.w + (size_t(row(u % 2, r)) * p.k + (first + u / 2) * 64 + unit * 8) * 2;
            if (LEAVING) copy16_hint(to, from, policy);
            else copy16(to, from);
        }
    }
};

// Where 16 bytes of row m of the outputs wait, in shared memory, until they are stored: rows without gaps, units XORed.
__device__ __forceinline__ u32 waiting(int m, int unit) {
    return m * OUT * 2 + ((unit ^ (GATED ? m >> 1 & 3 : m & 7)) << 4);
}

extern "C" __global__ void __launch_bounds__(128, 2) skinny_pair(const __grid_constant__ Params p) {
    extern __shared__ __align__(1024) char smem[];
    launch_next();
    const int warp = __shfl_sync(~0u, threadIdx.x >> 5, 0), lane = threadIdx.x & 31, split = cluster_rank();
    const u32 base = smem_u32(smem), parts = base + RING * UNIT, bar = parts + CHUNKS * XCHUNK;
    const Block b{p, base, split * CHUNKS, int(blockIdx.y) * 2, LEAVING ? evict_first() : 0};

    // ---- weights
    u32 held[HELD][16];
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
        const int v = u - FLIGHT;
        if (v >= 0) {
            copy_wait<FLIGHT - 1>();  // v is there, and what lay in the slot of u is in registers
            __syncthreads();
        }
        b.load_w(u);
        copy_commit();
        if (v >= 0 && v < HELD) {
            const u32 from = b.slot(v) + (warp * 16 + (lane & 15)) * 128;
#pragma unroll
            for (int s = 0; s < 4; ++s) load_matrices(held[v] + s * 4, from + (((s * 2 + (lane >> 4)) ^ (lane & 7)) << 4));
        }
    }
    if (threadIdx.x == 0) {
        mbar_init(bar, 1);
        fence_mbar_init();
        mbar_expect(bar, M8 * 2048);
    }
    __syncwarp();
    const Rows x_rows(p, parts, b.first);

    // ---- everything else
    wait_previous();
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        x_rows.load(p, c, c);
        copy_commit();
    }
    float acc[2][M8 * 4];
#pragma unroll
    for (int i = 0; i < 2 * M8 * 4; ++i)  // (0.0f: they would share registers, and products would wait for each other)
        asm volatile("mov.f32 %0, 0f00000000;" : "=f"(acc[i % 2][i / 2]));
    float bias[2] = {0.0f, 0.0f};  // of the tile that this block finishes
    if (!GATED && p.bias) {
        bias[0] = float(p.bias[b.row(split, warp * 16 + lane / 4)]);
        bias[1] = float(p.bias[b.row(split, warp * 16 + lane / 4 + 8)]);
    }
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        if (c == 3) gmma_wait<1>();  // chunks 0 and 1 are done with
        copy_wait_for(CHUNKS - 1 - c);
        fence_async();
        __syncthreads();
        const u64 x = uniform_desc(parts + c * XCHUNK), w = uniform_desc(b.slot(2 * c));
        gmma_fence();
#pragma unroll
        for (int t = 0; t < 2; ++t) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (2 * c < HELD) mma_regs<M8>(acc[t], held[2 * c < HELD ? 2 * c + t : 0] + 4 * i, x + 2 * i);
                else mma<M8>(acc[t], w + t * (UNIT >> 4) + 2 * i, x + 2 * i);
            }
        }
        gmma_commit();
        // The peer may write over them, and the barrier, which has a fence of its own, is ready. Nothing else is published:
        // a release would wait here for all that is on its way, the later chunks of x too.
        if (c == 3) cluster_arrive_relaxed();
    }
    gmma_wait<0>();

    // ---- partial results, [eight of rows of x][thread] of four elements, over the first two chunks of x
    cluster_wait();
    const u32 there = peer(parts + threadIdx.x * 16, split ^ 1), its = peer(bar, split ^ 1);
#pragma unroll
    for (int j = 0; j < M8; ++j) {
        float v[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) v[e] = split ? acc[0][4 * j + e] : acc[1][4 * j + e];
        push4(there + j * 2048, its, v);
    }
    mbar_wait(bar, 0);
    u32 packed[2 * M8 + 2] = {};  // and zeros, where four matrices are stored at once
#pragma unroll
    for (int j = 0; j < M8; ++j) {  // rows of x 2q and 2q + 1; of W g, and g + 8: with gates its gate, and up
        const float4 part = as_float4(load_shared4(parts + (j * 128 + threadIdx.x) * 16));
        float v[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) v[e] = split ? acc[1][4 * j + e] : acc[0][4 * j + e];
        v[0] += part.x; v[1] += part.y; v[2] += part.z; v[3] += part.w;
        if (GATED) {
            packed[j] = pack_elem(activate(v[0]) * v[2], activate(v[1]) * v[3]);
        } else {
            packed[2 * j] = pack_elem(v[0] + bias[0], v[1] + bias[0]);
            packed[2 * j + 1] = pack_elem(v[2] + bias[1], v[3] + bias[1]);
        }
    }

    // ---- outputs, as whole lines
    __syncthreads();  // all products are done with the first slot of W, where the outputs wait
#pragma unroll
    for (int i = 0; i < MATRICES; i += 4) {
        const int matrix = i + lane / 8, m = (GATED ? matrix : matrix / 2) * 8 + lane % 8;
        const int unit = GATED ? warp : warp * 2 + matrix % 2;
        store_matrices_transposed(base + waiting(m, unit), packed[i], packed[i + 1], packed[i + 2], packed[i + 3]);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < (M8 * OUT + 127) / 128; ++i) {
        const int at = i * 128 + threadIdx.x, m = at / (OUT / 8), unit = at % (OUT / 8);
        const int column = (b.tile + split) * OUT + unit * 8;
        if (m < p.m && column < (GATED ? p.n / 2 : p.n))
            *reinterpret_cast<uint4*>(p.y + m * p.y_row + column) = load_shared4(base + waiting(m, unit));
    }
}
