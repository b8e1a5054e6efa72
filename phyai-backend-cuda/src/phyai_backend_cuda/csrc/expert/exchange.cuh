// Exchange between the blocks of a grid that is all on the chip, through L2, by words that say themselves whether they
// are there: no barrier, no fence, one trip to L2 for the writer and one for the reader.
//
// A *word* is 4 or 8 aligned bytes with one writer. Either it is EMPTY until it is written, and lies in two copies that
// alternate between uses: who writes one copy makes the other EMPTY. Or its lowest bit is a tag that alternates between
// uses, at the cost of that bit of its value (a bf16's last, or an fp32's).
//
// Why this works, although nothing here acquires or releases:
//   1. Every access to a word is `relaxed` at the scope `gpu` and of the word's size (a vector access is one access for
//      each element), so accesses to a word are atomic and morally strong, and coherence orders them.
//   2. A word that is there *is* the data. Nothing else is read because of it, and an order between different locations
//      is all that acquire, release and fences would add.
//   3. A word is blanked or written anew by its own writer, in program order, and only after it has read words which
//      depend on every read of the old value: each reading block has, since that read, passed a `bar.sync` and then
//      published results on which the writer's own input depends. A read that returned the new value, or a blank that
//      its reader never saw past, would thus be the cause of itself, which the model excludes (no-thin-air).
// Between two uses of a buffer there must thus be such results. What a block publishes first in a step depends on the
// last x of the step before, but not on everybody's having read it: that x has a buffer of its own (`xf`), used once a
// step.
//
// What PTX's memory model does not promise, and what holds because stores reach L2 long before: (a) a reader must not see
// the value of two uses ago in a copy that has been blanked since. Nothing orders the blank before its read; it is a layer
// old by then, 36,000 cycles (a step, for xf and zs). Tagged words do not need it: their reader has seen the use between at
// the same address. (b) Sums of squares are not words: 128 blocks add to one by atomics, and who reads it counts them. Block
// 0 makes a sum zero again two publications before it is added to, thousands of cycles.
#pragma once
#include "hopper.cuh"

#define EMPTY 0xFFFFFFFFu  // a NaN that no instruction makes: conversions and arithmetic give 0x7FFF and 0x7FFFFFFF

__device__ __forceinline__ void store_relaxed(void* p, u32 v) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ void store_relaxed2(void* p, u32 x, u32 y) {
    asm volatile("{\n.reg .b64 v;\nmov.b64 v, {%1, %2};\nst.relaxed.gpu.global.b64 [%0], v;\n}"
                 ::"l"(p), "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void store_relaxed4(void* p, uint4 v) {
    asm volatile(
        "{\n.reg .b64 v, w;\nmov.b64 v, {%1, %2};\nmov.b64 w, {%3, %4};\nst.relaxed.gpu.global.v2.b64 [%0], {v, w};\n}"
        ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ __forceinline__ void store_empty(void* p) { store_relaxed(p, EMPTY); }
__device__ __forceinline__ void store_empty2(void* p) { store_relaxed2(p, EMPTY, EMPTY); }
__device__ __forceinline__ void store_empty4(void* p) { store_relaxed4(p, make_uint4(EMPTY, EMPTY, EMPTY, EMPTY)); }
// An address that is computed here, and not where it is used.
__device__ __forceinline__ char* computed(char* p) {
    asm volatile("" : "+l"(p));
    return p;
}
__device__ __forceinline__ float power2(float x) {  // 2^x; denormal results become zero
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float low_bf16(u32 v) { return __uint_as_float(v << 16); }
__device__ __forceinline__ float high_bf16(u32 v) { return __uint_as_float(v & 0xFFFF0000u); }
__device__ __forceinline__ u32 tagged(u32 v, u32 tag) { return (v & ~1u) | tag; }

__device__ __forceinline__ u64 load_relaxed(const u64* p) {
    u64 v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
// 8 or 16 bytes: of words of 8 bytes, or with WORDS of words of 4.
template <bool WORDS> __device__ __forceinline__ uint2 load_relaxed2(const void* p) {
    uint2 v;
    if (WORDS) {
        asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
    } else {
        const u64 both = load_relaxed(static_cast<const u64*>(p));
        v = make_uint2(static_cast<u32>(both), static_cast<u32>(both >> 32));
    }
    return v;
}
template <bool WORDS> __device__ __forceinline__ uint4 load_relaxed4(const void* p) {
    uint4 v;
    if (WORDS)
        asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    else
        asm volatile("{\n.reg .b64 v, w;\nld.relaxed.gpu.global.v2.b64 {v, w}, [%4];\n"
                     "mov.b64 {%0, %1}, v;\nmov.b64 {%2, %3}, w;\n}"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void add_relaxed(u64* p, u64 v) {
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
// The largest of these N·16 bytes' words; of words of 8 bytes, the first half says it for both.
template <int N, bool WORDS> __device__ __forceinline__ u32 largest(const uint4 (&v)[N]) {
    u32 top = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) {
        top = max(top, max(v[i].x, v[i].z));
        if (WORDS) top = max(top, max(v[i].y, v[i].w));
    }
    return top;
}
// Whether one of them is not there yet.
template <int N, bool WORDS> __device__ __forceinline__ bool missing(const uint4 (&v)[N]) {
    return largest<N, WORDS>(v) == EMPTY;
}
// Read again what is not there yet, without a branch.
template <bool WORDS> __device__ __forceinline__ void renew(uint4& v, const void* p) {
    if (WORDS)
        asm volatile("{\n.reg .pred p;\n.reg .u32 m, n;\nmax.u32 m, %0, %1;\nmax.u32 n, %2, %3;\nmax.u32 m, m, n;\n"
                     "setp.eq.u32 p, m, 0xFFFFFFFF;\n@p ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
                     : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w) : "l"(p) : "memory");
    else
        asm volatile("{\n.reg .pred p;\n.reg .u32 m;\n.reg .b64 v, w;\nmax.u32 m, %0, %2;\n"
                     "setp.eq.u32 p, m, 0xFFFFFFFF;\nmov.b64 v, {%0, %1};\nmov.b64 w, {%2, %3};\n"
                     "@p ld.relaxed.gpu.global.v2.b64 {v, w}, [%4];\n"
                     "mov.b64 {%0, %1}, v;\nmov.b64 {%2, %3}, w;\n}"
                     : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w) : "l"(p) : "memory");
}
// Whether two tagged words, of 4 or of 8 bytes, are not both of this use.
__device__ __forceinline__ bool untagged(uint2 v, u32 tag) { return ((v.x ^ tag) | (v.y ^ tag)) & 1; }
__device__ __forceinline__ bool untagged(uint4 v, u32 tag) { return ((v.x ^ tag) | (v.z ^ tag)) & 1; }
