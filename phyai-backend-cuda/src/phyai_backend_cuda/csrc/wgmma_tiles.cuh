// wgmma with A in registers and B in tiles that the copy engine filled (sm_90a): rows of 64, 32 or 16 elements, whose 16-byte
// units are XORed with the row so that eight rows, which a core matrix has, lie in different banks.
#pragma once
#include "tma.cuh"

// Rows of WIDTH elements: eight of them are an atom. Summed over elements (K-major) a step of sixteen is 32 bytes further;
// over rows (MN-major), sixteen rows further.
template <int WIDTH> __device__ __forceinline__ u64 tile_desc(u32 addr) {
    constexpr u64 kind = WIDTH == 64 ? 1 : WIDTH == 32 ? 2 : 3;
    return static_cast<u64>((addr & 0x3FFFF) >> 4) | (1ull << 16) | (u64(WIDTH) << 32) | (kind << 62);
}
template <int WIDTH> __device__ __forceinline__ int swizzled(int row, int unit) {
    return unit ^ (row >> (WIDTH == 64 ? 0 : WIDTH == 32 ? 1 : 2) & (WIDTH / 8 - 1));
}

#define MULTIPLY(n, turned, regs, ia, ib, ic, id, ie, ig)                                                                \
    "{\n.reg .pred p;\nsetp.ne.b32 p, %" ig ", 0;\nwgmma.mma_async.sync.aligned.m64n" n "k16.f32" ELEM " {" regs "}, {%" \
    ia ", %" ib ", %" ic ", %" id "}, %" ie ", p, 1, 1, " turned ";\n}"
// d[64 × 64] = A[64 × 16] · B[64 × 16]ᵀ + (add ? d : 0)
__device__ __forceinline__ void mma_rows(float (&d)[32], const u32* a, u64 b, int add) {
    asm volatile(MULTIPLY("64", "0", R8, "32", "33", "34", "35", "36", "37")
                 : D16(d, 0), D16(d, 16) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
// d[64 × 8·N8] = A[64 × 16] · B[16 × 8·N8] + (add ? d : 0)
template <int N8> __device__ __forceinline__ void mma_columns(float (&d)[N8 * 4], const u32* a, u64 b, int add);
#define COLUMNS(n8, n, regs, operands, ia, ib, ic, id, ie, ig)                                                           \
    template <> __device__ __forceinline__ void mma_columns<n8>(float (&d)[n8 * 4], const u32* a, u64 b, int add) {      \
        asm volatile(MULTIPLY(n, "1", regs, ia, ib, ic, id, ie, ig)                                                      \
                     : operands : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                         \
    }
#define D8(d, i) D4(d, i), D4(d, i + 4)
#define C ,
COLUMNS(1, "8", R1, D4(d, 0), "4", "5", "6", "7", "8", "9")
COLUMNS(2, "16", R2, D8(d, 0), "8", "9", "10", "11", "12", "13")
COLUMNS(3, "24", R3, D8(d, 0) C D4(d, 8), "12", "13", "14", "15", "16", "17")
COLUMNS(4, "32", R4, D16(d, 0), "16", "17", "18", "19", "20", "21")
COLUMNS(5, "40", R5, D16(d, 0) C D4(d, 16), "20", "21", "22", "23", "24", "25")
COLUMNS(6, "48", R6, D16(d, 0) C D8(d, 16), "24", "25", "26", "27", "28", "29")
COLUMNS(7, "56", R7, D16(d, 0) C D8(d, 16) C D4(d, 24), "28", "29", "30", "31", "32", "33")
COLUMNS(8, "64", R8, D16(d, 0) C D16(d, 16), "32", "33", "34", "35", "36", "37")
#undef C
#undef D8
#undef COLUMNS
#undef MULTIPLY
