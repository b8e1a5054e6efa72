// Wrappers over more PTX (sm_90a): clusters, launches that overlap, copies that fill with zeros, and wgmma of either
// 16-bit type with 8 to 64 columns. Define HALF for fp16; bf16 otherwise.
#pragma once
#include <cuda_fp16.h>

#include "hopper.cuh"

#ifdef HALF
typedef __half elem;
#define ELEM ".f16.f16"
__device__ __forceinline__ u32 pack_elem(float lo, float hi) {
    __half2 v = __floats2half2_rn(lo, hi);
    return *reinterpret_cast<u32*>(&v);
}
__device__ __forceinline__ float2 unpack_elem(u32 v) { return __half22float2(*reinterpret_cast<__half2*>(&v)); }
#else
typedef bf16 elem;
#define ELEM ".bf16.bf16"
__device__ __forceinline__ u32 pack_elem(float lo, float hi) { return pack_bf16(lo, hi); }
__device__ __forceinline__ float2 unpack_elem(u32 v) {
    return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xFFFF0000u));
}
#endif

// a - b and a · b of two elements each, rounded.
__device__ __forceinline__ u32 sub_elem2(u32 a, u32 b) {
#ifdef HALF
    asm("sub.f16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
#else
    asm("sub.bf16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
#endif
    return a;
}
__device__ __forceinline__ u32 mul_elem2(u32 a, u32 b) {
#ifdef HALF
    asm("mul.f16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
#else
    asm("mul.bf16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
#endif
    return a;
}

// ---- launches that overlap. A kernel launched with programmatic serialization may begin once every block of the one
// before it has called launch_next(); what that one writes is there after wait_previous(). Without: both do nothing.
__device__ __forceinline__ void launch_next() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void wait_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// ---- clusters: blocks that run at the same time and can read each other's shared memory
__device__ __forceinline__ u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
// The same without ordering what was written before it, which would be a fence of the whole device's memory.
__device__ __forceinline__ void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// The address, in the cluster's window, of what lies at `addr` in the shared memory of block `rank`.
__device__ __forceinline__ u32 peer(u32 addr, u32 rank) {
    u32 mapped;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(addr), "r"(rank));
    return mapped;
}
__device__ __forceinline__ uint4 load_peer4(u32 addr) {
    uint4 v;
    asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(addr) : "memory");
    return v;
}
// Four values into another block's shared memory, asynchronously; their bytes complete on its barrier `bar`.
__device__ __forceinline__ void push4(u32 addr, u32 bar, const float* v) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%2, %3, %4, %5}, [%1];"
                 ::"r"(addr), "r"(bar), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]) : "memory");
}
// A barrier's first state is there for the cluster once it has met.
__device__ __forceinline__ void fence_mbar_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ float2 load_peer2(u32 addr) {
    float2 v;
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(addr) : "memory");
    return v;
}

// ---- shared memory
__device__ __forceinline__ void store_shared(u32 addr, u32 v) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(addr), "r"(v) : "memory");
}
__device__ __forceinline__ void store_shared(u32 addr, float v) { store_shared(addr, __float_as_uint(v)); }
__device__ __forceinline__ void store_shared(u32 addr, float2 v) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(addr), "f"(v.x), "f"(v.y) : "memory");
}
__device__ __forceinline__ void store_shared4(u32 addr, const float* v) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(addr), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]) : "memory");
}
__device__ __forceinline__ uint4 load_shared4(u32 addr) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(addr) : "memory");
    return v;
}
__device__ __forceinline__ float2 load_shared2(u32 addr) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(addr) : "memory");
    return v;
}
// Four 8 × 8 matrices of elements, as fragments: a thread names one row of 16 bytes.
__device__ __forceinline__ void load_matrices(u32* v, u32 addr) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(addr) : "memory");
}
// Back, each turned: a thread names one row of 16 bytes, which was a column.
__device__ __forceinline__ void store_matrices_transposed(u32 addr, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(addr), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
// An 8 × 8 matrix of elements over a warp, rows for columns.
__device__ __forceinline__ u32 transposed(u32 v) {
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(v));
    return v;
}
// copy16 with a policy of the L2 cache.
__device__ __forceinline__ void copy16_hint(u32 dst, const void* src, u64 policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "l"(policy) : "memory");
}
// copy16 of `src`, or of zeros.
__device__ __forceinline__ void copy16_if(u32 dst, const void* src, bool there) {
    const u32 bytes = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}
// All but this thread's last `pending` groups of copies have arrived; a constant where it is used.
__device__ __forceinline__ void copy_wait_for(int pending) {
    switch (pending) {
        case 0: return copy_wait<0>();
        case 1: return copy_wait<1>();
        case 2: return copy_wait<2>();
        case 3: return copy_wait<3>();
        case 4: return copy_wait<4>();
        case 5: return copy_wait<5>();
        case 6: return copy_wait<6>();
        case 7: return copy_wait<7>();
        case 8: return copy_wait<8>();
        case 9: return copy_wait<9>();
        case 10: return copy_wait<10>();
        case 11: return copy_wait<11>();
        case 12: return copy_wait<12>();
        case 13: return copy_wait<13>();
        case 14: return copy_wait<14>();
        default: return copy_wait<15>();
    }
}
// Asks for `bytes` (a multiple of 16) to be brought into L2.
__device__ __forceinline__ void prefetch_l2(const void* src, u32 bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(src), "r"(bytes) : "memory");
}
// What is not written while the kernel runs, past L1.
__device__ __forceinline__ u32 load_constant(const u32* p) {
    u32 v;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}

// The same through L1, of floats.
__device__ __forceinline__ float load_constant(const float* p) {
    float v;
    asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(p));
    return v;
}
// What the kernel in front wrote: past L1, and not before what comes before it.
__device__ __forceinline__ u32 load_written(const void* p) {
    u32 v;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ uint4 load_written4(const void* p) {
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ float2 load_written2(const float2* p) {
    float2 v;
    asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(p) : "memory");
    return v;
}

// ---- wgmma, as in hopper.cuh. mma<N8>: d[64 × 8·N8] += A[64 × 16] · B[8·N8 × 16]ᵀ, both in shared memory, K-major;
// mma_regs<N8>: A in registers; mma_regs_mn: A in registers, B [16 × 64] with its 64 columns contiguous.
#define MMA_N(n8, n, regs, d, ia, ib, ic, id, ie)                                                                     \
    template <> __device__ __forceinline__ void mma<n8>(float (&r)[n8 * 4], u64 a, u64 b) {                           \
        asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"                                                       \
                     "wgmma.mma_async.sync.aligned.m64n" n "k16.f32" ELEM " {" regs "}, %" ia ", %" ib                \
                     ", p, 1, 1, 0, 0;\n}" : d : "l"(a), "l"(b));                                                     \
    }                                                                                                                 \
    template <> __device__ __forceinline__ void mma_regs<n8>(float (&r)[n8 * 4], const u32* a, u64 b) {               \
        asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"                                                       \
                     "wgmma.mma_async.sync.aligned.m64n" n "k16.f32" ELEM " {" regs "}, {%" ia ", %" ib ", %" ic      \
                     ", %" id "}, %" ie ", p, 1, 1, 0;\n}" : d : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
    }
#define R1 "%0, %1, %2, %3"
#define R2 R1 ", %4, %5, %6, %7"
#define R3 R2 ", %8, %9, %10, %11"
#define R4 R3 ", %12, %13, %14, %15"
#define R5 R4 ", %16, %17, %18, %19"
#define R6 R5 ", %20, %21, %22, %23"
#define R7 R6 ", %24, %25, %26, %27"
#define R8 R7 ", %28, %29, %30, %31"
template <int N8> __device__ __forceinline__ void mma(float (&r)[N8 * 4], u64 a, u64 b);
template <int N8> __device__ __forceinline__ void mma_regs(float (&r)[N8 * 4], const u32* a, u64 b);
#define C ,
MMA_N(1, "8", R1, D4(r, 0), "4", "5", "6", "7", "8")
MMA_N(2, "16", R2, D4(r, 0) C D4(r, 4), "8", "9", "10", "11", "12")
MMA_N(3, "24", R3, D4(r, 0) C D4(r, 4) C D4(r, 8), "12", "13", "14", "15", "16")
MMA_N(4, "32", R4, D16(r, 0), "16", "17", "18", "19", "20")
MMA_N(5, "40", R5, D16(r, 0) C D4(r, 16), "20", "21", "22", "23", "24")
MMA_N(6, "48", R6, D16(r, 0) C D4(r, 16) C D4(r, 20), "24", "25", "26", "27", "28")
MMA_N(7, "56", R7, D16(r, 0) C D4(r, 16) C D4(r, 20) C D4(r, 24), "28", "29", "30", "31", "32")
MMA_N(8, "64", R8, D16(r, 0) C D16(r, 16), "32", "33", "34", "35", "36")
#undef C
#undef MMA_N
__device__ __forceinline__ void mma_regs_mn(float (&r)[32], const u32* a, u64 b) {
    asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32" ELEM " {" R8 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}"
                 : D16(r, 0), D16(r, 16) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
