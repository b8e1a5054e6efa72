// Keys and values of this step, on their way from the blocks that compute them into the tiles that hold them.
#pragma once
#include "expert/consumer.cuh"

// A tile's new keys and values on their way into its items of the ring: warpgroup 1, 16 bytes a thread at a time, 4
// keys together. The first values are asked for before the keys are there.
struct Patch {
    const char* from;        // this thread's unit of the first of its keys
    int row, units, stride;  // that key's row in the tile; units of all threads; bytes to the thread's next key
    int thread;

    __device__ Patch(const Consumer& c, const Tile& tile, int t, int tiles, u32 use) : thread(c.tid & 127) {
        from = c.p.fresh + (use & 1) * FRESH + (t + (thread >> 5) * tiles) * 512 + (thread & 31) * 16;
        row = tile.old + (thread >> 5);
        units = tile.fresh * 32;
        stride = tiles * 4 * 512;
    }
    template <int VALUES> __device__ uint4 load(int i) const {
        return load_relaxed4<true>(from + VALUES * (ROWS * 512) + i * stride);
    }
    template <int VALUES> __device__ void put(const Consumer& c, uint4 v) const {
        const int chunk = thread >> 3 & 3, place = VALUES ? (chunk & 1) * 2 + (chunk >> 1) : chunk;
        c.ring.wait_full(VALUES * 2);
        c.ring.wait_full(VALUES * 2 + 1);
        const u32 to = c.ring.data(VALUES * 2 + (place >> 1)) + (place & 1) * TILE;
#pragma unroll 1
        for (int i = 0; i * 128 + thread < units; ++i) {
            if (i) v = load<VALUES>(i);
            const int r = row + i * 4;
            for (u32 spins = 0; max(max(v.x, v.y), max(v.z, v.w)) == EMPTY; v = load<VALUES>(i))
                if (++spins > SPIN_LIMIT) __trap();
            store_shared4(to + r * 128 + (((thread & 7) ^ (r & 7)) << 4), v);
        }
        fence_async();
    }
    __device__ void run(const Consumer& c) const {
        uint4 k = make_uint4(0, 0, 0, 0), v = k;
        if (thread < units) {
            k = load<0>(0);
            v = load<1>(0);
        }
        put<0>(c, k);
        asm volatile("bar.arrive 2, 256;" ::: "memory");  // `scores` waits for it
        put<1>(c, v);
    }
};
