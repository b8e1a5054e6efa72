// The whole action expert of a flow-matching policy as one persistent kernel: every denoising step, every layer.
//
// A grid of 128 blocks stays on the chip. In each block one warp streams the block's share of all weights (packed on
// the host in the order of use, already swizzled) through a ring of shared-memory slots, far ahead of the computation;
// one warpgroup multiplies with wgmma. Stages of a layer, and what each waits for:
//   A  q, k, v = rope(norm(x) Wqkv)   every block: all of K, 2 or 3 octets of N          waits for all blocks
//   B  o = attention(q, k, v)         block: one head, every 16th tile of 64 keys;       waits for all blocks
//                                     the 16 blocks of a head meet, each combines 16 of its columns
//   C  x += gate · (o Wo)             block: 64 of N, the K of one head; 8 blocks meet   waits for 16 blocks
//   D  h = gelu(gate) · up            every block: all of K, 32 gate and 32 up rows      waits for all blocks
//   E  x += gate · (h Wdown)          as C, 512 of K                                     waits for 16 blocks
// x stays in registers, in fp32: block 16r + c owns columns 64c + 8r .. + 8 of every row. What others read of it is
// bf16(x · (1 + scale)); its norm 1/rms(x) multiplies the product afterwards, and shift·W is a table, so
// norm(x)(1 + scale) + shift costs no pass of its own. Every reduction has a fixed order: results are reproducible.
// Blocks exchange through L2: how many clusters fit differs from one chip to the next.
#include "hopper.cuh"

#ifndef MQ
#define MQ 50
#endif
#ifndef TRACE
#define TRACE 0  // record the clock at every mark of the first TRACE marks of each block
#endif

constexpr int D = 1024, H = 8, HD = 256, I = 4096, AD = 32;
constexpr int G = 128, RANKS = 8, SPLITS = 16;
constexpr int ROWS = (MQ + 7) / 8 * 8;       // stored rows of an activation chunk
constexpr int CHUNK = ROWS * 128;            // bytes of 64 columns of an activation
constexpr int TILE = 8192;                   // bytes of 64 rows × 64 columns
constexpr int OCTETS = (H + 2) * HD / 8;     // 320
constexpr int SLOTS = 14;
constexpr int REGION_A = 16 * 7168 + 1024;   // activations; a 64-row operand reads past its 56 stored rows
constexpr float SQUARES = 16777216.0f;       // sums of squares are added up in integers of this many to one

// Counters that only grow during a launch; those read together lie together.
constexpr int X1 = 0, X2 = 32, QKV = 64, HEAD_PARTS = 96, HEAD_DONE = 352, ACT = 608, OUT = 864;  // three by 32 · r

struct Params {
    // weights, packed
    const char *wqkv, *wo, *wgu, *wd;
    const float *in_w, *in_b;      // [D, AD], [D]
    const bf16 *out_w;             // [AD, D]
    // tables per step (and layer)
    const float *scale1, *gate1, *scale2, *gate2;  // [S, L, D]; scales as 1 + scale
    const float *shift_qkv, *shift_gu;             // [S, L, N] = shift · W, in packed order
    const float *scale_f, *shift_out;              // [S, D], [S, AD] (shift·W + bias)
    const float *dt;                               // [S]
    const float *cos_sin;                          // [P, HD]
    const int *lengths;                            // prefix keys, position of the first query
    // state and scratch
    float *actions;                                // [MQ, AD], updated in place
    char *kbuf, *vbuf;                             // [L, tiles, 4, TILE]
    char *xs1, *xs2, *qbuf, *obuf, *act;
    char *opart;                                   // [G, MQ, HD] bf16, permuted
    float *ml;                                     // [G, 64, 2]
    float *part;                                   // [G, RANKS, 56, 8]
    u64 *ssq;                                      // [4, ROWS, 16]: a row's sum is the first of its 128 bytes
    u32 *counters;
    long long *trace;
    int layers, steps, kv_tiles;
    float eps;
};

struct Ring {
    u32 base, full, empty;
    int slot = 0;
    u32 phase = 0;
    __device__ void next() {
        if (++slot == SLOTS) { slot = 0; phase ^= 1; }
    }
    __device__ u32 data() const { return base + slot * TILE; }
    __device__ u32 full_bar() const { return full + slot * 8; }
    __device__ u32 empty_bar() const { return empty + slot * 8; }
};

__device__ __forceinline__ int first_octet(int block) { return block < 64 ? 3 * block : 192 + 2 * (block - 64); }

// ------------------------------------------------------------------------------------------------ producer
struct Producer {
    Ring ring;
    __device__ void push(const char* src, u32 bytes) {
        mbar_wait(ring.empty_bar(), ring.phase ^ 1);
        mbar_expect(ring.full_bar(), bytes);
        bulk_load(ring.data(), src, bytes, ring.full_bar());
        ring.next();
    }
    __device__ void push_tiles(const char* src, int n) {
        for (int i = 0; i < n; ++i) push(src + i * TILE, TILE);
    }
};

__device__ void produce(const Params& p, Ring ring, int block) {
    Producer out{ring};
    const int octets = block < 64 ? 3 : 2;
    const int old_tiles = p.lengths[0] / 64;  // without keys of this step, which the consumers fetch
    const size_t L_QKV = size_t(OCTETS) * 16 * 1024, L_O = size_t(G) * 4 * TILE, L_GU = size_t(G) * 16 * TILE,
                 L_D = size_t(G) * 8 * TILE, L_KV = size_t(p.kv_tiles) * 4 * TILE;
    for (int step = 0; step < p.steps; ++step)
        for (int layer = 0; layer < p.layers; ++layer) {
            const char* qkv = p.wqkv + layer * L_QKV + size_t(first_octet(block)) * 16 * 1024;
            const char* gu = p.wgu + layer * L_GU + size_t(block) * 16 * TILE;
            const char* down = p.wd + layer * L_D + size_t(block) * 8 * TILE;
            for (int i = 0; i < 8; ++i) out.push(qkv + i * octets * 2048, octets * 2048);
            for (int tile = block % SPLITS; tile < old_tiles; tile += SPLITS) {
                out.push_tiles(p.kbuf + layer * L_KV + size_t(tile) * 4 * TILE, 4);
                out.push_tiles(p.vbuf + layer * L_KV + size_t(tile) * 4 * TILE, 4);
            }
            out.push_tiles(p.wo + layer * L_O + size_t(block) * 4 * TILE, 4);
            out.push_tiles(gu, 16);
            out.push_tiles(down, 8);
        }
}

// ------------------------------------------------------------------------------------------------ consumer
struct Consumer {
    const Params& p;
    Ring ring;
    u32 region;
    u32 uses = 0;  // how often x has been published
    int block, rank, cluster, tid, warp, lane, g, q;
    float x[4];  // row tid / 2, columns 64·cluster + 8·rank + 4·(tid % 2) ..

    __device__ bool owns() const { return tid < 2 * MQ; }
    __device__ int own_row() const { return tid >> 1; }
    __device__ int own_col() const { return cluster * 64 + rank * 8 + (tid & 1) * 4; }

#if TRACE
    int marks = 0;
    __device__ void mark() {
        if (tid == 0 && marks < TRACE) p.trace[block * TRACE + marks++] = clock64();
    }
#else
    __device__ void mark() {}
#endif
    __device__ void sync() { asm volatile("bar.sync 1, 128;" ::: "memory"); }
    __device__ void arrive(int counter) {
        mark();
        sync();
        if (tid == 0) red_release(p.counters + counter);
    }
    __device__ void wait(int counter, u32 target) {
        if (tid == 0) spin_until(p.counters + counter, target);
        sync();
        mark();
    }
    // CHUNKS (a power of two) chunks of an activation, once `counter` says that it is there, in groups of four. The
    // first chunk differs between the blocks that read the same, so that they do not all ask the same slices of L2 at
    // once; the weights are packed in the same order. Ordinary asynchronous copies: for data that all blocks read
    // they are faster than the bulk engine, which is busy with weights.
    template <int CHUNKS> __device__ void load_a(int counter, u32 target, const char* src, int first) {
        wait(counter, target);
#pragma unroll
        for (int c = 0; c < CHUNKS; c += 4) {
            for (int u = tid; u < 4 * MQ * 8; u += 128) {
                const int chunk = c + u / (MQ * 8), unit = u % (MQ * 8);
                copy16(region + chunk * CHUNK + unit * 16, src + ((chunk + first) & (CHUNKS - 1)) * CHUNK + unit * 16);
            }
            copy_commit();
        }
    }
    __device__ void load_tile(u32 to, const char* src) {  // 64 keys × 256
#pragma unroll
        for (int i = 0; i < 4 * TILE / 16 / 128; ++i) copy16(to + (i * 128 + tid) * 16, src + (i * 128 + tid) * 16);
    }
    // All but the last PENDING groups of this block's copies are there for wgmma to read.
    template <int PENDING> __device__ void copied() {
        copy_wait<PENDING>();
        fence_async();
        sync();
    }
    // All of x; and 1 / rms of rows 16·warp + g and + 8.
    __device__ void load_x(int counter, u32 times, const char* src, float (&r)[2]) {
        load_a<16>(counter, times * G, src, block / 4);
        const int row = warp * 16 + g;
#pragma unroll
        for (int h = 0; h < 2; ++h) r[h] = norm_of(min(row + h * 8, MQ - 1));
        if (block == 0 && tid < MQ) p.ssq[((uses + 1) % 4 * ROWS + tid) * 16] = 0;  // of two publications ago
    }
    __device__ float norm_of(int row) const {
        const float sum = static_cast<float>(load_relaxed(p.ssq + ((uses - 1) % 4 * ROWS + row) * 16));
        return rsqrtf(sum * (1.0f / SQUARES / D) + p.eps);
    }
    __device__ void release(int back) {  // the slot used `back` items ago
        if (lane == 0) mbar_arrive(ring.empty + ((ring.slot + SLOTS - back) % SLOTS) * 8);
    }

    // acc = A[64, 64·CHUNKS] · W[8·N8, 64·CHUNKS]ᵀ, PER chunks to a ring slot.
    template <int N8, int PER, int CHUNKS> __device__ void gemm(float (&acc)[N8 * 4]) {
#pragma unroll
        for (int i = 0; i < N8 * 4; ++i) acc[i] = 0.0f;
#pragma unroll
        for (int group = 0; group < CHUNKS / 4; ++group) {
            if (group == CHUNKS / 4 - 1) copied<0>();
            else if (group == CHUNKS / 4 - 2) copied<1>();
            else if (group == CHUNKS / 4 - 3) copied<2>();
            else copied<3>();
#pragma unroll 1
            for (int c = group * 4; c < group * 4 + 4; c += PER) {
                mbar_wait(ring.full_bar(), ring.phase);
                const u64 a = uniform_desc(region + c * CHUNK), w = uniform_desc(ring.data());
                gmma_fence();
#pragma unroll
                for (int j = 0; j < PER; ++j)
#pragma unroll
                    for (int k = 0; k < 4; ++k)
                        gmma<N8>(acc, a + (j * CHUNK + k * 32) / 16, w + (j * N8 * 1024 + k * 32) / 16);
                gmma_commit();
                if (c > 0) {
                    gmma_wait<1>();
                    release(1);
                }
                ring.next();
            }
        }
        gmma_wait<0>();
        release(1);
        mark();
    }

    // Publish bf16(x · scale) and this block's part of the sums of squares.
    __device__ float4 own_columns(const float* table) const {
        return owns() ? *reinterpret_cast<const float4*>(table + own_col()) : make_float4(0.f, 0.f, 0.f, 0.f);
    }
    __device__ void publish(char* xs, int counter, const float4& f) {
        float s = x[0] * x[0] + x[1] * x[1] + x[2] * x[2] + x[3] * x[3];
        s += __shfl_xor_sync(~0u, s, 1);
        if (owns()) {
            int row = own_row();
            uint2 v = make_uint2(pack_bf16(x[0] * f.x, x[1] * f.y), pack_bf16(x[2] * f.z, x[3] * f.w));
            char* at = xs + cluster * CHUNK + row * 128 + ((rank ^ (row & 7)) << 4) + (tid & 1) * 8;
            *reinterpret_cast<uint2*>(at) = v;
            if (!(tid & 1)) add_relaxed(p.ssq + (uses % 4 * ROWS + row) * 16, __float2ull_rn(s * SQUARES));
        }
        ++uses;
        arrive(counter);
    }

    // x += gate · Σ acc over the 8 blocks of the same columns; column tile j of acc belongs to rank j. A partial sum
    // has one writer and one reader, and EMPTY in its place says that it is not there yet; who reads it puts EMPTY
    // back. The next writes come after a barrier of all blocks.
    __device__ void reduce_into_x(const float (&acc)[32], const float4& gate) {
        const int row = warp * 16 + g;
        float* mine = p.part + size_t(block) * (RANKS * 56 * 8) + 2 * q;
#pragma unroll
        for (int j = 0; j < RANKS; ++j) {
            float* at = mine + (j * 56 + row) * 8;
            if (row < MQ) store_relaxed2(at, acc[j * 4], acc[j * 4 + 1]);
            if (row + 8 < MQ) store_relaxed2(at + 64, acc[j * 4 + 2], acc[j * 4 + 3]);
        }
        mark();
        if (owns()) {
            float* from = p.part + (cluster * RANKS + rank) * (56 * 8) + tid * 4;  // row tid / 2, of rank 0's block
            uint4 v[RANKS];
            u32 spins = 0;
            bool missing;
            do {
                missing = false;
#pragma unroll
                for (int r = 0; r < RANKS; ++r) v[r] = load_relaxed4(from + r * (16 * RANKS * 56 * 8));
#pragma unroll
                for (int r = 0; r < RANKS; ++r) missing |= is_empty(v[r]);
                if (++spins > SPIN_LIMIT) __trap();
            } while (missing);
            float4 s = as_float4(v[0]);
#pragma unroll
            for (int r = 1; r < RANKS; ++r) {
                const float4 w = as_float4(v[r]);
                s.x += w.x; s.y += w.y; s.z += w.z; s.w += w.w;
            }
#pragma unroll
            for (int r = 0; r < RANKS; ++r) store_empty(from + r * (16 * RANKS * 56 * 8));
            x[0] += gate.x * s.x; x[1] += gate.y * s.y; x[2] += gate.z * s.z; x[3] += gate.w * s.w;
        }
    }

    template <int N8> __device__ void stage_qkv(int step, int layer, int prefix, int pos0, u32 times) {
        float acc[N8 * 4], r[2];
        float2 shift[N8], rot[N8][2];  // read ahead of the product: they are at hand when it is done
        const float* table = p.shift_qkv + (size_t(step) * p.layers + layer) * (OCTETS * 8);
#pragma unroll
        for (int j = 0; j < N8; ++j) {
            const int octet = first_octet(block) + j, i = (octet & 31) * 4 + q;
            shift[j] = *reinterpret_cast<const float2*>(table + octet * 8 + 2 * q);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float* cs = p.cos_sin + size_t(pos0 + min(warp * 16 + g + half * 8, MQ - 1)) * HD;
                rot[j][half] = make_float2(cs[i], cs[i + HD / 2]);
            }
        }
        load_x(X1, times, p.xs1, r);
        gemm<N8, 2, 16>(acc);
#pragma unroll
        for (int j = 0; j < N8; ++j) {
            const int octet = first_octet(block) + j;
            const int within = octet & 31;  // of its head
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = warp * 16 + g + half * 8;
                if (row >= MQ) continue;
                float a = acc[j * 4 + half * 2] * r[half] + shift[j].x;
                float b = acc[j * 4 + half * 2 + 1] * r[half] + shift[j].y;
                const int key = prefix + row;
                const size_t tile = (size_t(layer) * p.kv_tiles + key / 64) * 4;
                if (octet < 288) {  // q or k: (a, b) are dimensions i and i + 128 of a head
                    const int i = within * 4 + q;
                    const float c = rot[j][half].x, sn = rot[j][half].y;
                    const u32 v = pack_bf16(a * c - b * sn, b * c + a * sn);
                    const int unit = (i & 31) >> 2, byte = (i & 3) * 4, chunk = i >> 5;
                    const int rr = octet < 256 ? row : key & 63;
                    char* at = p.kbuf + (tile + chunk) * TILE;
                    if (octet < 256) at = p.qbuf + ((octet >> 5) * 4 + chunk) * CHUNK;
                    *reinterpret_cast<u32*>(at + rr * 128 + ((unit ^ (rr & 7)) << 4) + byte) = v;
                } else {
                    const int rr = key & 63;
                    char* at = p.vbuf + (tile + (within >> 3)) * TILE;
                    *reinterpret_cast<u32*>(at + rr * 128 + (((within & 7) ^ (rr & 7)) << 4) + q * 4) = pack_bf16(a, b);
                }
            }
        }
    }

    // s = Q · Kᵀ of one chunk; o[c] += P · V of another.
    __device__ void score(float (&s)[32], int chunk, u32 k) {
        const u64 a = uniform_desc(region + chunk * CHUNK), b = uniform_desc(k);
        gmma_fence();
#pragma unroll
        for (int i = 0; i < 4; ++i) gmma<8>(s, a + 2 * i, b + 2 * i);
        gmma_commit();
    }
    __device__ void weigh(float (&o)[32], const u32 (&pr)[16], u32 v) {
        const u64 b = uniform_desc(v);
        gmma_fence();
#pragma unroll
        for (int i = 0; i < 4; ++i)
            gmma_rs_mn(o, pr[4 * i], pr[4 * i + 1], pr[4 * i + 2], pr[4 * i + 3], b + 128 * i);
        gmma_commit();
    }

    __device__ void stage_attention(int layer, int prefix, u32 use) {
        const int head = rank, split = cluster, keys = prefix + MQ;
        const int tiles = (keys + 63) / 64, old_tiles = prefix / 64;
        const u32 fresh = region + 4 * CHUNK;  // the tile that holds keys of this step, if it is this block's
        float o[4][32], m[2] = {NEG_INF, NEG_INF}, l[2] = {0.0f, 0.0f};
#pragma unroll
        for (int c = 0; c < 4; ++c)
#pragma unroll
            for (int i = 0; i < 32; ++i) o[c][i] = 0.0f;
        load_a<4>(QKV, use * G, p.qbuf + head * (4 * CHUNK), 0);
        for (int tile = old_tiles; tile < tiles; ++tile)
            if (tile % SPLITS == split) {
                const size_t at = (size_t(layer) * p.kv_tiles + tile) * (4 * TILE);
                load_tile(fresh, p.kbuf + at);
                load_tile(fresh + 4 * TILE, p.vbuf + at);
                copy_commit();
            }
        copied<0>();
        const float scale = 1.4426950408889634f / 16.0f;  // log2(e) / sqrt(HD)
#pragma unroll 1
        for (int tile = split; tile < tiles; tile += SPLITS) {
            const bool old = tile < old_tiles;
            float s[32];
#pragma unroll
            for (int i = 0; i < 32; ++i) s[i] = 0.0f;
#pragma unroll 1
            for (int c = 0; c < 4; ++c) {
                if (old) mbar_wait(ring.full_bar(), ring.phase);
                score(s, c, old ? ring.data() : fresh + c * TILE);
                if (old) ring.next();
            }
            gmma_wait<0>();
            if (old)
                for (int c = 4; c > 0; --c) release(c);
            float mx[2] = {m[0], m[1]};
#pragma unroll
            for (int i = 0; i < 32; ++i) {
                const int key = tile * 64 + (i >> 2) * 8 + 2 * q + (i & 1);
                s[i] = key < keys ? s[i] * scale : NEG_INF;
                mx[(i >> 1) & 1] = fmaxf(mx[(i >> 1) & 1], s[i]);
            }
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                mx[h] = fmaxf(mx[h], __shfl_xor_sync(~0u, mx[h], 1));
                mx[h] = fmaxf(mx[h], __shfl_xor_sync(~0u, mx[h], 2));
                const float f = exp2f(m[h] - mx[h]);  // a tile always has a valid key, so mx is finite
                m[h] = mx[h];
                l[h] *= f;
#pragma unroll
                for (int c = 0; c < 4; ++c)
#pragma unroll
                    for (int i = 0; i < 8; ++i) {
                        o[c][i * 4 + h * 2] *= f;
                        o[c][i * 4 + h * 2 + 1] *= f;
                    }
            }
            u32 pr[16];
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                const int h = i & 1;
                const float a = exp2f(s[2 * i] - m[h]), b = exp2f(s[2 * i + 1] - m[h]);
                l[h] += a + b;
                pr[i] = pack_bf16(a, b);
            }
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                if (old) mbar_wait(ring.full_bar(), ring.phase);
                weigh(o[c], pr, old ? ring.data() : fresh + (4 + c) * TILE);
                if (old) ring.next();
            }
            gmma_wait<0>();
            if (old)
                for (int c = 4; c > 0; --c) release(c);
        }
        // The 16 blocks of a head meet; each combines two of the 32 16-byte units of a row. A unit holds what one
        // thread has of four column octets, 8i + 2q and + 1; Wo's columns are packed in the same order.
        mark();
        const int active = min(tiles, SPLITS);
        float2* ml = reinterpret_cast<float2*>(p.ml);
        uint4* opart = reinterpret_cast<uint4*>(p.opart);
        if (split < active) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                l[h] += __shfl_xor_sync(~0u, l[h], 1);
                l[h] += __shfl_xor_sync(~0u, l[h], 2);
                const int row = warp * 16 + g + h * 8;
                if (row >= MQ) continue;
                if (q == 0) __stcg(ml + block * 64 + row, make_float2(m[h], l[h]));
                uint4* at = opart + (block * MQ + row) * 32 + q;
#pragma unroll
                for (int c = 0; c < 4; ++c)
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const float* v = o[c] + i * 16 + h * 2;
                        __stcg(at + c * 8 + i * 4, make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[4], v[5]),
                                                              pack_bf16(v[8], v[9]), pack_bf16(v[12], v[13])));
                    }
            }
        }
        arrive(HEAD_PARTS + head * 32);
        wait(HEAD_PARTS + head * 32, use * SPLITS);
        if (owns()) {
            const int row = own_row(), unit = split * 2 + (tid & 1);
            const float2* mls = ml + head * SPLITS * 64 + row;
            const uint4* from = opart + (head * SPLITS * MQ + row) * 32 + unit;
            uint4 w[SPLITS];
            float2 v[SPLITS];
#pragma unroll
            for (int i = 0; i < SPLITS; ++i) {
                const int j = min(i, active - 1);
                v[i] = __ldcg(mls + j * 64);
                w[i] = __ldcg(from + j * (MQ * 32));
            }
            float top = NEG_INF, sum = 0.0f, y[8];
#pragma unroll
            for (int i = 0; i < SPLITS; ++i) top = fmaxf(top, v[i].x);
#pragma unroll
            for (int j = 0; j < 8; ++j) y[j] = 0.0f;
#pragma unroll
            for (int i = 0; i < SPLITS; ++i) {
                const float f = i < active ? exp2f(v[i].x - top) : 0.0f;
                sum += f * v[i].y;
                const __nv_bfloat162* b = reinterpret_cast<const __nv_bfloat162*>(&w[i]);
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const float2 e = __bfloat1622float2(b[j]);
                    y[2 * j] += f * e.x;
                    y[2 * j + 1] += f * e.y;
                }
            }
            const float inv = 1.0f / sum;
#pragma unroll
            for (int j = 0; j < 8; ++j) y[j] *= inv;
            char* at = p.obuf + (head * 4 + (unit >> 3)) * CHUNK + row * 128 + (((unit & 7) ^ (row & 7)) << 4);
            *reinterpret_cast<uint4*>(at) = make_uint4(pack_bf16(y[0], y[1]), pack_bf16(y[2], y[3]),
                                                       pack_bf16(y[4], y[5]), pack_bf16(y[6], y[7]));
        }
        arrive(HEAD_DONE + head * 32);
    }

    __device__ void stage_gate_up(int step, int layer, u32 times) {
        float acc[32], r[2];
        const float* shift = p.shift_gu + (size_t(step) * p.layers + layer) * (2 * I) + block * 64;
        float2 s[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) s[j] = *reinterpret_cast<const float2*>(shift + j * 8 + 2 * q);
        load_x(X2, times, p.xs2, r);
        gemm<8, 1, 16>(acc);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = warp * 16 + g + h * 8;
            if (row >= MQ) continue;
            float y[8];
#pragma unroll
            for (int j = 0; j < 8; ++j)
                y[j] = gelu_tanh(acc[j * 4 + h * 2] * r[h] + s[j].x) * (acc[j * 4 + h * 2 + 1] * r[h] + s[j].y);
            const int unit = (block & 1) * 4 + q;
            char* at = p.act + (block >> 1) * CHUNK + row * 128 + ((unit ^ (row & 7)) << 4);
            *reinterpret_cast<uint4*>(at) = make_uint4(pack_bf16(y[0], y[1]), pack_bf16(y[2], y[3]),
                                                       pack_bf16(y[4], y[5]), pack_bf16(y[6], y[7]));
        }
    }

    __device__ void project_in() {
        if (owns()) {
            const float* a = p.actions + own_row() * AD;
#pragma unroll
            for (int i = 0; i < 4; ++i) x[i] = p.in_b[own_col() + i];
            for (int j = 0; j < AD; j += 4) {
                const float4 v = __ldcg(reinterpret_cast<const float4*>(a + j));
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float4 w = *reinterpret_cast<const float4*>(p.in_w + (own_col() + i) * AD + j);
                    x[i] += v.x * w.x + v.y * w.y + v.z * w.z + v.w * w.w;
                }
            }
        }
    }
    // actions += dt · (norm(x) Wout + bias): block b does row b, four threads to a column.
    __device__ void project_out(int step, u32 times) {
        if (block >= MQ) return;
        wait(X1, times * G);
        if (tid == 0) p.ssq[((uses + 1) % 4 * ROWS + block) * 16] = 0;
        const float r = norm_of(block);
        const int col = tid >> 2, part = tid & 3;
        float dot = 0.0f;
        for (int c = part; c < D / 8; c += 4) {  // 16-byte units of the row
            const char* at = p.xs1 + (c >> 3) * CHUNK + block * 128 + (((c & 7) ^ (block & 7)) << 4);
            const uint4 xv = __ldcg(reinterpret_cast<const uint4*>(at));
            const uint4 wv = *reinterpret_cast<const uint4*>(p.out_w + col * D + c * 8);
            const __nv_bfloat162* xb = reinterpret_cast<const __nv_bfloat162*>(&xv);
            const __nv_bfloat162* wb = reinterpret_cast<const __nv_bfloat162*>(&wv);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 xf = __bfloat1622float2(xb[i]), wf = __bfloat1622float2(wb[i]);
                dot += xf.x * wf.x + xf.y * wf.y;
            }
        }
        dot += __shfl_xor_sync(~0u, dot, 1);
        dot += __shfl_xor_sync(~0u, dot, 2);
        if (part == 0) p.actions[block * AD + col] += p.dt[step] * (dot * r + p.shift_out[step * AD + col]);
        arrive(OUT);
    }
};

// The cache of the prefix, [keys, HD] rows per layer, in the form that the kernel's copies read: 64-key tiles of four
// swizzled 64-column chunks, a key's dimensions i and i + HD/2 side by side. Rows past the prefix become zero.
extern "C" __global__ void __launch_bounds__(256)
pack_kv(const u64* keys, const u64* values, const int* lengths, char* kbuf, char* vbuf, int stride) {
    const int tile = blockIdx.x, layer = blockIdx.y, prefix = lengths[0];
    const size_t base = (size_t(layer) * gridDim.x + tile) * 4 * TILE;
    for (int i = threadIdx.x; i < 64 * 32; i += blockDim.x) {
        const int row = i >> 5, unit = i & 31, key = tile * 64 + row;
        uint4 k = make_uint4(0, 0, 0, 0), v = k;
        if (key < prefix) {
            const bf16* kr = reinterpret_cast<const bf16*>(keys[layer]) + size_t(key) * stride;
            const bf16* vr = reinterpret_cast<const bf16*>(values[layer]) + size_t(key) * stride;
            const uint2 a = *reinterpret_cast<const uint2*>(kr + unit * 4);
            const uint2 b = *reinterpret_cast<const uint2*>(kr + unit * 4 + HD / 2);
            k = make_uint4(__byte_perm(a.x, b.x, 0x5410), __byte_perm(a.x, b.x, 0x7632),
                           __byte_perm(a.y, b.y, 0x5410), __byte_perm(a.y, b.y, 0x7632));
            v = *reinterpret_cast<const uint4*>(vr + unit * 8);
        }
        const size_t at = base + (unit >> 3) * TILE + row * 128 + (((unit & 7) ^ (row & 7)) << 4);
        *reinterpret_cast<uint4*>(kbuf + at) = k;
        *reinterpret_cast<uint4*>(vbuf + at) = v;
    }
}

extern "C" __global__ void __launch_bounds__(160, 1)
expert(const __grid_constant__ Params p) {
    extern __shared__ __align__(1024) char smem[];
    const u32 base = smem_u32(smem);
    const u32 bars = base + REGION_A + SLOTS * TILE;
    Ring ring;
    ring.base = base + REGION_A;
    ring.full = bars;
    ring.empty = bars + SLOTS * 8;
    const int tid = threadIdx.x, block = blockIdx.x, rank = block / 16, cluster = block % 16;
    if (tid == 0) {
        for (int i = 0; i < SLOTS; ++i) {
            mbar_init(ring.full + i * 8, 1);
            mbar_init(ring.empty + i * 8, 4);
        }
        fence_async();
    }
    const int warp = __shfl_sync(~0u, tid >> 5, 0);  // uniform, and known to be
    __syncthreads();
    if (warp == 4) {
        if (tid == 128) produce(p, ring, block);
    } else {
        Consumer c{p, ring, base};
        c.block = block; c.rank = rank; c.cluster = cluster;
        c.tid = tid; c.warp = warp; c.lane = tid & 31; c.g = c.lane >> 2; c.q = c.lane & 3;
        c.x[0] = c.x[1] = c.x[2] = c.x[3] = 0.0f;
        const int prefix = __shfl_sync(~0u, p.lengths[0], 0), pos0 = p.lengths[1];
        for (int step = 0; step < p.steps; ++step) {
            const size_t row = size_t(step) * p.layers;
            const u32 first = step * (p.layers + 1) + 1;  // publications of x1 up to here
            if (step) c.wait(OUT, step * MQ);
            c.project_in();
            c.publish(p.xs1, X1, c.own_columns(p.scale1 + row * D));
            for (int layer = 0; layer < p.layers; ++layer) {
                const size_t at = (row + layer) * D;
                const u32 use = row + layer + 1;  // of what is used once a layer
                if (block < 64) c.stage_qkv<3>(step, layer, prefix, pos0, first + layer);
                else c.stage_qkv<2>(step, layer, prefix, pos0, first + layer);
                c.arrive(QKV);
                c.stage_attention(layer, prefix, use);
                {
                    const float4 gate = c.own_columns(p.gate1 + at), scale = c.own_columns(p.scale2 + at);
                    c.load_a<4>(HEAD_DONE + rank * 32, use * SPLITS, p.obuf + rank * 4 * CHUNK, cluster / 4);
                    float acc[32];
                    c.gemm<8, 1, 4>(acc);
                    c.reduce_into_x(acc, gate);
                    c.publish(p.xs2, X2, scale);
                }
                c.stage_gate_up(step, layer, use);
                c.arrive(ACT + rank * 32);
                {
                    const float* next = layer + 1 < p.layers ? p.scale1 + at + D : p.scale_f + size_t(step) * D;
                    const float4 gate = c.own_columns(p.gate2 + at), scale = c.own_columns(next);
                    c.load_a<8>(ACT + rank * 32, use * 16, p.act + rank * 8 * CHUNK, cluster / 4);
                    float acc[32];
                    c.gemm<8, 1, 8>(acc);
                    c.reduce_into_x(acc, gate);
                    c.publish(p.xs1, X1, scale);
                }
            }
            c.project_out(step, first + p.layers);
        }
    }
}
