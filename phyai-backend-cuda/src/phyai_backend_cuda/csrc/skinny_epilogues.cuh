// What else skinny.cu does with a product, in fp32 and rounded once, beside an activation (skinny.cuh).
//
// EPILOGUE: 1 y = residual + gate · (product + bias), row m with row m / gate_rows of the gate. 2 the product (+ bias) are
// heads: HEADS of q, KV_HEADS of k, as many of v, of HEAD_DIM. The first ROTARY of those of q and k are rotated: i with
// i + ROTARY / 2 (NEOX), or 2i with 2i + 1. q goes to y, k and v to their slots of the caches.
#pragma once
#include "skinny.cuh"

constexpr bool RESIDUAL = EPILOGUE == 1, SPLIT_HEADS = EPILOGUE == 2;
constexpr bool TWO = GATED || SPLIT_HEADS;              // two of a block's 16 rows of W meet in a thread
constexpr int SHARE = (M8 + SPLITS - 1) / SPLITS;       // eights of rows of x that a block finishes
constexpr int TURNS = TWO ? (SHARE + 1) / 2 : SHARE;    // with two, pairs of warps each take every second of them
// What is read fits into registers beside the weights: it is asked for together with x.
constexpr bool EARLY = TURNS <= 2 && (BITS == 16 || CHUNKS == HELD);
static_assert(!GATED || EPILOGUE == 0, "");

// Which eight of rows of x, of those that a block finishes, is this warp's in turn i.
__device__ __forceinline__ int eight_of(int i, int warp) { return TWO ? 2 * i + warp / 2 : i; }

#if EPILOGUE == 1
// What the product is added to: of each turn, columns `column` and the next, and eight further on.
struct Branch {
    u32 residual[TURNS][2], gate[TURNS][2];

    __device__ __forceinline__ void load(const Params& p, int i, int m, int column) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const bool here = i < SHARE && m < p.m && column + 8 * h < p.n;
            residual[i][h] = here ? load_written(p.residual + m * p.residual_row + column + 8 * h) : 0;
            gate[i][h] = here ? load_written(p.gate + m / p.gate_rows * p.gate_row + column + 8 * h) : 0;
        }
    }
    // v: rows of x 2q and 2q + 1, of outputs g, and g + 8. A thread has read row g, of outputs 2q and 2q + 1.
    __device__ __forceinline__ void add(float (&v)[4], int i) const {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float2 r = unpack_elem(transposed(residual[i][h])), s = unpack_elem(transposed(gate[i][h]));
            v[2 * h] = __fmaf_rn(v[2 * h], s.x, r.x);
            v[2 * h + 1] = __fmaf_rn(v[2 * h + 1], s.y, r.y);
        }
    }
};
#endif

#if EPILOGUE == 2
// 32 rows of W in two sixteens, `of` of all: of a head whose halves rotate, one of each half; else one behind the other.
struct Sixteens {
    static constexpr int EACH = HEAD_DIM / 32;  // of a head
    int head, within;
    bool turns;  // rotated, all of it with NEOX, else as far as ROTARY

    __device__ __forceinline__ Sixteens(int of, int n) {
        const int pair = min(of, n / 32 - 1);  // beyond the last is the last
        head = pair / EACH;
        within = pair % EACH;
        turns = head < HEADS + KV_HEADS && within * 32 < ROTARY;
    }
    // Where in the head its sixteen number `half` begins.
    __device__ __forceinline__ int begin(int half) const {
        return NEOX && turns ? within * 16 + half * (ROTARY / 2) : within * 32 + half * 16;
    }
};

struct Heads {
    static constexpr int HALVES = NEOX ? 1 : 2;  // whose angles differ
    Sixteens at;
    int position[TURNS][2];
    u32 slot[TURNS];
    float cos[TURNS][HALVES][4], sin[TURNS][HALVES][4];  // of the values of a thread, as they lie

    __device__ __forceinline__ Heads(int of, int n) : at(of, n) {}

    __device__ __forceinline__ void find(const Params& p, int i, int first, int lane) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int m = min(first + lane % 4 * 2 + e, p.m - 1);
            position[i][e] = at.turns ? load_written(p.positions + m * p.position_words) : 0;
        }
        slot[i] = at.head >= HEADS ? load_written(p.slots + min(first + lane / 4, p.m - 1) * 2) : 0;
    }
    __device__ __forceinline__ void load(const Params& p, int i, int lane) {
        if (!at.turns) return;
#pragma unroll
        for (int s = 0; s < HALVES; ++s)
#pragma unroll
            for (int v = 0; v < 4; ++v) {
                const int d = at.begin(s) + lane / 4 + v / 2 * 8;
                const float* from = p.cos_sin + size_t(position[i][v % 2]) * ROTARY + (NEOX ? d : min(d, ROTARY - 1) / 2);
                cos[i][s][v] = load_constant(from);
                sin[i][s][v] = load_constant(from + ROTARY / 2);
            }
    }
    // a: values of the first sixteen, b: of the second; rows of x 2q and 2q + 1, of outputs g, and g + 8.
    __device__ __forceinline__ void rotate(float (&a)[4], float (&b)[4], int i, int lane) const {
        if (!at.turns) return;
#pragma unroll
        for (int v = 0; v < 4; ++v) {
            if (NEOX) {
                const float c = cos[i][0][v], s = sin[i][0][v], first = a[v];
                a[v] = __fmaf_rn(first, c, -__fmul_rn(b[v], s));
                b[v] = __fmaf_rn(b[v], c, __fmul_rn(first, s));
            } else {
                a[v] = beside(a[v], 0, i, v, lane);
                b[v] = beside(b[v], HALVES - 1, i, v, lane);
            }
        }
    }
    // Rotated with its neighbour, which the lane of the neighbouring output has.
    __device__ __forceinline__ float beside(float own, int half, int i, int v, int lane) const {
        const float other = __shfl_xor_sync(~0u, own, 4), c = cos[i][half][v], s = sin[i][half][v];
        const bool odd = lane / 4 & 1, inside = at.begin(half) + lane / 4 + v / 2 * 8 < ROTARY;
        const float turned = __fmaf_rn(own, c, odd ? __fmul_rn(other, s) : -__fmul_rn(other, s));
        return inside ? turned : own;
    }
    // Where row m of this head lies. (Slots have 32 bits: no memory has more of them.)
    __device__ __forceinline__ elem* place(const Params& p, int i, int m) const {
        if (at.head < HEADS) return p.y + m * p.y_row + at.head * p.y_head;
        const bool key = at.head < HEADS + KV_HEADS;
        const int head = at.head - HEADS - (key ? 0 : KV_HEADS);
        elem* cache = (key ? p.k_cache : p.v_cache) + head * (key ? p.k_head : p.v_head);
        const long long step = key ? p.k_slot : p.v_slot;
        if (!p.page_size) return cache + slot[i] * step;
        const u32 page = slot[i] / p.page_size;
        return cache + page * (key ? p.k_page : p.v_page) + slot[i] % p.page_size * step;
    }
};
#endif
