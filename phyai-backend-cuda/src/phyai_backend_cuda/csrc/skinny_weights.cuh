// Quantized weights of skinny.cu: packed in the order in which a thread multiplies them (see skinny/order.py), they go
// to registers and become 16-bit values there: fp8 exactly, int4 as (code - zero point) · scale of their group. (A scale
// per row is applied to the sum.)
//
// BITS: of a weight, 16 (as it lies, [N, K]; nothing of this), 8 (e4m3) or 4. GROUP: K of a scale, 0 for a row.
// CENTRED: groups have zero points; those of int4 are 8 without. CHUNKS: of 64 of K.
#pragma once
#include "cluster.cuh"

constexpr int SCALE_K = GROUP ? GROUP : CHUNKS * 64, SCALES = CHUNKS * 64 / SCALE_K;
constexpr int UNITS = BITS < 16 ? BITS / 4 : 1;  // of 16 bytes, of a chunk, of a thread
static_assert(SCALES * SCALE_K == CHUNKS * 64, "");

// Two e4m3 values, in the high bytes of each half of `v`, as elements.
__device__ __forceinline__ u32 from_fp8(u32 v) {
#ifdef HALF
    return mul_elem2(((v >> 1) & 0x3F803F80u) | (v & 0x80008000u), 0x5C005C00u);  // exponents differ by 8
#else
    return mul_elem2(((v >> 4) & 0x07F007F0u) | (v & 0x80008000u), 0x7B807B80u);  // by 120
#endif
}
#ifdef HALF
#define INT4_BASE 0x64006400u  // 1024, whose last place is 1
#define INT4_ZERO 0x64086408u  // 1024 + 8
#else
#define INT4_BASE 0x43004300u  // 128
#define INT4_ZERO 0x43084308u
#endif

// Past L1, and not the read-only load: that one may sink below a wait.
__device__ __forceinline__ uint4 load_codes(const void* src, u64 policy) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(src), "l"(policy) : "memory");
    return v;
}

// What one thread has of a block's weights.
struct Codes {
    uint4 words[CHUNKS][UNITS];
    u32 scale[SCALES], zero[SCALES];  // of the thread's two rows

    // The 16 rows number `rows` of the packed weight, from chunk `first` of K on.
    __device__ __forceinline__ void load(
        const char* w, const u32* scales, const u32* zeros, int k, int first, int rows, u64 policy
    ) {
        const int lane = threadIdx.x & 31, tile = rows / 4, part = rows % 4;
        const char* from = w + (size_t(tile) * (k / 64) + first) * (512 * BITS) + (part * 32 + lane) * 16;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
            for (int i = 0; i < UNITS; ++i) words[c][i] = load_codes(from + c * (512 * BITS) + i * 2048, policy);
#if GROUP
        const size_t at = (size_t(tile) * (k / GROUP) + first * 64 / GROUP) * 32 + part * 8 + lane / 4;
#pragma unroll
        for (int i = 0; i < SCALES; ++i) {
            scale[i] = load_constant(scales + at + i * 32);
            if (CENTRED) zero[i] = load_constant(zeros + at + i * 32);
        }
#endif
    }

    // The values of chunk c, four registers for each 16 of K.
    __device__ __forceinline__ void values(u32* v, int c) const {
#if BITS == 8
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const u32 codes[4] = {words[c][i].x, words[c][i].y, words[c][i].z, words[c][i].w};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                v[i * 8 + 2 * j] = from_fp8(codes[j] << 8);
                v[i * 8 + 2 * j + 1] = from_fp8(codes[j]);
            }
        }
#elif BITS == 4
        const u32 codes[4] = {words[c][0].x, words[c][0].y, words[c][0].z, words[c][0].w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int group = (c * 64 + i * 16) / SCALE_K;
#pragma unroll
            for (int j = 0; j < 4; ++j) {  // even: row g; odd: row g + 8
                const u32 selector = j & 1 ? 0x3232 : 0x1010, code = ((codes[i] >> (4 * j)) & 0x000F000Fu) | INT4_BASE;
                const u32 whole = sub_elem2(code, CENTRED ? __byte_perm(zero[group], 0, selector) : INT4_ZERO);
                v[i * 4 + j] = GROUP ? mul_elem2(whole, __byte_perm(scale[group], 0, selector)) : whole;
            }
        }
#endif
    }

    // A number that depends on all that is not yet values from chunk `from` on.
    __device__ __forceinline__ u32 rest(int from) const {
        u32 used = 0;
#pragma unroll
        for (int c = from; c < CHUNKS; ++c)
#pragma unroll
            for (int i = 0; i < UNITS; ++i) used ^= words[c][i].x ^ words[c][i].y ^ words[c][i].z ^ words[c][i].w;
#if GROUP
#pragma unroll
        for (int i = 0; i < SCALES; ++i) used ^= CENTRED ? scale[i] ^ zero[i] : scale[i];
#endif
        return used;
    }
};
