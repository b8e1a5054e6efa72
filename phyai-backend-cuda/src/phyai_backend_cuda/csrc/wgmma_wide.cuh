// wgmma of 8 to 256 columns (sm_90a): both operands in shared memory, K-major, in 128-byte rows as in hopper.cuh. Define
// COLUMNS, and HALF or FP8 for elements of fp16 or e4m3; bf16 otherwise.
#pragma once
#include "hopper.cuh"

#if defined(FP8)
#define MMA_KIND "k32.f32.e4m3.e4m3 "
#define MMA_FLAGS "p, 1, 1"
#elif defined(HALF)
#define MMA_KIND "k16.f32.f16.f16 "
#define MMA_FLAGS "p, 1, 1, 0, 0"
#else
#define MMA_KIND "k16.f32.bf16.bf16 "
#define MMA_FLAGS "p, 1, 1, 0, 0"
#endif

#define TEXT(x) #x
#define SHOWN(x) TEXT(x)
#define JOINED(a, b) a##b
#define NAMED(a, b) JOINED(a, b)

// N columns are N / 2 accumulators of a thread: names of registers (REGISTERS_N, after those of the three operands that
// do not depend on N) and the operands behind them (OPERANDS_N).
#define REGISTERS_8 "%3, %4, %5, %6"
#define REGISTERS_16 REGISTERS_8 ", %7, %8, %9, %10"
#define REGISTERS_24 REGISTERS_16 ", %11, %12, %13, %14"
#define REGISTERS_32 REGISTERS_24 ", %15, %16, %17, %18"
#define REGISTERS_40 REGISTERS_32 ", %19, %20, %21, %22"
#define REGISTERS_48 REGISTERS_40 ", %23, %24, %25, %26"
#define REGISTERS_56 REGISTERS_48 ", %27, %28, %29, %30"
#define REGISTERS_64 REGISTERS_56 ", %31, %32, %33, %34"
#define REGISTERS_72 REGISTERS_64 ", %35, %36, %37, %38"
#define REGISTERS_80 REGISTERS_72 ", %39, %40, %41, %42"
#define REGISTERS_88 REGISTERS_80 ", %43, %44, %45, %46"
#define REGISTERS_96 REGISTERS_88 ", %47, %48, %49, %50"
#define REGISTERS_104 REGISTERS_96 ", %51, %52, %53, %54"
#define REGISTERS_112 REGISTERS_104 ", %55, %56, %57, %58"
#define REGISTERS_120 REGISTERS_112 ", %59, %60, %61, %62"
#define REGISTERS_128 REGISTERS_120 ", %63, %64, %65, %66"
#define REGISTERS_136 REGISTERS_128 ", %67, %68, %69, %70"
#define REGISTERS_144 REGISTERS_136 ", %71, %72, %73, %74"
#define REGISTERS_152 REGISTERS_144 ", %75, %76, %77, %78"
#define REGISTERS_160 REGISTERS_152 ", %79, %80, %81, %82"
#define REGISTERS_168 REGISTERS_160 ", %83, %84, %85, %86"
#define REGISTERS_176 REGISTERS_168 ", %87, %88, %89, %90"
#define REGISTERS_184 REGISTERS_176 ", %91, %92, %93, %94"
#define REGISTERS_192 REGISTERS_184 ", %95, %96, %97, %98"
#define REGISTERS_200 REGISTERS_192 ", %99, %100, %101, %102"
#define REGISTERS_208 REGISTERS_200 ", %103, %104, %105, %106"
#define REGISTERS_216 REGISTERS_208 ", %107, %108, %109, %110"
#define REGISTERS_224 REGISTERS_216 ", %111, %112, %113, %114"
#define REGISTERS_232 REGISTERS_224 ", %115, %116, %117, %118"
#define REGISTERS_240 REGISTERS_232 ", %119, %120, %121, %122"
#define REGISTERS_248 REGISTERS_240 ", %123, %124, %125, %126"
#define REGISTERS_256 REGISTERS_248 ", %127, %128, %129, %130"
#define OPERANDS_8 D4(d, 0)
#define OPERANDS_16 OPERANDS_8, D4(d, 4)
#define OPERANDS_24 OPERANDS_16, D4(d, 8)
#define OPERANDS_32 OPERANDS_24, D4(d, 12)
#define OPERANDS_40 OPERANDS_32, D4(d, 16)
#define OPERANDS_48 OPERANDS_40, D4(d, 20)
#define OPERANDS_56 OPERANDS_48, D4(d, 24)
#define OPERANDS_64 OPERANDS_56, D4(d, 28)
#define OPERANDS_72 OPERANDS_64, D4(d, 32)
#define OPERANDS_80 OPERANDS_72, D4(d, 36)
#define OPERANDS_88 OPERANDS_80, D4(d, 40)
#define OPERANDS_96 OPERANDS_88, D4(d, 44)
#define OPERANDS_104 OPERANDS_96, D4(d, 48)
#define OPERANDS_112 OPERANDS_104, D4(d, 52)
#define OPERANDS_120 OPERANDS_112, D4(d, 56)
#define OPERANDS_128 OPERANDS_120, D4(d, 60)
#define OPERANDS_136 OPERANDS_128, D4(d, 64)
#define OPERANDS_144 OPERANDS_136, D4(d, 68)
#define OPERANDS_152 OPERANDS_144, D4(d, 72)
#define OPERANDS_160 OPERANDS_152, D4(d, 76)
#define OPERANDS_168 OPERANDS_160, D4(d, 80)
#define OPERANDS_176 OPERANDS_168, D4(d, 84)
#define OPERANDS_184 OPERANDS_176, D4(d, 88)
#define OPERANDS_192 OPERANDS_184, D4(d, 92)
#define OPERANDS_200 OPERANDS_192, D4(d, 96)
#define OPERANDS_208 OPERANDS_200, D4(d, 100)
#define OPERANDS_216 OPERANDS_208, D4(d, 104)
#define OPERANDS_224 OPERANDS_216, D4(d, 108)
#define OPERANDS_232 OPERANDS_224, D4(d, 112)
#define OPERANDS_240 OPERANDS_232, D4(d, 116)
#define OPERANDS_248 OPERANDS_240, D4(d, 120)
#define OPERANDS_256 OPERANDS_248, D4(d, 124)

// d[64 × COLUMNS] = A · Bᵀ over 32 bytes of K, added to what d was where `add` is not 0.
__device__ __forceinline__ void multiply(float (&d)[COLUMNS / 2], u64 a, u64 b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n" SHOWN(COLUMNS) MMA_KIND "{" NAMED(REGISTERS_, COLUMNS) "}, %0, %1, " MMA_FLAGS
        ";\n}"
        : "+l"(a), "+l"(b), "+r"(add), NAMED(OPERANDS_, COLUMNS));
}
