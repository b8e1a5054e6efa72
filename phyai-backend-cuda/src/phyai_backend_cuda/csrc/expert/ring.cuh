// The ring of shared-memory slots through which one warp streams a block's share of all weights, and of the prefix's
// keys and values, in the order of use and as far ahead as the ring is long.
#pragma once
#include "expert/layout.cuh"

extern __shared__ __align__(1024) char smem[];  // the ring, what the warpgroups exchange, barriers, x
__device__ __forceinline__ u32 smem_base() { return smem_u32(smem); }

struct Ring {
    int slot = 0;
    u32 phase = 0;
    __device__ void next() {
        if (++slot == SLOTS) { slot = 0; phase ^= 1; }
    }
    __device__ static u32 bars() { return smem_base() + SLOTS * ITEM + 2 * SCRATCH; }  // full, then empty
    __device__ int ahead(int n) const { return slot + n < SLOTS ? slot + n : slot + n - SLOTS; }
    __device__ u32 data(int n = 0) const { return smem_base() + ahead(n) * ITEM; }
    __device__ void wait_full(int n = 0) const {
        mbar_wait(bars() + ahead(n) * 8, slot + n < SLOTS ? phase : phase ^ 1);
    }
    // Item n from here (before it, if n is negative) has been read by `share` more of the block's eight warps' worth.
    __device__ void release(int n, u32 share) const {
        mbar_arrive(bars() + (SLOTS + (n < 0 ? ahead(n + SLOTS) : ahead(n))) * 8, share);
    }
    __device__ static void init() {
        for (int i = 0; i < SLOTS; ++i) {
            mbar_init(bars() + i * 8, 1);
            mbar_init(bars() + (SLOTS + i) * 8, 8);
        }
        fence_async();
    }
};

struct Producer {
    Ring ring;
    u64 once = evict_first();
    __device__ u32 claim() {
        mbar_wait(Ring::bars() + (SLOTS + ring.slot) * 8, ring.phase ^ 1);
        return Ring::bars() + ring.slot * 8;
    }
    // Weights are read once a step: they must not drive what blocks exchange, and the cache, out of L2.
    __device__ void push(const char* src, u32 bytes, bool weight) {
        const u32 full = claim();
        mbar_expect(full, bytes);
        if (weight) bulk_load_hint(ring.data(), src, bytes, full, once);
        else bulk_load(ring.data(), src, bytes, full);
        ring.next();
    }
};

__device__ void produce(const Params& p, int block) {
    Producer out{Ring{}};
    const int octets = block < 64 ? 3 : 2;
    const int tiles = Keys(p.lengths[0]).tiles;
    const size_t L_QKV = size_t(OCTETS) * 16 * 1024, L_O = size_t(G) * 4 * TILE, L_GU = size_t(G) * 16 * TILE,
                 L_D = size_t(G) * 8 * TILE, L_KV = size_t(p.kv_tiles) * 4 * TILE;
    for (int step = 0; step < p.steps; ++step) {
        if (EMBED)
            for (int i = 0; i < 4; ++i) out.push(p.wembed + block * ITEM + i * 4096, 4096, true);
        for (int layer = 0; layer < p.layers; ++layer) {
            const char* qkv = p.wqkv + layer * L_QKV + size_t(first_octet(block)) * 16 * 1024;
            const char* o = p.wo + layer * L_O + size_t(block) * 4 * TILE;
            const char* gu = p.wgu + layer * L_GU + size_t(block) * 16 * TILE;
            const char* down = p.wd + layer * L_D + size_t(block) * 8 * TILE;
            for (int i = 0; i < 4; ++i) out.push(qkv + i * octets * 4096, octets * 4096, true);
            for (int tile = block % SPLITS; tile < tiles; tile += SPLITS) {
                const size_t at = layer * L_KV + size_t(tile) * 4 * TILE;
                for (int i = 0; i < 4; ++i) out.push((i < 2 ? p.kbuf : p.vbuf) + at + (i & 1) * ITEM, ITEM, false);
            }
            for (int i = 0; i < 2; ++i) out.push(o + i * ITEM, ITEM, true);
            for (int i = 0; i < 8; ++i) out.push(gu + i * ITEM, ITEM, true);
            for (int i = 0; i < 4; ++i) out.push(down + i * ITEM, ITEM, true);
        }
        for (int i = 0; i < 4; ++i) out.push(p.out_w + i * ITEM, ITEM, false);  // the same for all blocks and steps
    }
}
