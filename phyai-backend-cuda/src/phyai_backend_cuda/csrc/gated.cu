// h[M, I] = act(x · gateᵀ) * (x · upᵀ) in one launch: what gate and up give is never written.
//
// x is [M, K] and the weight [2·I, K] (gate's rows, then up's), both FP8 (e4m3) with one scale per row; h is bf16, or
// (CODES) its FP8 codes under a scale that is given. A pair of blocks shares 128 columns of I, each with 128 rows of x:
// a block fetches its own rows and half of the weights, which go to both. Three warp groups: one thread of the first
// fetches, the two others multiply 64 rows each, activate in registers, and send their part of h off while the next
// tile's operands arrive.
#include "tma.cuh"

#define BM 128           // rows of a block
#define BI 128           // columns of h of a block
#define ROW 128          // codes of K at a time
#define STAGES 4
#define PART (128 * ROW) // bytes of one operand: x, gate or up
#define STAGE (3 * PART)
#define OUT (64 * 128)   // bytes of a store: 64 rows of 64 columns, or of 128 codes

#define D64(d, i) D16(d, i), D16(d, i + 16), D16(d, i + 32), D16(d, i + 48)
// d[64 × 256] = A · Bᵀ over 32 of K, added to what d was where `add` is not 0.
__device__ __forceinline__ void multiply(float (&d)[128], u64 a, u64 b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "%128, %129, p, 1, 1;\n}"
        : D64(d, 0), D64(d, 64) : "l"(a), "l"(b), "r"(add));
}

__device__ __forceinline__ float activate(float x) {
#if ACTIVATION == 0  // silu
    return __fdividef(x, 1.0f + __expf(-x));
#elif ACTIVATION == 1  // gelu
    return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
#else
    return gelu_tanh(x);
#endif
}

// The codes of two bf16 values, scaled.
__device__ __forceinline__ void store_codes(u32 to, u32 pair, float factor) {
    const float lo = __uint_as_float(pair << 16) * factor, hi = __uint_as_float(pair & 0xFFFF0000u) * factor;
    unsigned short codes;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(hi), "f"(lo));
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(codes) : "memory");
}

extern "C" __global__ void __launch_bounds__(384, 1) gated(
    const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap weight, const __grid_constant__ TensorMap h,
    const float* row_scale, const float* column_scale, const float* h_scale, int M, int I, int K) {
    extern __shared__ char raw[];
    const u32 base = (smem_u32(raw) + 1023) & ~1023u;
    const u32 out = base + STAGES * STAGE, full = out + 4 * OUT, empty = full + 8 * STAGES;
    const int group = threadIdx.x / 128;
    const u32 rank = cluster_rank();
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            mbar_init(full + 8 * s, 1);
            mbar_init(empty + 8 * s, 4);  // both multiplying groups of both blocks
        }
        fence_barriers();
    }
    __syncthreads();
    cluster_arrive();
    cluster_wait();

    const int steps = (K + ROW - 1) / ROW, pairs = (M + 2 * BM - 1) / (2 * BM), tiles = pairs * (I / BI);
    const int first = blockIdx.x / 2, stride = gridDim.x / 2;
    if (group == 0) {
        fewer_registers<40>();
        if (threadIdx.x == 0) {
            prefetch_map(x);
            prefetch_map(weight);
            int stage = 0;
            u32 phase = 1;
            for (int tile = first; tile < tiles; tile += stride) {
                const int m = ((tile % pairs) * 2 + rank) * BM, column = tile / pairs * BI + (rank ? I : 0);
                for (int k = 0; k < steps; k++) {
                    const u32 to = base + stage * STAGE, bar = full + 8 * stage;
                    mbar_wait(empty + 8 * stage, phase);
                    mbar_expect(bar, STAGE);
                    tile_load(to, x, k * ROW, m, bar);
                    tile_load_all(to + (1 + rank) * PART, weight, k * ROW, column, bar, 3);
                    if (++stage == STAGES) { stage = 0; phase ^= 1; }
                }
            }
        }
        __syncwarp();
    } else {
        more_registers<232>();
        const int mine = group - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
        const bool leader = threadIdx.x % 128 == 0;
        const u32 there = peer(empty, rank ^ 1);
        const u32 place = out + mine * 2 * OUT;
        float d[128];
        int stage = 0;
        u32 phase = 0;
        for (int tile = first; tile < tiles; tile += stride) {
            int before = stage;
            for (int k = 0; k < steps; k++) {
                mbar_wait(full + 8 * stage, phase);
                const u64 a = uniform_desc(base + stage * STAGE + mine * (64 * ROW));
                const u64 b = uniform_desc(base + stage * STAGE + PART);
                gmma_fence();
#pragma unroll
                for (int j = 0; j < ROW / 32; j++) multiply(d, a + 2 * j, b + 2 * j, k | j);
                gmma_commit();
                if (k) {
                    gmma_wait<1>();
                    if (leader) { mbar_arrive(empty + 8 * before); mbar_arrive_at(there + 8 * before); }
                }
                before = stage;
                if (++stage == STAGES) { stage = 0; phase ^= 1; }
            }
            gmma_wait<0>();
            if (leader) { mbar_arrive(empty + 8 * before); mbar_arrive_at(there + 8 * before); }

            // Thread t of a warp has rows t / 4 and t / 4 + 8 of its warp's 16, columns 8·j + 2·(t % 4) and the next:
            // gate's in d[4·j …], up's in d[64 + 4·j …].
            const int m = ((tile % pairs) * 2 + rank) * BM + mine * 64, column = tile / pairs * BI;
            const int row = m + warp * 16 + lane / 4;
            const float s0 = row < M ? row_scale[row] : 0.0f, s1 = row + 8 < M ? row_scale[row + 8] : 0.0f;
            const float* scale = column_scale + column + 2 * (lane % 4);
#ifdef CODES
            const float inverse = 1.0f / *h_scale;
#endif
            if (leader) store_wait_read();
            named_barrier(1 + mine, 128);
#pragma unroll
            for (int i = 0; i < 8; i++) {  // 16 columns of h at a time
                u32 v[4];
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int j = 2 * i + half;
                    float gate[4], up[4];
#pragma unroll
                    for (int e = 0; e < 4; e++) { gate[e] = d[4 * j + e]; up[e] = d[64 + 4 * j + e]; }
                    const float2 g = *reinterpret_cast<const float2*>(scale + 8 * j);
                    const float2 u = *reinterpret_cast<const float2*>(scale + I + 8 * j);
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const float s = e < 2 ? s0 : s1;
                        gate[e] *= s * (e & 1 ? g.y : g.x);
                        up[e] *= s * (e & 1 ? u.y : u.x);
                    }
                    v[2 * half] = pack_bf16(activate(gate[0]) * up[0], activate(gate[1]) * up[1]);
                    v[2 * half + 1] = pack_bf16(activate(gate[2]) * up[2], activate(gate[3]) * up[3]);
                }
#ifdef CODES
                // one unit of 16 codes: this thread has two of each half, in rows lane / 4 and lane / 4 + 8
                const int r = warp * 16 + lane / 4;
                const u32 to = place + r * 128 + ((i ^ r % 8) << 4) + 2 * (lane % 4);
                store_codes(to, v[0], inverse);
                store_codes(to + 8 * 128, v[1], inverse);
                store_codes(to + 8, v[2], inverse);
                store_codes(to + 8 * 128 + 8, v[3], inverse);
#else
                // matrix lane / 8: rows 0–7 and 8–15 of the first eight columns, then of the second
                const int r = warp * 16 + (lane / 8 & 1) * 8 + lane % 8, unit = 2 * i + lane / 16;
                store_matrices(
                    place + (unit / 8) * OUT + r * 128 + ((unit % 8 ^ r % 8) << 4), v[0], v[1], v[2], v[3]);
#endif
            }
            fence_async();
            named_barrier(1 + mine, 128);
            if (leader) {
                tile_store(h, column, m, place);
#ifndef CODES
                tile_store(h, column + 64, m, place + OUT);
#endif
                store_commit();
            }
        }
        if (leader) store_wait_read();
        __syncwarp();
    }
    cluster_arrive();  // no block ends while the other may still write to it
    cluster_wait();
}
