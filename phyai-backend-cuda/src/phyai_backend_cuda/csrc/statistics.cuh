// Statistics of rows in parts, from which a layer norm's mean and deviation follow: of every 64 elements the mean, and the
// sum of the squares of what they differ from it, [M, columns / 64]. They are put together in one order, whoever made them.
#pragma once
#include "cluster.cuh"

#define STATISTICS 64  // elements of a part

// Of what a thread and its three neighbours hold of a row: v[4·j + 2·half + {0, 1}], j < UNITS.
template <int UNITS> __device__ __forceinline__ float2 row_statistics(const float* v, int half) {
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int j = 0; j < UNITS; j++) sum += v[4 * j + 2 * half] + v[4 * j + 2 * half + 1];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    const float mean = sum * (1.0f / STATISTICS);
#pragma unroll
    for (int j = 0; j < UNITS; j++) {
        const float a = v[4 * j + 2 * half] - mean, b = v[4 * j + 2 * half + 1] - mean;
        squares += a * a + b * b;
    }
    squares += __shfl_xor_sync(~0u, squares, 1);
    squares += __shfl_xor_sync(~0u, squares, 2);
    return make_float2(mean, squares);
}
// 1 / deviation, and mean / deviation, of a row of `columns` elements. Means of parts are summed as what they differ from
// the first, which loses no more than a factor of their number.
__device__ __forceinline__ float2 row_factors(const float2* statistics, int row, int columns, float eps) {
    const int parts = columns / STATISTICS;
    const float2* at = statistics + (long long)row * parts;
    const float first = __ldcg(at).x;
    float apart = 0.0f, between = 0.0f, within = 0.0f;
#pragma unroll 6
    for (int i = 0; i < parts; i++) {
        const float2 part = __ldcg(at + i);
        const float a = part.x - first;
        apart += a, between += a * a, within += part.y;
    }
    const float offset = apart / parts, squares = within + STATISTICS * (between - apart * offset);
    const float r = rsqrtf(squares / columns + eps);
    return make_float2(r, (first + offset) * r);
}
