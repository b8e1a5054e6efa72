// Attention of short sequences: all keys and values of a head lie in shared memory at once, so scores are made once, in
// registers, and nothing is rescaled.
//
// A block has 64 · GROUPS queries of one head, a warpgroup 64 of them with all keys. Queries, keys and values lie in
// planes of eight elements (wgmma_planes.cuh), however wide a head is. The weights (powers of two of the scores less the
// row's greatest) go from the registers of the first product into the second. A row is computed alike, whatever is beside
// it.
#include "wgmma_planes.cuh"

// HD: size of a head, a multiple of 8 up to 128. CHUNKS: of 64 keys. GROUPS: warpgroups of a block.
#ifndef SKEW
#define SKEW 16
#endif
#ifndef LATE
#define LATE 0
#endif
#ifndef POLYNOMIALS
#define POLYNOMIALS 0
#endif
constexpr int UNITS = HD / 8, STEPS = (UNITS + 1) / 2, ROWS = 64 * GROUPS, THREADS = 128 * GROUPS, KEYS = 64 * CHUNKS;
constexpr int Q_PLANE = ROWS * 16 + SKEW, PLANE = KEYS * 16 + SKEW;  // bytes; neighbouring planes begin in other banks
constexpr int K_AT = UNITS * Q_PLANE, V_AT = K_AT + UNITS * PLANE, ZERO_AT = V_AT + UNITS * PLANE;
constexpr int PASS = THREADS / UNITS;                 // rows that the block copies at a time
constexpr int PITCH = HD * 2 + (UNITS % 2 ? 0 : 16);  // bytes between rows of the output in shared memory

struct Strides { long long batch, row, head; };  // in elements

struct Params {
    const elem *q, *k, *v;
    elem* o;
    Strides of_q, of_k, of_v, of_o;
    int queries, keys, group, tiles;  // group: query heads of a key head; tiles: of 64 · GROUPS queries, of a sequence
    float factor;                     // of scores, as powers of two
};

// Rows of one tensor on their way into planes: this thread copies unit `unit` of rows row, row + PASS, …
struct Copier {
    u32 to;
    const elem* from;
    long long step;  // elements from pass to pass
    int row, there;  // rows past `there` are zeros
    bool active;

    __device__ Copier(u32 at, int plane, const elem* src, long long stride, int there)
        : row(threadIdx.x / UNITS), there(there), active(row < PASS) {
        const int unit = threadIdx.x % UNITS;
        to = at + unit * plane + row * 16;
        from = src + row * stride + unit * 8;
        step = PASS * stride;
    }
    // Passes first to last - 1, of `count` rows in all.
    __device__ __forceinline__ void copy(int first, int last, int count) {
#pragma unroll
        for (int i = first; i < last; ++i, from += step)
            if (active && ((i + 1) * PASS <= count || row + i * PASS < count))
                copy16_if(to + i * PASS * 16, from, row + i * PASS < there);
    }
};
__device__ constexpr int passes(int rows) { return (rows + PASS - 1) / PASS; }

__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// The same by multiplications: x = n + r, |r| <= 1/2, 2^r by a polynomial (7.5e-5), n into the exponent.
__device__ __forceinline__ float power_of_two_fma(float x) {
    x = fmaxf(x, -126.0f);
    const float n = x + 12582912.0f, r = x - (n - 12582912.0f);
    const float y = fmaf(fmaf(fmaf(0.05517167f, r, 0.24261112f), r, 0.69326099f), r, 0.99992807f);
    return __int_as_float(__float_as_int(y) + (__float_as_int(n) << 23));
}

extern "C" __global__ void __launch_bounds__(THREADS, GROUPS == 1 && HD <= 80 ? 2 : 1)
    attention_short(const __grid_constant__ Params p) {
    extern __shared__ __align__(128) char smem[];
    launch_next();
    const u32 base = smem_u32(smem);
    const int lane = threadIdx.x & 31, warp = __shfl_sync(~0u, threadIdx.x >> 5, 0), g = lane >> 2, q4 = lane & 3;
    const int sequence = blockIdx.x / p.tiles, top = (blockIdx.x - sequence * p.tiles) * ROWS, head = blockIdx.y;
    const int kv_head = head / p.group;
    Copier q(base, Q_PLANE, p.q + sequence * p.of_q.batch + top * p.of_q.row + head * p.of_q.head, p.of_q.row,
             p.queries - top);
    Copier k(base + K_AT, PLANE, p.k + sequence * p.of_k.batch + kv_head * p.of_k.head, p.of_k.row, p.keys);
    Copier v(base + V_AT, PLANE, p.v + sequence * p.of_v.batch + kv_head * p.of_v.head, p.of_v.row, p.keys);
    if (UNITS % 2 && threadIdx.x < 64)  // what is summed over past a head's last elements
        *reinterpret_cast<uint4*>(smem + ZERO_AT + threadIdx.x * 16) = make_uint4(0, 0, 0, 0);

    wait_previous();
    q.copy(0, passes(ROWS), ROWS);
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        k.copy(c ? passes(64 * c) : 0, passes(64 * (c + 1)), KEYS);
        copy_commit();
    }
    if (!LATE) {
        v.copy(0, passes(KEYS), KEYS);
        copy_commit();
    }

    float s[CHUNKS][32];
    u32 a[STEPS][4];
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        copy_wait_for(CHUNKS - 1 - c + !LATE);
        fence_async();
        __syncthreads();
        if (c == 0) {
            // lane l names row l % 8 of matrix l / 8: rows 0–7 and 8–15 of the first unit, then of the second
#pragma unroll
            for (int t = 0; t < STEPS; ++t) {
                const int unit = 2 * t + 1 < UNITS ? 2 * t + (lane >> 4) : 2 * t;
                load_matrices(a[t], base + unit * Q_PLANE + (warp * 16 + (lane & 15)) * 16);
            }
            if (UNITS % 2)  // in registers of their own, beside the others
                asm volatile("mov.u32 %0, 0;\nmov.u32 %1, 0;" : "=r"(a[STEPS - 1][2]), "=r"(a[STEPS - 1][3]));
        }
        gmma_fence();
#pragma unroll
        for (int t = 0; t < STEPS; ++t) {
            const int at = K_AT + 2 * t * PLANE + c * 1024;
            mma_rows(s[c], a[t], planes(base + at, 2 * t + 1 < UNITS ? PLANE : ZERO_AT - at, 128), t);
        }
        gmma_commit();
    }
    if (LATE) {
        v.copy(0, passes(KEYS), KEYS);
        copy_commit();
    }

    float most[4] = {NEG_INF, NEG_INF, NEG_INF, NEG_INF}, greatest[2], sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        if (c + 4 == CHUNKS) gmma_wait<3>();
        else if (c + 3 == CHUNKS) gmma_wait<2>();
        else if (c + 2 == CHUNKS) gmma_wait<1>();
        else if (c + 1 == CHUNKS) gmma_wait<0>();
        else gmma_wait<4>();
#pragma unroll
        for (int j = 0; j < 32; ++j) asm volatile("" : "+f"(s[c][j])::"memory");  // not to be read before
        if (c == CHUNKS - 1 && p.keys < KEYS)
#pragma unroll
            for (int j = 0; j < 32; ++j)
                if (c * 64 + (j >> 2) * 8 + 2 * q4 + (j & 1) >= p.keys) s[c][j] = NEG_INF;
#pragma unroll
        for (int j = 0; j < 32; ++j) most[j & 3] = fmaxf(most[j & 3], s[c][j]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        greatest[h] = fmaxf(most[2 * h], most[2 * h + 1]);
        greatest[h] = fmaxf(greatest[h], __shfl_xor_sync(~0u, greatest[h], 1));
        greatest[h] = fmaxf(greatest[h], __shfl_xor_sync(~0u, greatest[h], 2)) * p.factor;
    }

    copy_wait<0>();
    fence_async();
    __syncthreads();  // values are there, and nobody reads queries or keys any more
    float o[UNITS * 4];
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        u32 weight[16];
#pragma unroll
        for (int j = 0; j < 16; ++j) {
            const float x = fmaf(s[c][2 * j], p.factor, -greatest[j & 1]), y = fmaf(s[c][2 * j + 1], p.factor, -greatest[j & 1]);
            const float u = j % 8 < POLYNOMIALS ? power_of_two_fma(x) : power_of_two(x), w = power_of_two(y);
            sum[j & 1] += u + w;
            weight[j] = pack_elem(u, w);
        }
        gmma_fence();
#pragma unroll
        for (int j = 0; j < 4; ++j)
            mma_columns<UNITS>(o, weight + 4 * j, planes(base + V_AT + c * 1024 + j * 256, 128, PLANE), c | j);
        gmma_commit();
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        sum[h] += __shfl_xor_sync(~0u, sum[h], 1);
        sum[h] = __fdividef(1.0f, sum[h] + __shfl_xor_sync(~0u, sum[h], 2));
    }
    gmma_wait<0>();

    // A warp's 16 rows through shared memory, so that they are written in whole units.
    const u32 rows = base + warp * 16 * PITCH;
#pragma unroll
    for (int j = 0; j < UNITS; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h)
            store_shared(rows + (g + 8 * h) * PITCH + j * 16 + q4 * 4,
                         pack_elem(o[4 * j + 2 * h] * sum[h], o[4 * j + 2 * h + 1] * sum[h]));
    __syncwarp();
    elem* const out = p.o + sequence * p.of_o.batch + head * p.of_o.head;
#pragma unroll
    for (int i = lane; i < 16 * UNITS; i += 32) {
        const int row = i / UNITS, unit = i % UNITS, query = top + warp * 16 + row;
        if (query < p.queries)
            *reinterpret_cast<uint4*>(out + query * p.of_o.row + unit * 8) = load_shared4(rows + row * PITCH + unit * 16);
    }
}
