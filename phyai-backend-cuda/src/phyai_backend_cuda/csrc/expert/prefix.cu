// The cache of the prefix, [keys, HD] rows per layer, in the form that the expert's kernel reads: 64-key tiles of four
// swizzled 64-column chunks, a key's dimensions i and i + HD/2 side by side, v's chunks in the order 0, 2, 1, 3. Rows
// past the prefix become zero.
#include "expert/layout.cuh"

extern "C" __global__ void __launch_bounds__(256)
pack_kv(const u64* keys, const u64* values, const int* lengths, char* kbuf, char* vbuf, int stride) {
    const int tile = blockIdx.x, layer = blockIdx.y, prefix = lengths[0];
    const Keys all(prefix);
    const Tile here = all.tile(tile);
    const int end = tile < all.tiles ? here.begin + here.old : 0;
    const size_t base = (size_t(layer) * gridDim.x + tile) * 4 * TILE;
    for (int i = threadIdx.x; i < 64 * 32; i += blockDim.x) {
        const int row = i >> 5, unit = i & 31, key = here.begin + row;
        uint4 k = make_uint4(0, 0, 0, 0), v = k;
        if (key < end) {
            const bf16* kr = reinterpret_cast<const bf16*>(keys[layer]) + size_t(key) * stride;
            const bf16* vr = reinterpret_cast<const bf16*>(values[layer]) + size_t(key) * stride;
            const uint2 a = *reinterpret_cast<const uint2*>(kr + unit * 4);
            const uint2 b = *reinterpret_cast<const uint2*>(kr + unit * 4 + HD / 2);
            k = make_uint4(__byte_perm(a.x, b.x, 0x5410), __byte_perm(a.x, b.x, 0x7632),
                           __byte_perm(a.y, b.y, 0x5410), __byte_perm(a.y, b.y, 0x7632));
            v = *reinterpret_cast<const uint4*>(vr + unit * 8);
        }
        const int chunk = unit >> 3, swapped = (chunk & 1) * 2 + (chunk >> 1);
        const size_t at = base + row * 128 + (((unit & 7) ^ (row & 7)) << 4);
        *reinterpret_cast<uint4*>(kbuf + at + chunk * TILE) = k;
        *reinterpret_cast<uint4*>(vbuf + at + swapped * TILE) = v;
    }
}
