// Statistics of rows in parts, from which a layer norm's mean and deviation follow: of every 64 elements the mean, and the
// sum of the squares of what they differ from it, [columns / 64, M]. They are put together in one order, whoever made them.
#pragma once
#include "cluster.cuh"

#define STATISTICS 64  // elements of a part

// What statistics of a part are made of. In fp32 the sums lose less of 64 elements than their rounding to 16 bits has.
struct RowSums {
    float even = 0.0f, odd = 0.0f, squares = 0.0f, more = 0.0f;

    __device__ __forceinline__ void add(float a, float b) {
        even += a, odd += b;
        squares = fmaf(a, a, squares), more = fmaf(b, b, more);
    }
    // And of as many elements that another thread has: both get the same.
    __device__ __forceinline__ void add_neighbour(int distance) {
        even += odd, squares += more;
        odd = __shfl_xor_sync(~0u, even, distance), more = __shfl_xor_sync(~0u, squares, distance);
    }
    __device__ __forceinline__ float2 statistics() const {
        const float sum = even + odd, mean = sum * (1.0f / STATISTICS);
        return make_float2(mean, fmaxf(squares + more - sum * mean, 0.0f));
    }
};

// The parts of a warp's sixteen rows: a thread has every other part of row lane % 16. Asked for early, put together late.
template <int PARTS> struct RowParts {
    static constexpr int MINE = (PARTS + 1) / 2;
    float2 v[MINE];

    __device__ __forceinline__ void load(const float2* statistics, int top, int rows, int lane) {
        const int row = top + lane % 16;
        const float2* at = statistics + (long long)(lane / 16) * rows + row;
#pragma unroll
        for (int i = 0; i < MINE; i++)
            v[i] = row < rows && 2 * i + lane / 16 < PARTS ? load_written2(at + 2ll * i * rows) : make_float2(0.0f, 0.0f);
    }
    // 1 / deviation and -mean / deviation of rows lane / 4 and lane / 4 + 8. Means are summed as what they differ from the
    // first part's, which loses no more than a factor of their number.
    __device__ __forceinline__ void factors(float2 (&of)[2], float eps, int lane) const {
        const float first = __shfl_sync(~0u, v[0].x, lane % 16);
        float apart = 0.0f, between = 0.0f, within = 0.0f;
#pragma unroll
        for (int i = 0; i < MINE; i++)
            if (2 * i + lane / 16 < PARTS) {
                const float a = v[i].x - first;
                apart += a, between += a * a, within += v[i].y;
            }
        apart += __shfl_xor_sync(~0u, apart, 16);
        between += __shfl_xor_sync(~0u, between, 16);
        within += __shfl_xor_sync(~0u, within, 16);
        const float offset = apart * (1.0f / PARTS), squares = within + STATISTICS * (between - apart * offset);
        const float r = rsqrtf(squares * (1.0f / (STATISTICS * PARTS)) + eps), shift = -(first + offset) * r;
#pragma unroll
        for (int h = 0; h < 2; h++)
            of[h] = make_float2(__shfl_sync(~0u, r, lane / 4 + 8 * h), __shfl_sync(~0u, shift, lane / 4 + 8 * h));
    }
};
