// y[M, N] = act(x · Wᵀ + bias): one tile of 128 × COLUMNS a block, so wide that the tiles of a call fill the processors.
//
// x is [M, K] and W [N, K], both of one 16-bit type, as y is; or (FP8) both e4m3 with a scale for each row, and y bf16.
// A cluster shares what it fetches: ACROSS blocks beside each other along M the same rows of W, ALONG blocks along N the
// same rows of x; each fetches its part for all. SPLIT 2: two such groups have half of K each, and of each tile each block
// ends with half the columns of both partial sums.
// Three warp groups: one thread of the first fetches, the two others multiply 64 rows each.
//
// RESIDUAL: y = residual + x · Wᵀ + bias instead, and `written` tells of the statistics of its rows (see statistics.cuh).
// NORMED: the product of (x - mean) / deviation of each row, which `read` tells, by the factors of the norm and bias that
// W and bias have in them: what a row's mean adds to each column is taken off again, by the sums of W's rows.
//
// Of a launch that overlaps only W and bias are read before the kernel in front has ended.
#include "activations.cuh"
#include "statistics.cuh"
#include "tma.cuh"
#include "wgmma_wide.cuh"

#define BM 128  // rows of a block
#define ROW 128  // bytes of K at a time
#ifdef FP8
#define STEP ROW
#else
#define STEP (ROW / 2)
#endif
#define A_BYTES (BM * ROW)
#define STAGE (A_BYTES + COLUMNS * ROW)
// Steps of weights asked for before the kernel in front has ended.
#if defined(NORMED) || defined(RESIDUAL)
#define AHEAD (STAGES < 4 ? STAGES : 4)
#else
#define AHEAD 2
#endif
#define GROUP (ACROSS * ALONG)  // blocks that share operands
#define CLUSTER (GROUP * SPLIT)
#define SOURCES (ACROSS + ALONG - 1)  // blocks that a block fetches for, and that fetch for it
#define KEPT (COLUMNS / SPLIT)  // columns that a block ends with
#define UNITS (KEPT / 8)  // of 16 bytes, of a row of y
#define PITCH (16 * (UNITS | 1))  // bytes between rows of y in shared memory: no two of eight in the same banks
#ifdef NORMED
typedef float offset;
#else
typedef elem offset;
#endif
#if defined(FP8) || defined(NORMED)
#define BY_COLUMN  // a factor of each column beside its bias
#define BIAS_PAIR 16  // bytes of two columns
#else
#define BIAS_PAIR 8
#endif
#ifdef RESIDUAL
static_assert(KEPT == STATISTICS, "a block's columns of a row are what statistics are of");
#endif

extern "C" __global__ void __launch_bounds__(384, 1) dense(
    const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap weight, const offset* bias, elem* y,
    long long y_row, int M, int N, int K
#ifdef FP8
    , const float* row_scale, const float* column_factor
#endif
#ifdef NORMED
    , const float2* read, const float* column_factor, float eps
#endif
#ifdef RESIDUAL
    , const __grid_constant__ TensorMap residual, float2* written
#endif
) {
    extern __shared__ char raw[];
    const u32 base = (smem_u32(raw) + 1023) & ~1023u;
    const u32 exchange = base + STAGES * STAGE;  // partial sums from the block with the other half of K
    const u32 biases = exchange + (SPLIT - 1) * BM * KEPT * 4, full = biases + COLUMNS * 8, empty = full + 8 * STAGES;
    const u32 met = empty + 8 * STAGES;
    const int group = threadIdx.x / 128;
    const u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
    const int across = rank % ACROSS, along = rank / ACROSS % ALONG, half = rank / GROUP;
    const int row_clusters = (M + ACROSS * BM - 1) / (ACROSS * BM), cluster = blockIdx.x / CLUSTER;
    const int m = (cluster % row_clusters * ACROSS + across) * BM;
    const int n = (cluster / row_clusters * ALONG + along) * COLUMNS;
    const int all = (K + STEP - 1) / STEP, first = half * ((all + SPLIT - 1) / SPLIT);
    const int steps = min(all - first, (all + SPLIT - 1) / SPLIT), ahead = min(steps, AHEAD);

    launch_next();
    if (threadIdx.x == 0) {
        prefetch_map(weight);
        prefetch_map(x);
#ifdef RESIDUAL
        prefetch_map(residual);
#endif
        for (int s = 0; s < STAGES; s++) {
            mbar_init(full + 8 * s, 1);
            mbar_init(empty + 8 * s, 2 * SOURCES);  // both multiplying groups of each block that it fetches for
        }
        mbar_init(met, 1);
        fence_barriers();
        if (SPLIT > 1) mbar_expect(met, BM * KEPT * 4);
    }
    __syncthreads();
    if (CLUSTER > 1) { cluster_arrive_relaxed(); cluster_wait(); }

    const u32 row_mask = ((1u << ACROSS) - 1) << (half * GROUP + along * ACROSS);  // who has the same columns
    const auto load_weight = [&](int k) {
        const int s = k % STAGES, part = COLUMNS / ACROSS;
        const u32 to = base + s * STAGE + A_BYTES + across * part * ROW;
        mbar_expect(full + 8 * s, STAGE);
        if (ACROSS > 1) tile_load_all(to, weight, (first + k) * STEP, n + across * part, full + 8 * s, row_mask);
        else tile_load(to, weight, (first + k) * STEP, n, full + 8 * s);
    };
    if (threadIdx.x == 0) for (int k = 0; k < ahead; k++) load_weight(k);
    const int own = threadIdx.x - 128;  // the column whose bias this thread brings
    float own_bias = 0.0f;
    if (own >= 0 && own < COLUMNS && n + own < N && bias) own_bias = static_cast<float>(bias[n + own]);
#ifdef BY_COLUMN
    const float own_factor = own >= 0 && own < COLUMNS && n + own < N ? column_factor[n + own] : 0.0f;
#endif
    wait_previous();

    if (group == 0) {
        fewer_registers<40>();
        if (threadIdx.x == 0) {
            u32 column_mask = 0;  // who has the same rows
            for (int i = 0; i < ALONG; i++) column_mask |= 1u << (half * GROUP + i * ACROSS + across);
            const auto load_x = [&](int k) {
                const int s = k % STAGES, part = BM / ALONG;
                const u32 to = base + s * STAGE + along * part * ROW;
                if (ALONG > 1) tile_load_all(to, x, (first + k) * STEP, m + along * part, full + 8 * s, column_mask);
                else tile_load(to, x, (first + k) * STEP, m, full + 8 * s);
            };
            for (int k = 0; k < steps; k++) {
                if (k >= STAGES) mbar_wait(empty + 8 * (k % STAGES), (k / STAGES + 1) & 1);
                if (k >= ahead) load_weight(k);
                load_x(k);
            }
#ifdef RESIDUAL
            if (steps >= STAGES) mbar_wait(empty + 8 * (steps % STAGES), (steps / STAGES + 1) & 1);
            mbar_expect(full + 8 * (steps % STAGES), A_BYTES);
            tile_load(base + steps % STAGES * STAGE, residual, n + half * KEPT, m, full + 8 * (steps % STAGES));
#endif
        }
        __syncwarp();
        if (CLUSTER > 1) { cluster_arrive_relaxed(); cluster_wait(); }
        return;
    }

    more_registers<232>();
    const int mine = group - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
#ifdef NORMED
    RowParts<NORMED> parts;
    float2 normed[2];
    parts.load(read, m + mine * 64 + warp * 16, M, lane);
#endif
    if (own < COLUMNS) {  // two columns' biases, then their factors
        const u32 to = biases + own / 2 * BIAS_PAIR + own % 2 * 4;
        store_shared(to, own_bias);
#ifdef BY_COLUMN
        store_shared(to + 8, own_factor);
#endif
    }
    // one lane for each block that fetches for this one
    const int source = lane < ACROSS ? along * ACROSS + lane : ((lane - ACROSS) + (lane - ACROSS >= along)) * ACROSS + across;
    const bool tells = warp == 0 && lane < SOURCES;
    const u32 there = CLUSTER > 1 ? peer(empty, half * GROUP + (tells ? source : 0)) : empty;
    const auto release = [&](int k) {
        if (!tells) return;
        if (CLUSTER > 1) mbar_arrive_at(there + 8 * (k % STAGES));
        else mbar_arrive(there + 8 * (k % STAGES));
    };
#ifdef FP8
    const int scaled = m + mine * 64 + warp * 16 + lane / 4;
    const float scales[2] = {scaled < M ? row_scale[scaled] : 0.0f, scaled + 8 < M ? row_scale[scaled + 8] : 0.0f};
#endif
    float d[COLUMNS / 2];
    for (int k = 0; k < steps; k++) {
        const int s = k % STAGES;
        mbar_wait(full + 8 * s, k / STAGES & 1);
        const u64 a = uniform_desc(base + s * STAGE + mine * (64 * ROW));
        const u64 b = uniform_desc(base + s * STAGE + A_BYTES);
        gmma_fence();
#pragma unroll
        for (int j = 0; j < ROW / 32; j++) multiply(d, a + 2 * j, b + 2 * j, k | j);
        gmma_commit();
        if (k) {
            gmma_wait<1>();
            release(k - 1);
        }
#ifdef NORMED
        else {
            parts.factors(normed, eps, lane);  // while the tensor cores are busy
        }
#endif
    }
    gmma_wait<0>();
    if (CLUSTER > 1) cluster_arrive_relaxed();  // no block ends while another may still write to it

    // Thread t of a warp has rows t / 4 and t / 4 + 8 of its warp's 16, columns 8·j + 2·(t % 4) and the next in d[4·j …].
#if SPLIT > 1
    const u32 other = peer(exchange, rank ^ GROUP), arrived = peer(met, rank ^ GROUP);
#pragma unroll
    for (int j = 0; j < UNITS; j++) {
        float v[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            v[e] = half ? d[4 * j + e] : d[4 * (UNITS + j) + e];
            d[4 * j + e] = half ? d[4 * (UNITS + j) + e] : d[4 * j + e];
        }
        push4(other + (j * 256 + threadIdx.x - 128) * 16, arrived, v);
    }
    mbar_wait(met, 0);
#pragma unroll
    for (int j = 0; j < UNITS; j++) {
        const float4 v = as_float4(load_shared4(exchange + (j * 256 + threadIdx.x - 128) * 16));
        d[4 * j] += v.x, d[4 * j + 1] += v.y, d[4 * j + 2] += v.z, d[4 * j + 3] += v.w;
    }
#endif
    named_barrier(1, 256);  // what was multiplied is not needed any more: the result goes where it was
#ifdef RESIDUAL
    const u32 place = base + (steps + 1) % STAGES * STAGE + (mine * 64 + warp * 16) * PITCH;
#else
    const u32 place = base + (mine * 64 + warp * 16) * PITCH;
#endif
    const u32 mine_bias = biases + (half * (KEPT / 2) + lane % 4) * BIAS_PAIR;
    const int row = m + mine * 64 + warp * 16, column = n + half * KEPT;
#pragma unroll
    for (int j = 0; j < UNITS; j++) {
#ifdef BY_COLUMN
        const float4 by = as_float4(load_shared4(mine_bias + 4 * j * BIAS_PAIR));
        const float2 b = make_float2(by.x, by.y), s = make_float2(by.z, by.w);
#else
        const float2 b = load_shared2(mine_bias + 4 * j * BIAS_PAIR);
#endif
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float& v = d[4 * j + e];
            const float add = e % 2 ? b.y : b.x;
#if defined(FP8)
            v = v * (scales[e / 2] * (e % 2 ? s.y : s.x)) + add;
#elif defined(NORMED)
            v = fmaf(normed[e / 2].x, v, fmaf(normed[e / 2].y, e % 2 ? s.y : s.x, add));
#else
            v += add;
#endif
        }
#pragma unroll
        for (int e = 0; e < 4; e += 2) activate(d[4 * j + e], d[4 * j + e + 1]);
    }
#ifdef RESIDUAL
    const u32 added = base + steps % STAGES * STAGE;  // rows of 128 bytes, as x has them
    const int at = mine * 64 + warp * 16 + lane % 16;
    mbar_wait(full + 8 * (steps % STAGES), steps / STAGES & 1);
#pragma unroll
    for (int j = 0; j < UNITS; j += 2) {  // matrices as below
        u32 v[4];
        load_matrices(v, added + at * ROW + ((j + lane / 16) ^ (at & 7)) * 16);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 more = unpack_elem(v[i]);
            d[4 * j + 2 * i] += more.x, d[4 * j + 2 * i + 1] += more.y;
        }
    }
#endif
    const auto pair = [&](int j, int e) { return pack_elem(d[4 * j + e], d[4 * j + e + 1]); };
#pragma unroll
    for (int j = 0; j < UNITS / 2 * 2; j += 2)  // matrix lane / 8: rows 0–7 and 8–15 of eight columns, then of the next eight
        store_matrices(place + (lane % 16) * PITCH + (j + lane / 16) * 16, pair(j, 0), pair(j, 2), pair(j + 1, 0), pair(j + 1, 2));
    if (UNITS % 2) {
        const u32 to = place + lane / 4 * PITCH + (UNITS - 1) * 16 + 4 * (lane % 4);
        store_shared(to, pair(UNITS - 1, 0));
        store_shared(to + 8 * PITCH, pair(UNITS - 1, 2));
    }
    __syncwarp();
#pragma unroll
    for (int i = lane; i < 16 * UNITS; i += 32) {
        const int r = i / UNITS, c = i % UNITS;
        if (row + r < M && column + 8 * c < N)
            *reinterpret_cast<uint4*>(y + (row + r) * y_row + column + 8 * c) = load_shared4(place + r * PITCH + 16 * c);
    }
#ifdef RESIDUAL
    RowSums sums[2];
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int j = 0; j < UNITS; j++) sums[h].add(d[4 * j + 2 * h], d[4 * j + 2 * h + 1]);
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2)
#pragma unroll
        for (int h = 0; h < 2; h++) sums[h].add_neighbour(distance);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int r = row + lane / 4 + 8 * h;
        if (lane % 4 == 0 && r < M && column < N) written[(long long)(column / STATISTICS) * M + r] = sums[h].statistics();
    }
#endif
    if (CLUSTER > 1) cluster_wait();
}
