// y = x / rms(x) · (offset + weight), or · (1 + scale) + shift of a condition: a block per row, in launches that overlap.
// DIM: elements of a row, a multiple of 8 up to 8192. ADAPTIVE: 0, or 1 for scale, shift and gate of a condition.
#include "cluster.cuh"

constexpr int UNITS = DIM / 8, THREADS = UNITS < 1024 ? (UNITS + 31) / 32 * 32 : 1024, EACH = (UNITS + THREADS - 1) / THREADS;

struct Params {
    const elem *x, *weight, *modulation;  // [M, DIM]; [DIM]; [M / rows, 3, DIM]
    elem *y, *gate;
    int rows;
    float eps, offset;
};

__device__ __forceinline__ void unpack(const uint4& v, float (&to)[8]) {
    const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack_elem(words[i]);
        to[2 * i] = pair.x;
        to[2 * i + 1] = pair.y;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) rms_norm(const __grid_constant__ Params p) {
    __shared__ float sums[32];
    launch_next();
    const int tid = threadIdx.x, row = blockIdx.x, condition = ADAPTIVE ? row / p.rows : 0;
    const uint4* first = reinterpret_cast<const uint4*>(p.weight);  // does not depend on the kernel in front
    uint4 w[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) w[i] = !ADAPTIVE && p.weight && tid + i * THREADS < UNITS ? __ldg(first + tid + i * THREADS) : make_uint4(0, 0, 0, 0);
    wait_previous();
    const uint4* x = reinterpret_cast<const uint4*>(p.x) + size_t(row) * UNITS;
    const uint4* m = reinterpret_cast<const uint4*>(p.modulation) + size_t(condition) * 3 * UNITS;
    float v[EACH][8], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int u = tid + i * THREADS;
        unpack(u < UNITS ? __ldcg(x + u) : make_uint4(0, 0, 0, 0), v[i]);
#pragma unroll
        for (int j = 0; j < 8; ++j) sum += v[i][j] * v[i][j];
    }
#pragma unroll
    for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (tid % 32 == 0) sums[tid / 32] = sum;
    __syncthreads();
    sum = 0.0f;
#pragma unroll
    for (int i = 0; i < THREADS / 32; ++i) sum += sums[i];
    const float r = rsqrtf(sum / DIM + p.eps);
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int u = tid + i * THREADS;
        if (u >= UNITS) continue;
        float scale[8], shift[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
        if (ADAPTIVE) {
            unpack(__ldcg(m + u), scale);
            unpack(__ldcg(m + UNITS + u), shift);
            if (row % p.rows == 0) reinterpret_cast<uint4*>(p.gate)[condition * UNITS + u] = __ldcg(m + 2 * UNITS + u);
        } else {
            unpack(w[i], scale);
        }
        const float add = ADAPTIVE ? 1.0f : p.weight ? p.offset : 1.0f;
        float out[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) out[j] = v[i][j] * r * (add + scale[j]) + shift[j];
        reinterpret_cast<uint4*>(p.y)[size_t(row) * UNITS + u] =
            make_uint4(pack_elem(out[0], out[1]), pack_elem(out[2], out[3]), pack_elem(out[4], out[5]), pack_elem(out[6], out[7]));
    }
}
