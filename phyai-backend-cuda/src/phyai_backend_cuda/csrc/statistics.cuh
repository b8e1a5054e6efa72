// Statistics of rows in parts, from which a layer norm's mean and deviation follow: of every 64 elements the mean, and the
// sum of the squares of what they differ from it, [M, columns / 64]. They are put together in one order, whoever made them.
#pragma once
#include "cluster.cuh"

#define STATISTICS 64  // elements of a part

// Mean and squares of so many elements, and of as many more that another thread has: both get the same (Chan et al. 1979).
__device__ __forceinline__ float2 with_neighbour(float2 part, int elements, int distance) {
    const float mean = __shfl_xor_sync(~0u, part.x, distance), squares = __shfl_xor_sync(~0u, part.y, distance);
    const float apart = part.x - mean;
    return make_float2(0.5f * (part.x + mean), part.y + squares + 0.5f * elements * apart * apart);
}
// Of COUNT elements that a thread has: v[0], v[1], v[stride], v[stride + 1], …
template <int COUNT> __device__ __forceinline__ float2 own_statistics(const float* v, int stride) {
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int i = 0; i < COUNT / 2; i++) sum += v[stride * i] + v[stride * i + 1];
    const float mean = sum * (1.0f / COUNT);
#pragma unroll
    for (int i = 0; i < COUNT / 2; i++) {
        const float a = v[stride * i] - mean, b = v[stride * i + 1] - mean;
        squares += a * a + b * b;
    }
    return make_float2(mean, squares);
}
// Of two rows, a part of which a thread and its three neighbours hold: v[4·j + 2·half + {0, 1}], j < UNITS.
template <int UNITS> __device__ __forceinline__ void row_statistics(float2 (&found)[2], const float* v) {
#pragma unroll
    for (int h = 0; h < 2; h++) found[h] = own_statistics<2 * UNITS>(v + 2 * h, 4);
#pragma unroll
    for (int h = 0; h < 2; h++) found[h] = with_neighbour(found[h], 2 * UNITS, 1);
#pragma unroll
    for (int h = 0; h < 2; h++) found[h] = with_neighbour(found[h], 4 * UNITS, 2);
}

// The parts of a row, every fourth of them in one thread: asked for early, put together late.
template <int PARTS> struct RowParts {
    static constexpr int MINE = (PARTS + 3) / 4;
    float2 v[MINE];
    int mine;  // how many there are

    __device__ __forceinline__ void load(const float2* statistics, int row, int rows, int thread) {
        mine = row < rows ? (PARTS - thread + 3) / 4 : 0;
        const float2* at = statistics + (long long)row * PARTS + thread;
#pragma unroll
        for (int i = 0; i < MINE; i++) v[i] = i < mine ? load_written2(at + 4 * i) : make_float2(0.0f, 0.0f);
    }
    // 1 / deviation and -mean / deviation of the row. Means are summed as what they differ from the
    // first part's, which loses no more than a factor of their number.
    __device__ __forceinline__ float2 factors(float eps) const {
        const float first = __shfl_sync(~0u, v[0].x, threadIdx.x & 28);
        float apart = 0.0f, between = 0.0f, within = 0.0f;
#pragma unroll
        for (int i = 0; i < MINE; i++)
            if (i < mine) {
                const float a = v[i].x - first;
                apart += a, between += a * a, within += v[i].y;
            }
#pragma unroll
        for (int d = 1; d < 4; d *= 2) {
            apart += __shfl_xor_sync(~0u, apart, d);
            between += __shfl_xor_sync(~0u, between, d);
            within += __shfl_xor_sync(~0u, within, d);
        }
        const float offset = apart * (1.0f / PARTS), squares = within + STATISTICS * (between - apart * offset);
        const float r = rsqrtf(squares * (1.0f / (STATISTICS * PARTS)) + eps);
        return make_float2(r, -(first + offset) * r);
    }
};
