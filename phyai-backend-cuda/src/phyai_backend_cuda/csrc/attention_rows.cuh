// Which rows of which request a block of attention.cu has, and which keys each of them sees.
#pragma once
#include "cluster.cuh"

struct Params {
    const elem *q, *k, *v;
    elem* o;
    const int *cu_seqlens, *indptr, *indices, *last;
    long long k_page, v_page;            // elements between pages
    int k_key, v_key, k_head, v_head;    // elements between keys, and between heads
    int tokens, requests, page_size, heads, causal, window;  // window 0: none
    float scale, cap;                                        // cap 0: none
};

struct Rows {
    int first, tile;  // the request's first query; which of its tiles of 64 rows
    int queries, all, entry, entries, keys;  // `all` counts rows of no request as well
};

// Tile `tile` of all requests, one after another. Rows of q that belong to no request count for the last one.
__device__ bool find(const Params& p, int tile, int lane, Rows& rows) {
    for (int base = 0; base < p.requests; base += 32) {
        const int i = base + lane;
        int begin = 0, end = 0, own = 0;
        if (i < p.requests) {
            begin = __ldcg(p.cu_seqlens + i);
            own = __ldcg(p.cu_seqlens + i + 1);
            end = i + 1 == p.requests ? p.tokens : own;
        }
        const int tiles = ((end - begin) * GROUP + 63) / 64;
        int sum = tiles;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const int other = __shfl_up_sync(~0u, sum, d);
            if (lane >= d) sum += other;
        }
        const u32 past = __ballot_sync(~0u, sum > tile);
        if (past) {
            const int at = __ffs(past) - 1, request = base + at;
            rows.first = __shfl_sync(~0u, begin, at);
            rows.queries = __shfl_sync(~0u, own - begin, at);
            rows.all = __shfl_sync(~0u, end - begin, at);
            rows.tile = tile - __shfl_sync(~0u, sum - tiles, at);
            const int last = __ldcg(p.last + request);
#if SLABS
            rows.entry = request;
            rows.entries = 1;
#else
            rows.entry = __ldcg(p.indptr + request);
            rows.entries = __ldcg(p.indptr + request + 1) - rows.entry;
#endif
            rows.keys = rows.entries > 0 ? (rows.entries - 1) * p.page_size + last : 0;
            return true;
        }
        tile -= __shfl_sync(~0u, sum, 31);
    }
    return false;
}

// Keys [x, y) are what row `row` of the request sees.
__device__ __forceinline__ int2 visible(const Params& p, const Rows& rows, int row) {
    const int query = row / GROUP, at = query + rows.keys - rows.queries;
    if (query >= rows.queries) return make_int2(0, 0);
    return make_int2(p.window ? max(0, at - p.window + 1) : 0, p.causal ? min(rows.keys, at + 1) : rows.keys);
}
