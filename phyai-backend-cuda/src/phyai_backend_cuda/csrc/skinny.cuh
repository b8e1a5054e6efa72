// What the products of at most 64 rows share: arguments, the activation.
//
// M8: rows of x, in eights. ACTIVATION: 0 y = product (+ bias); else y = act(gate rows) · up rows, 1 silu, 2 gelu,
// 3 gelu_tanh; the gate rows are the first half of W, the up rows the second.
#pragma once
#include "cluster.cuh"

constexpr bool GATED = ACTIVATION > 0;
constexpr int XCHUNK = M8 * 1024;  // bytes of 64 of K

struct Params {
    const elem* x;
    const char* w;
    const u32 *group_scale, *group_zero;  // of the two rows of a thread, as elements; of int4 with groups
    const float* row_scale;               // [N]; of quantized weights without groups
    const elem* bias;                     // [N]
    elem* y;
    long long x_row, y_row;               // elements between rows
    int m, n, k;
};

__device__ __forceinline__ float activate(float x) {
    if (ACTIVATION == 1) return __fdividef(x, 1.0f + __expf(-x));
    if (ACTIVATION == 2) return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
    return gelu_tanh(x);
}
