// Statistics of rows in parts, from which a layer norm's mean and deviation follow: of every 64 elements the mean, and the
// sum of the squares of what they differ from it, [M, columns / 64]. They are put together in one order, whoever made them.
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
