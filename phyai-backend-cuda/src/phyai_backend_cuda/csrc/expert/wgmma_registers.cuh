// wgmma with A in registers (bf16), and moving registers between the roles of a block.
#pragma once
#include "hopper.cuh"

// d[64 × 8·N8] += A[64 × 16] · B[8·N8 × 16]ᵀ, A in registers, B K-major in shared memory. A thread of lane 4g + q
// holds, of rows g and g + 8 of its warp's 16, columns 2q and 2q + 1 in x and y, columns 2q + 8 and 2q + 9 in z and w.
template <int N8> __device__ __forceinline__ void gmma(float (&d)[N8 * 4], const uint4& a, u64 b);
template <> __device__ __forceinline__ void gmma<1>(float (&d)[4], const uint4& a, u64 b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, p, 1, 1, 0;\n}"
        : D4(d, 0) : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
}
template <> __device__ __forceinline__ void gmma<2>(float (&d)[8], const uint4& a, u64 b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, p, 1, 1, 0;\n}"
        : D4(d, 0), D4(d, 4) : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
}
template <> __device__ __forceinline__ void gmma<3>(float (&d)[12], const uint4& a, u64 b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n24k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, %16, p, 1, 1, 0;\n}"
        : D4(d, 0), D4(d, 4), D4(d, 8) : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
}
template <> __device__ __forceinline__ void gmma<4>(float (&d)[16], const uint4& a, u64 b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, p, 1, 1, 0;\n}"
        : D16(d, 0) : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
}
template <> __device__ __forceinline__ void gmma<8>(float (&d)[32], const uint4& a, u64 b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}"
        : D16(d, 0), D16(d, 16) : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
}
// d[64 × 64] += A[64 × 16] · B[16 × 64], A in registers, B with N contiguous: a V tile as it lies.
__device__ __forceinline__ void gmma_mn(float (&d)[32], const uint4& a, u64 b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}"
        : D16(d, 0), D16(d, 16) : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
}
// The compiler may not move uses of an accumulator across this.
template <int N> __device__ __forceinline__ void gmma_pin(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Registers per thread, from here on, of all warps of this warpgroup.
template <int N> __device__ __forceinline__ void registers_take() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void registers_give() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
