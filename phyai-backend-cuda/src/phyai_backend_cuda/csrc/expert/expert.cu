// The whole action expert of a flow-matching policy as one persistent kernel: every denoising step, every layer.
//
// A grid of 128 blocks stays on the chip. In each block one warp streams the block's share of all weights (packed on
// the host in the order of use, already swizzled) through a ring of shared-memory slots, far ahead of the computation;
// two warpgroups multiply with wgmma, each half of K, activations in registers straight from L2. Stages of a layer:
//   A  q, k, v = rope(norm(x) Wqkv)   every block: all of K, 2 or 3 octets of N
//   B  o = attention(q, k, v)         block: one head, every 16th tile of 64 keys;
//                                     the 16 blocks of a head meet, each combines 16 of its columns
//   C  x += gate · (o Wo)             block: 64 of N, the K of one head; 8 blocks meet
//   D  h = gelu(gate) · up            every block: all of K, 32 gate and 32 up rows
//   E  x += gate · (h Wdown)          as C, 512 of K
// A step begins with x = a Win (EMBED: times another matrix, as stage A) and ends with a += dt · norm(x) Wout, of which
// every block computes all, as stage A with 4 octets of N that are the same for all.
// x stays in shared memory, in fp32: block 16r + c owns columns 64c + 8r .. + 8 of every row. What others read of it is
// bf16(x · (1 + scale)); its norm 1/rms(x) multiplies the product afterwards, and shift·W is a table, so
// norm(x)(1 + scale) + shift costs no pass of its own. Every reduction has a fixed order: results are reproducible.
// Blocks meet in words that say themselves whether they are there: see expert/exchange.cuh. The launch is cooperative,
// which is what makes all blocks run at the same time.
#include "expert/attention.cuh"
#include "expert/ends.cuh"
#include "expert/products.cuh"
#include "expert/residual.cuh"

__device__ void run(const Params& p, int tid) {
    Consumer c{p};
    c.tid = tid;
    const int pos0 = p.lengths[1];
    const Keys keys(__shfl_sync(~0u, p.lengths[0], 0));
    const int tiles = keys.tiles;
    float4 x = first_entry(c);
    for (int step = 0; step < p.steps; ++step) {
        if (EMBED) x = embed(c, step, x);
        if (c.group() == 0) {
            const u32 use = step * p.layers;
            publish(c, c.copy(p.xs1, use, 16 * TILE) + c.own_word(), use, c.own_columns(p.scale1 + size_t(use) * D), x);
        }
        ++c.uses;
        for (int layer = 0; layer < p.layers; ++layer) {
            const u32 use = step * p.layers + layer;  // of what is used once a layer
            const size_t at = size_t(use) * D;
            const bool last = layer + 1 == p.layers;  // what follows is the end of the step
            c.forget();
            if (c.block() < 64) stage_qkv<3>(c, step, layer, pos0, use);
            else stage_qkv<2>(c, step, layer, pos0, use);
            c.forget();
            uint2 maxima[8];
            if (c.cluster() < tiles) attend(c, keys, use, maxima);
            else ask_maxima(c, tiles, use, maxima);
            c.mark();
            combine(c, tiles, use, maxima);
            c.mark();
            c.forget();
            stage_residual<4, 0>(c, c.copy(p.obuf, use, 32 * TILE) + c.rank() * 4 * TILE, p.gate1 + at, p.scale2 + at,
                                 p.xs2, use, use);
            c.forget();
            stage_gate_up(c, step, layer, use);
            stage_residual<8, 1>(c, c.copy(p.act, use, 64 * TILE) + c.rank() * 8 * TILE, p.gate2 + at,
                                 last ? p.scale_f + size_t(step) * D : p.scale1 + at + D, last ? p.xf : p.xs1,
                                 last ? step : use + 1, use);
        }
        x = next_entry(c, step, c.copy(p.xf, step, 16 * TILE));
    }
}

extern "C" __global__ void __launch_bounds__(384, 1) expert(const __grid_constant__ Params p) {
    const int tid = threadIdx.x;
    if (tid == 0) Ring::init();
    const int warp = __shfl_sync(~0u, tid >> 5, 0);  // uniform, and known to be
    __syncthreads();
    if (warp >= 8) {
        registers_give<40>();
        if (tid == 256) produce(p, blockIdx.x);
    } else {
        registers_take<232>();
        run(p, tid);
    }
}
