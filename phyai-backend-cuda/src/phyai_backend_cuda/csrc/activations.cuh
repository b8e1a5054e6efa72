// Activations of fp32 values, as constants of a kernel: define ACTIVATION, 0 for none.
#pragma once
#include "cluster.cuh"

// One instruction each: no denormal numbers, an error of about 2^-22.
__device__ __forceinline__ float exp2_of(float x) {
    asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
}
__device__ __forceinline__ float reciprocal(float x) {
    asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
}
__device__ __forceinline__ float activate(float x) {
#if ACTIVATION == 1  // silu
    return x * reciprocal(1.0f + exp2_of(-1.4426950408889634f * x));
#elif ACTIVATION == 2  // gelu
    return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
#elif ACTIVATION == 3  // gelu_tanh: x · sigmoid(2u), u = √(2/π) · (x + 0.044715·x³)
    return x * reciprocal(1.0f + exp2_of(x * (-2.302208198f - 0.10294323957f * (x * x))));
#else
    return x;
#endif
}
// Of two values. Where each needs a reciprocal they have one in common, which halves what takes longest.
__device__ __forceinline__ void activate(float& x, float& y) {
#if ACTIVATION == 1 || ACTIVATION == 3
#if ACTIVATION == 1
    const float u = -1.4426950408889634f * x, v = -1.4426950408889634f * y;
#else
    const float u = x * (-2.302208198f - 0.10294323957f * (x * x)), v = y * (-2.302208198f - 0.10294323957f * (y * y));
#endif
    const float a = 1.0f + exp2_of(fminf(u, 60.0f)), b = 1.0f + exp2_of(fminf(v, 60.0f));  // so that a · b is finite
    const float both = reciprocal(a * b);
    x *= both * b, y *= both * a;
#else
    x = activate(x), y = activate(y);
#endif
}
