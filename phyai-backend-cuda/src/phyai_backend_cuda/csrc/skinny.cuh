// What the products of at most 64 rows share: arguments, copies of x, the activation.
//
// M8: rows of x, in eights. ACTIVATION: 0 y = product (+ bias); else y = act(gate rows) · up rows, 1 silu, 2 gelu,
// 3 gelu_tanh; the gate rows are the first half of W, the up rows the second. (Other epilogues: skinny_epilogues.cuh.)
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
    const elem *residual, *gate;          // [M, N]; [M / gate_rows, N]
    const u32 *positions, *slots;         // [M], the low words of what may be wider
    const float* cos_sin;                 // [positions, ROTARY]: cosines, then sines
    elem *k_cache, *v_cache;              // [pages, page_size, KV_HEADS, HEAD_DIM]
    long long x_row, y_row, residual_row, gate_row;  // elements between rows
    long long y_head, k_page, k_slot, k_head, v_page, v_slot, v_head;  // between heads of y; pages, slots, heads
    int m, n, k;
    int gate_rows;                        // rows of x to a row of the gate
    int position_words;
    u32 page_size;                        // 0 where slots of one page follow those of another
};

__device__ __forceinline__ float activate(float x) {
    if (ACTIVATION == 1) return __fdividef(x, 1.0f + __expf(-x));
    if (ACTIVATION == 2) return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
    return gelu_tanh(x);
}

// The rows of x of which a thread copies 16 bytes of each chunk: threadIdx.x / 8 and every sixteenth from there. (What
// lies where there are no more rows makes columns that nobody stores.)
struct Rows {
    static constexpr int COUNT = (M8 + 1) / 2;
    const elem* from[COUNT];
    u32 to;

    // Found before the wait, and kept by the compiler where it is: behind the wait every instruction counts.
    __device__ Rows(const Params& p, u32 x, int first) {
        const int r = threadIdx.x / 8, unit = threadIdx.x % 8;
        to = x + r * 128 + ((unit ^ (r & 7)) << 4);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            from[i] = p.x + (r + i * 16) * p.x_row + first * 64 + unit * 8;
            asm volatile("" : "+l"(from[i]));
        }
    }
    // Chunk `chunk` of K, from the first on, to the place of chunk `slot`.
    __device__ void load(const Params& p, int slot, int chunk) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            if (int(threadIdx.x / 8) + i * 16 < p.m) copy16(to + slot * XCHUNK + i * 2048, from[i] + chunk * 64);
    }
};
