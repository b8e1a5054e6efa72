// y = x / rms(x) · (offset + weight), or · (1 + scale) + shift of a condition: a block per row, in launches that overlap.
// DIM: elements of a row, a multiple of 8 up to 8192. ADD: residual += x first, and y is of that. ADAPTIVE: scale,
// shift and gate of a condition instead of a weight. LATE: the launch behind may begin once that in front has ended.
#include "cluster.cuh"

constexpr int UNITS = DIM / 8, THREADS = (UNITS + 31) / 32 * 32;

struct Params {
    const elem *x, *weight, *modulation;  // [M, DIM]; [DIM] or null; [M / rows, 3, DIM]
    elem *residual, *y, *gate;            // [M, DIM]; [M, DIM]; [M / rows, DIM]
    long long x_row, residual_row, y_row, modulation_row, gate_row;  // elements between rows
    int rows;                             // of x to a condition
    float eps, offset;
};

struct Eight {
    float v[8];
    __device__ __forceinline__ void load(const uint4& from) {
        const u32 words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 pair = unpack_elem(words[i]);
            v[2 * i] = pair.x;
            v[2 * i + 1] = pair.y;
        }
    }
    __device__ __forceinline__ uint4 packed() const {
        return make_uint4(pack_elem(v[0], v[1]), pack_elem(v[2], v[3]), pack_elem(v[4], v[5]), pack_elem(v[6], v[7]));
    }
};

__device__ __forceinline__ const uint4* unit(const elem* row, int u) { return reinterpret_cast<const uint4*>(row) + u; }

extern "C" __global__ void __launch_bounds__(THREADS) rms_norm(const __grid_constant__ Params p) {
    __shared__ float sums[32];
    if (!LATE) launch_next();
    const int u = threadIdx.x, row = blockIdx.x, condition = ADAPTIVE ? row / p.rows : 0;
    const bool here = u < UNITS;
    const uint4 zeros = make_uint4(0, 0, 0, 0);
    uint4 weight = zeros;
    if (!ADAPTIVE && p.weight && here) weight = __ldg(unit(p.weight, u));  // does not depend on the kernel in front
    wait_previous();
    if (LATE) launch_next();
    Eight x, scale, shift;
    x.load(here ? __ldcg(unit(p.x + row * p.x_row, u)) : zeros);
    if (ADD) {
        elem* residual = p.residual + row * p.residual_row;
        Eight more;
        more.load(here ? __ldcg(unit(residual, u)) : zeros);
#pragma unroll
        for (int j = 0; j < 8; ++j) x.v[j] += more.v[j];
        if (here) reinterpret_cast<uint4*>(residual)[u] = x.packed();
    }
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += x.v[j] * x.v[j];
#pragma unroll
    for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (u % 32 == 0) sums[u / 32] = sum;
    __syncthreads();
    sum = 0.0f;
#pragma unroll
    for (int i = 0; i < THREADS / 32; ++i) sum += sums[i];
    if (!here) return;
    const float r = rsqrtf(sum / DIM + p.eps);
    shift.load(zeros);
    if (ADAPTIVE) {
        const elem* m = p.modulation + condition * p.modulation_row;
        scale.load(__ldcg(unit(m, u)));
        shift.load(__ldcg(unit(m, UNITS + u)));
        if (row % p.rows == 0) reinterpret_cast<uint4*>(p.gate + condition * p.gate_row)[u] = __ldcg(unit(m, 2 * UNITS + u));
    } else {
        scale.load(weight);
    }
    const float add = ADAPTIVE || !p.weight ? 1.0f : p.offset;
#pragma unroll
    for (int j = 0; j < 8; ++j) x.v[j] = x.v[j] * r * (add + scale.v[j]) + shift.v[j];
    reinterpret_cast<uint4*>(p.y + row * p.y_row)[u] = x.packed();
}
