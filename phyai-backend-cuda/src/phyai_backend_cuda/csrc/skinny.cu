// y = x · Wᵀ for at most 64 rows of x: the rows of W are the rows of the product, those of x its columns.
//
// A warpgroup multiplies 64 rows of W by all of x. The blocks of a cluster share K; each leaves its partial product in
// shared memory, and each adds up, in the order of the blocks, its share of the rows of x. So nothing spins, nothing
// depends on the order of arrival, and a row's result does not depend on the other rows.
// Weights do not depend on the kernel in front: as many as fit are asked for before waiting for it.
//
// Weights of 16 bits lie as they are, [N, K]. Quantized ones are packed in the order in which a thread multiplies them
// (see skinny_pack.py) and become 16-bit values in registers: fp8 exactly, int4 as (code - zero point) · scale of their
// group; a scale per row is applied to the sum.
#include "cluster.cuh"

// M8: rows of x, in eights. CHUNKS: chunks of 64 of K of a block; K is SPLITS times as much. SPLITS: blocks of a cluster. GROUPS: warpgroups.
// AHEAD: chunks of W in flight, 3 or more. BITS: of a weight, 16, 8 (e4m3) or 4. GROUP: K of a scale, 0 for a row.
// CENTRED: groups have zero points; those of int4 are 8 without.
// EPILOGUE: 0 y = product (+ bias); 1 y = residual + gate · product; 2 y = act(gate rows) · up rows (two warpgroups).
constexpr int XCHUNK = M8 * 1024, WCHUNK = 512 * BITS;  // bytes of 64 of K
constexpr int ROWS = GROUPS * 64, PITCH = ROWS * 4 + 16, THREADS = GROUPS * 128;
constexpr int OUT = EPILOGUE == 2 ? ROWS / 2 : ROWS;
constexpr bool REFILL = AHEAD < CHUNKS;
#if GROUP
constexpr int SCALES = CHUNKS * 64 / GROUP;
#endif

struct Params {
    const elem* x;
    const char* w;
    const u32 *group_scale, *group_zero;  // of the two rows of a thread, as elements; of int4 with groups
    const float* row_scale;               // [N]; of quantized weights without groups
    const elem *bias, *residual, *gate;   // [N]; [M, N]; [M / gate_rows, N]
    elem* y;
    long long x_row, y_row;               // elements between rows
    int m, n, k, gate_rows, activation;   // activation: 0 silu, 1 gelu, 2 gelu_tanh
};

__device__ __forceinline__ float activate(float x, int kind) {
    if (kind == 0) return __fdividef(x, 1.0f + __expf(-x));
    if (kind == 1) return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
    return gelu_tanh(x);
}

// Two e4m3 values, in the high bytes of each half of `v`, as elements.
__device__ __forceinline__ u32 from_fp8(u32 v) {
#ifdef HALF
    return mul_elem2(((v >> 1) & 0x3F803F80u) | (v & 0x80008000u), 0x5C005C00u);  // exponents differ by 8
#else
    return mul_elem2(((v >> 4) & 0x07F007F0u) | (v & 0x80008000u), 0x7B807B80u);  // by 120
#endif
}
#ifdef HALF
#define INT4_BASE 0x64006400u  // 1024, whose last place is 1
#define INT4_ZERO 0x64086408u  // 1024 + 8
#else
#define INT4_BASE 0x43004300u  // 128
#define INT4_ZERO 0x43084308u
#endif

struct Block {
    const Params& p;
    u32 w, x;  // of shared memory
    int first, row;  // chunk of K, and row of W, of this warpgroup
    int group, t;           // warpgroup, thread in it

    __device__ u32 slot(int c) const { return w + ((c % AHEAD) * GROUPS + group) * WCHUNK; }
    __device__ const char* packed(int c) const {
        return p.w + (size_t(row / 64) * (p.k / 64) + first + c) * WCHUNK;
    }
    __device__ void load_w(int c) const {
        if (c < CHUNKS) {
#if BITS == 16
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int r = i * 16 + t / 8, unit = t % 8;
                const char* from = p.w + (size_t(min(row + r, p.n - 1)) * p.k + (first + c) * 64 + unit * 8) * 2;
                copy16(slot(c) + r * 128 + ((unit ^ (r & 7)) << 4), from);
            }
#else
#pragma unroll
            for (int i = 0; i < BITS / 4; ++i) copy16(slot(c) + i * 2048 + t * 16, packed(c) + i * 2048 + t * 16);
#endif
        }
        copy_commit();
    }
    // What does not fit yet comes as far as L2.
    __device__ void prefetch() const {
#if BITS == 16
        if (t < 64) prefetch_l2(p.w + (size_t(min(row + t, p.n - 1)) * p.k + (first + AHEAD) * 64) * 2, (CHUNKS - AHEAD) * 128);
#else
        if (t == 0) prefetch_l2(packed(AHEAD), (CHUNKS - AHEAD) * WCHUNK);
#endif
    }
    __device__ void load_x(int c) const {
#pragma unroll
        for (int i = 0; i < (M8 * 64 + THREADS - 1) / THREADS; ++i) {
            const int u = i * THREADS + threadIdx.x, r = u / 8, unit = u % 8;
            if (r < p.m)
                copy16(x + c * XCHUNK + r * 128 + ((unit ^ (r & 7)) << 4),
                       p.x + r * p.x_row + (first + c) * 64 + unit * 8);
        }
        copy_commit();
    }
};

extern "C" __global__ void __launch_bounds__(THREADS) skinny(const __grid_constant__ Params p) {
    extern __shared__ __align__(1024) char smem[];
    launch_next();
    const int warp = __shfl_sync(~0u, threadIdx.x >> 5, 0), group = warp / 4, lane = threadIdx.x & 31;
    const int g = lane >> 2, q = lane & 3, split = SPLITS > 1 ? cluster_rank() : 0, tile = blockIdx.y;
    const u32 base = smem_u32(smem);
    Block b{p, base, base + (REFILL ? AHEAD : CHUNKS) * GROUPS * WCHUNK};
    b.first = split * CHUNKS;
    b.row = EPILOGUE == 2 ? group * (p.n / 2) + tile * 64 : tile * ROWS + group * 64;
    b.group = group;
    b.t = threadIdx.x & 127;
#pragma unroll
    for (int c = 0; c < (REFILL ? AHEAD : CHUNKS); ++c) b.load_w(c);
    if (REFILL) b.prefetch();
#if GROUP
    u32 scale[SCALES];
#if CENTRED
    u32 zero[SCALES];
#endif
    {
        const size_t at = (size_t(b.row / 64) * (p.k / GROUP) + b.first * 64 / GROUP) * 32 + (warp & 3) * 8 + g;
#pragma unroll
        for (int i = 0; i < SCALES; ++i) {
            scale[i] = load_constant(p.group_scale + at + i * 32);
#if CENTRED
            zero[i] = load_constant(p.group_zero + at + i * 32);
#endif
        }
    }
#endif
    wait_previous();
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) b.load_x(c);

    float acc[M8 * 4];
#pragma unroll
    for (int i = 0; i < M8 * 4; ++i) acc[i] = 0.0f;
#if BITS < 16
    u32 a[2][16];
#endif
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        // (The other way round, waiting for copies first, the compiler of CUDA 12 crashes at some sizes.)
        if (c > 1) gmma_wait<1>();  // chunk c - 2 is done with
        copy_wait_for(!REFILL ? CHUNKS - 1 - c : c < AHEAD ? CHUNKS - 1 - c + max(0, c - 2) : AHEAD - 3);
        fence_async();
        __syncthreads();
        if (REFILL && c > 1) b.load_w(c - 2 + AHEAD < CHUNKS ? c - 2 + AHEAD : CHUNKS);
        const u64 x = uniform_desc(b.x + c * XCHUNK);
#if BITS == 16
        const u64 w = uniform_desc(b.slot(c));
        gmma_fence();
#pragma unroll
        for (int i = 0; i < 4; ++i) mma<M8>(acc, w + 2 * i, x + 2 * i);
#else
        u32* v = a[c & 1];
#if BITS == 8
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint4 codes = load_shared4(b.slot(c) + i * 2048 + b.t * 16);
            const u32 words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                v[i * 8 + 2 * j] = from_fp8(words[j] << 8);
                v[i * 8 + 2 * j + 1] = from_fp8(words[j]);
            }
        }
#else
        const uint4 codes = load_shared4(b.slot(c) + b.t * 16);
        const u32 words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#if GROUP
            const u32 s = scale[(c * 64 + i * 16) / GROUP];
#endif
#if CENTRED
            const u32 z = zero[(c * 64 + i * 16) / GROUP];
#endif
#pragma unroll
            for (int j = 0; j < 4; ++j) {  // even: row g; odd: row g + 8
                const u32 selector = j & 1 ? 0x3232 : 0x1010, code = ((words[i] >> (4 * j)) & 0x000F000Fu) | INT4_BASE;
#if CENTRED
                v[i * 4 + j] = sub_elem2(code, __byte_perm(z, 0, selector));
#else
                v[i * 4 + j] = sub_elem2(code, INT4_ZERO);
#endif
#if GROUP
                v[i * 4 + j] = mul_elem2(v[i * 4 + j], __byte_perm(s, 0, selector));
#endif
            }
        }
#endif
        gmma_fence();
#pragma unroll
        for (int i = 0; i < 4; ++i) mma_regs<M8>(acc, v + 4 * i, x + 2 * i);
#endif
        gmma_commit();
    }
    gmma_wait<0>();
    copy_wait<0>();
    __syncthreads();

    // The partial product, [rows of x, rows of W], over what was loaded.
#pragma unroll
    for (int i = 0; i < M8 * 4; ++i) {
        const int m = (i >> 2) * 8 + 2 * q + (i & 1), n = warp * 16 + g + (i >> 1 & 1) * 8;
        store_shared(base + m * PITCH + n * 4, acc[i]);
    }
    if (SPLITS > 1) {
        cluster_arrive();
        cluster_wait();
    } else {
        __syncthreads();
    }
    const int share = (p.m + SPLITS - 1) / SPLITS, columns = EPILOGUE == 2 ? p.n / 2 : p.n;
    for (int u = threadIdx.x; u < share * (OUT / 4); u += THREADS) {
        const int m = split * share + u / (OUT / 4), within = u % (OUT / 4) * 4, n = tile * OUT + within;
        if (m >= p.m || n >= columns) continue;
        float v[EPILOGUE == 2 ? 2 : 1][4];
#pragma unroll
        for (int half = 0; half < (EPILOGUE == 2 ? 2 : 1); ++half) {
            const u32 at = base + m * PITCH + (within + half * OUT) * 4;
            uint4 parts[SPLITS];
#pragma unroll
            for (int s = 0; s < SPLITS; ++s) parts[s] = SPLITS > 1 ? load_peer4(peer(at, s)) : load_shared4(at);
            float4 sum = as_float4(parts[0]);
#pragma unroll
            for (int s = 1; s < SPLITS; ++s) {
                const float4 part = as_float4(parts[s]);
                sum.x += part.x; sum.y += part.y; sum.z += part.z; sum.w += part.w;
            }
            if (BITS < 16 && !GROUP) {
                const float4 f = *reinterpret_cast<const float4*>(p.row_scale + half * columns + n);
                sum.x *= f.x; sum.y *= f.y; sum.z *= f.z; sum.w *= f.w;
            }
            v[half][0] = sum.x; v[half][1] = sum.y; v[half][2] = sum.z; v[half][3] = sum.w;
        }
        float* y = v[0];
        if (EPILOGUE == 2) {
#pragma unroll
            for (int i = 0; i < 4; ++i) y[i] = activate(y[i], p.activation) * v[EPILOGUE == 2][i];
        } else if (p.bias) {
            const uint2 bias = *reinterpret_cast<const uint2*>(p.bias + n);
            const float2 lo = unpack_elem(bias.x), hi = unpack_elem(bias.y);
            y[0] += lo.x; y[1] += lo.y; y[2] += hi.x; y[3] += hi.y;
        }
        if (EPILOGUE == 1) {
            const uint2 residual = __ldcg(reinterpret_cast<const uint2*>(p.residual + size_t(m) * p.n + n));
            float2 lo = make_float2(1.0f, 1.0f), hi = lo;
            if (p.gate) {
                const uint2 gate = __ldcg(reinterpret_cast<const uint2*>(p.gate + size_t(m / p.gate_rows) * p.n + n));
                lo = unpack_elem(gate.x); hi = unpack_elem(gate.y);
            }
            const float2 r = unpack_elem(residual.x), s = unpack_elem(residual.y);
            y[0] = r.x + y[0] * lo.x; y[1] = r.y + y[1] * lo.y; y[2] = s.x + y[2] * hi.x; y[3] = s.y + y[3] * hi.y;
        }
        *reinterpret_cast<uint2*>(p.y + m * p.y_row + n) = make_uint2(pack_elem(y[0], y[1]), pack_elem(y[2], y[3]));
    }
    if (SPLITS > 1) {  // a block's shared memory outlives the reads of its peers
        cluster_arrive();
        cluster_wait();
    }
}
