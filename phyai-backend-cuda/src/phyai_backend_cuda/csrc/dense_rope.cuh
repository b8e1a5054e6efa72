// The end of a projection to queries, keys and values: rotated, and stored where each belongs.
//
// Define ROPE (1: halves rotate, 2: neighbours) with HEAD_DIM, ROTARY (both multiples of 16) and WIDE where positions
// have 64 bits. Where halves rotate, the rows of W lie so that eight columns of a head's first half are followed by the eight
// that they rotate with: a thread holds both.
#pragma once
#include "cluster.cuh"

#ifdef ROPE
#ifdef WIDE
typedef long long position;
#else
typedef int position;
#endif
struct Rope {
    const position* positions;
    const float* cos_sin;  // [positions, ROTARY]: cosines, then sines
    const long long* slots;
    elem *q, *k, *v;
    long long q_row, q_head, k_page, k_slot, k_head, v_page, v_slot, v_head;
    int page_size, heads, kv_heads;

    // d: rows `row` and `row` + 8 of columns from `column` on, as wgmma leaves them to lane `quad` of four.
    template <int N> __device__ __forceinline__ void rotate(float (&d)[N], int row, int column, int quad, int M) const {
        const float* cosines[2];
#pragma unroll
        for (int i = 0; i < 2; i++) cosines[i] = cos_sin + static_cast<long long>(row + 8 * i < M ? positions[row + 8 * i] : 0) * ROTARY;
#pragma unroll
        for (int g = 0; g < COLUMNS / SPLIT / 16; g++) {
            const int head = (column + 16 * g) / HEAD_DIM, at = (column + 16 * g) % HEAD_DIM;
            if (head >= heads + kv_heads || at >= ROTARY) continue;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float *a = d + 8 * g + 2 * i, *b = a + 4;
#if ROPE == 1
                const float2 c = *reinterpret_cast<const float2*>(cosines[i] + at / 2 + 2 * quad);
                const float2 s = *reinterpret_cast<const float2*>(cosines[i] + at / 2 + 2 * quad + ROTARY / 2);
                turn(a[0], b[0], c.x, s.x);
                turn(a[1], b[1], c.y, s.y);
#else
                const float *c = cosines[i] + at / 2 + quad, *s = c + ROTARY / 2;
                turn(a[0], a[1], c[0], s[0]);
                turn(b[0], b[1], c[4], s[4]);
#endif
            }
        }
    }
    static __device__ __forceinline__ void turn(float& a, float& b, float c, float s) {
        const float turned = a * c - b * s;
        b = b * c + a * s;
        a = turned;
    }
};

// Where the rows of a warp go: lane l has those of row l % 16.
struct Places {
    u64 q, k, v;

    __device__ __forceinline__ Places(const Rope& rope, int row, int M) {
        const long long slot = row < M ? rope.slots[row] : 0, page = slot / rope.page_size, in = slot % rope.page_size;
        q = reinterpret_cast<u64>(rope.q + row * rope.q_row);
        k = reinterpret_cast<u64>(rope.k + page * rope.k_page + in * rope.k_slot);
        v = reinterpret_cast<u64>(rope.v + page * rope.v_page + in * rope.v_slot);
    }
    // Eight columns from `column` on, of the row that lane `from` has. All lanes ask.
    __device__ __forceinline__ elem* of(const Rope& rope, int from, int column) const {
        const u64 qs = __shfl_sync(~0u, q, from), ks = __shfl_sync(~0u, k, from), vs = __shfl_sync(~0u, v, from);
        const int head = column / HEAD_DIM, at = column % HEAD_DIM, key = head - rope.heads, value = key - rope.kv_heads;
        const int turned = ROPE == 1 && at < ROTARY ? at / 16 * 8 + at / 8 % 2 * (ROTARY / 2) : at;
        if (value >= 0) return reinterpret_cast<elem*>(vs) + value * rope.v_head + at;
        if (key >= 0) return reinterpret_cast<elem*>(ks) + key * rope.k_head + turned;
        return reinterpret_cast<elem*>(qs) + head * rope.q_head + turned;
    }
};
#endif
