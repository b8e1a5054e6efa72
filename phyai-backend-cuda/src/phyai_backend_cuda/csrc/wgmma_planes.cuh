// wgmma on operands that lie in planes (sm_90a): plane u holds elements 8·u to 8·u + 7 of every row, 16 bytes a row. Eight
// rows of a plane are 128 bytes beside each other, which is what the tensor cores read at once; no swizzle, so planes may
// begin at any multiple of 16 bytes.
#pragma once
#include "cluster.cuh"

// The operand that begins at `addr`. `leading` and `stride` are bytes between its eights of rows and between its planes;
// which is which depends on what is summed over.
__device__ __forceinline__ u64 planes(u32 addr, u32 leading, u32 stride) {
    return static_cast<u64>((addr & 0x3FFFF) >> 4) | (static_cast<u64>(leading >> 4) << 16)
           | (static_cast<u64>(stride >> 4) << 32);
}

#define MULTIPLY(n, turned, regs, ia, ib, ic, id, ie, ig)                                                                \
    "{\n.reg .pred p;\nsetp.ne.b32 p, %" ig ", 0;\nwgmma.mma_async.sync.aligned.m64n" n "k16.f32" ELEM " {" regs "}, {%" \
    ia ", %" ib ", %" ic ", %" id "}, %" ie ", p, 1, 1, " turned ";\n}"
// d[64 × 64] = A[64 × 16] · B[64 × 16]ᵀ + (add ? d : 0): A in registers, B two planes of 64 rows; leading is from plane to
// plane, stride 128.
__device__ __forceinline__ void mma_rows(float (&d)[32], const u32* a, u64 b, int add) {
    asm volatile(MULTIPLY("64", "0", R8, "32", "33", "34", "35", "36", "37")
                 : D16(d, 0), D16(d, 16) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
// d[64 × 8·N8] = A[64 × 16] · B[16 × 8·N8] + (add ? d : 0): B sixteen rows of N8 planes; leading is 128, stride from plane
// to plane.
template <int N8> __device__ __forceinline__ void mma_columns(float (&d)[N8 * 4], const u32* a, u64 b, int add);
#define COLUMNS(n8, n, regs, operands, ia, ib, ic, id, ie, ig)                                                           \
    template <> __device__ __forceinline__ void mma_columns<n8>(float (&d)[n8 * 4], const u32* a, u64 b, int add) {      \
        asm volatile(MULTIPLY(n, "1", regs, ia, ib, ic, id, ie, ig)                                                      \
                     : operands : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                         \
    }
#define R9 R8 ", %32, %33, %34, %35"
#define R10 R9 ", %36, %37, %38, %39"
#define R11 R10 ", %40, %41, %42, %43"
#define R12 R11 ", %44, %45, %46, %47"
#define R13 R12 ", %48, %49, %50, %51"
#define R14 R13 ", %52, %53, %54, %55"
#define R15 R14 ", %56, %57, %58, %59"
#define R16 R15 ", %60, %61, %62, %63"
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
COLUMNS(9, "72", R9, D16(d, 0) C D16(d, 16) C D4(d, 32), "36", "37", "38", "39", "40", "41")
COLUMNS(10, "80", R10, D16(d, 0) C D16(d, 16) C D8(d, 32), "40", "41", "42", "43", "44", "45")
COLUMNS(11, "88", R11, D16(d, 0) C D16(d, 16) C D8(d, 32) C D4(d, 40), "44", "45", "46", "47", "48", "49")
COLUMNS(12, "96", R12, D16(d, 0) C D16(d, 16) C D16(d, 32), "48", "49", "50", "51", "52", "53")
COLUMNS(13, "104", R13, D16(d, 0) C D16(d, 16) C D16(d, 32) C D4(d, 48), "52", "53", "54", "55", "56", "57")
COLUMNS(14, "112", R14, D16(d, 0) C D16(d, 16) C D16(d, 32) C D8(d, 48), "56", "57", "58", "59", "60", "61")
COLUMNS(15, "120", R15, D16(d, 0) C D16(d, 16) C D16(d, 32) C D8(d, 48) C D4(d, 56), "60", "61", "62", "63", "64", "65")
COLUMNS(16, "128", R16, D16(d, 0) C D16(d, 16) C D16(d, 32) C D16(d, 48), "64", "65", "66", "67", "68", "69")
#undef C
#undef D8
#undef COLUMNS
#undef MULTIPLY
