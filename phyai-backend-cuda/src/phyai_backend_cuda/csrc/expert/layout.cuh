// What the expert's kernel reads and writes: sizes, parameters, and where an element lies.
#pragma once
#include "hopper.cuh"

#ifndef MQ
#define MQ 50  // rows: queries of the action chunk, and those in front of them
#endif
#ifndef FIXED
#define FIXED 0  // rows in front of the actions (π0's state): given, the same at every step, they see no action
#endif
#ifndef EMBED
#define EMBED 0  // whether actions, together with the step's time, pass another layer on their way to x (π0)
#endif
#ifndef SLOTS
#define SLOTS 8  // of the ring of weights; shared memory that it does not take is left to L1, which loads go through
#endif
// Cycles to wait before asking for what other blocks are still writing: a futile read is in the way of the words that
// it looks for, and of everybody else's. No result depends on them; one that is too long costs its own length. Measured
// on an H200 for 50 rows and 968 keys, where none at all is 2 % slower and 1,000 for 1,300 the same. 10 rows, 60 keys
// and π0 gain by them, too.
#ifndef QUERIES_PAUSE
#define QUERIES_PAUSE 1300  // between stage A and asking for queries and new keys
#endif
#ifndef SUMS_PAUSE
#define SUMS_PAUSE 600  // before asking for the other blocks' partial sums of stages C and E
#endif
#ifndef TRACE
#define TRACE 0  // record the clock at every mark of the first TRACE marks of each block
#endif

static_assert(FIXED <= 8, "fixed rows are among the first eight of the first row tile");
constexpr int D = 1024, H = 8, HD = 256, I = 4096, AD = 32;
constexpr int G = 128, RANKS = 8, SPLITS = 16;
constexpr int OCTETS = (H + 2) * HD / 8;     // 320 octets of rows of Wqkv
constexpr int TILE = 8192;                   // bytes of 64 rows × 64 columns: of a weight, a cache, an activation
constexpr int ITEM = 2 * TILE;               // bytes of a slot of the ring
constexpr int SCRATCH = 16384;               // bytes in which the two warpgroups exchange, twice
constexpr int ROWS = 56;                     // stored rows of partial results
constexpr int MAXIMA = H * SPLITS * ROWS * 8, FRESH = 2 * ROWS * HD * 2;  // bytes of a copy of these areas
constexpr float SQUARES = 1048576.0f;        // sums of squares are added up in integers of this many to one, to 2^36

struct Params {
    // weights, packed
    const char *wqkv, *wo, *wgu, *wd;
    const float *in_w, *in_b;      // [D, AD], [D]
    const char *out_w;             // packed
    // tables per step (and layer)
    const float *scale1, *gate1, *scale2, *gate2;  // [S, L, D]; scales as 1 + scale
    const float *shift_qkv, *shift_gu;             // [S, L, N] = shift · W, in packed order
    const float *scale_f, *shift_out;              // [S, D], [S, AD] (shift·W + bias)
    const float *dt;                               // [S]
    const float *cos_sin;                          // [P, HD]
    const int *lengths;                            // prefix keys, position of the first query
    float *actions;                                // [MQ - FIXED, AD], updated in place
    const char *kbuf, *vbuf;                       // [L, tiles, 4, TILE]
    // exchanged between blocks (see expert/exchange.cuh); words in two copies, the first dimension
    char *xs1, *xs2, *xf;                          // [2, 16, TILE] fragments: x in front of A, of D, behind all layers
    char *qbuf, *obuf;                             // [2, 32, TILE] fragments
    char *act;                                     // [2, 64, TILE] fragments
    char *fresh;                                   // [2, k and v, ROWS, HD] bf16
    char *ml;                                      // [2, H, SPLITS, ROWS] maximum and sum
    // words with a tag
    char *opart;                                   // [H, 16 readers, SPLITS, ROWS, 16] bf16
    char *part;                                    // [C and E, G, RANKS, 4 row tiles, g, q, row + 8, 2] bf16
    u64 *ssq;                                      // [4, ROWS, 16]: the first of each 128 bytes
    float *kept;                                   // [G, 256, 8]: all actions, by each block's threads; not exchanged
    long long *trace;
    int layers, steps, kv_tiles;
    float eps;
    // with FIXED, and with EMBED
    const float *fixed;                            // [FIXED, D]
    const float *time;                             // [S, D]
    const char *wembed;                            // packed
    const float *embed_b;                          // [D]
    char *zs;                                      // [2, 16, TILE] fragments; exchanged
};

// An activation lies in chunks of 64 columns, as the fragments that wgmma takes from registers: 16 bytes per k-step of
// 16 columns, row tile of 16 rows and lane; of these the first 8 are the lane's first two columns of rows g and g + 8,
// the others its other two. Byte of columns 2·pair and 2·pair + 1 of a row; the weights' columns are packed so that the
// four columns 4·quad .. + 3 are one lane's.
__device__ __forceinline__ int fragment(int row, int pair) {
    return (pair >> 3) * 2048 + (row >> 4) * 512 + (row & 7) * 64 + (pair & 7) * 8 + (row >> 3 & 1) * 4;
}
__device__ __forceinline__ int first_octet(int block) { return block < 64 ? 3 * block : 192 + 2 * (block - 64); }

// Where keys lie. The keys of this step are spread evenly over all tiles of 64, so that no block has more of them to
// wait for and to fill in than another: of T tiles, tile t has new keys t, t + T, ... behind its share of the prefix.
struct Tile {
    int begin, old, fresh;  // its first key of the prefix, how many it has of them, and of new ones behind them
};
struct Keys {
    int prefix, tiles, share, rest;  // every tile has `share` new keys, and the first `rest` of them one more
    __device__ Keys(int prefix) : prefix(prefix), tiles((prefix + MQ + 63) / 64), share(MQ / tiles), rest(MQ % tiles) {}
    __device__ Tile tile(int t) const {
        const int begin = t * 64 - (share * t + min(t, rest)), fresh = share + (t < rest);
        return {begin, min(max(prefix - begin, 0), 64 - fresh), fresh};
    }
};
