// One of a block's 256 threads that multiply: who it is, reading what other blocks publish, and products.
#pragma once
#include "expert/exchange.cuh"
#include "expert/ring.cuh"
#include "expert/shared.cuh"
#include "expert/wgmma_registers.cuh"

__device__ __forceinline__ void pause(u32 cycles) {
    for (const u32 begin = static_cast<u32>(clock()); static_cast<u32>(clock()) - begin < cycles;) {}
}

struct Consumer {
    const Params& p;
    Ring ring;
    u32 turn = 0;     // the half of the exchange area to use next
    u32 uses = 0;     // how often x has been published
    int tid;          // all else about a thread is computed from it where it is needed: registers are scarce

    __device__ static int block() { return blockIdx.x; }
    __device__ static int rank() { return blockIdx.x / 16; }
    __device__ static int cluster() { return blockIdx.x % 16; }
    __device__ int group() const { return tid >> 7; }  // warpgroup
    __device__ int tile() const { return tid >> 5 & 3; }
    __device__ int lane() const { return tid & 31; }
    __device__ int g() const { return tid >> 2 & 7; }
    __device__ int q() const { return tid & 3; }
    // Byte of this thread's fragment in a k-step; lanes without a row read another lane's.
    __device__ int unit() const {
        return (tile() * 16 < MQ ? tile() * 512 : 0) + (tile() * 16 + g() < MQ ? lane() : q()) * 16;
    }
    // This thread's rows: two, eight apart, of a fragment, the first of them within MQ or none; and one after
    // `exchange_rows`.
    __device__ int first_row() const { return tile() * 16 + g(); }
    __device__ int row() const { return first_row() + group() * 8; }
    __device__ char* copy(char* base, u32 use, int bytes) const { return base + (use & 1) * bytes; }

    // x: warpgroup 0's threads have its rows' columns 64·cluster + 8·rank + 2q and the next, in shared memory
    __device__ bool owns() const { return tid < 128 && first_row() < MQ; }
    __device__ int own_col() const { return cluster() * 64 + rank() * 8 + 2 * q(); }
    __device__ int own_word() const { return cluster() * TILE + fragment(first_row(), rank() * 4 + q()); }
    __device__ static u32 x_area() { return smem_base() + SLOTS * ITEM + 2 * SCRATCH + 2 * SLOTS * 8; }
    __device__ u32 own_x() const { return x_area() + (tid & 127) * 16; }
    __device__ float2 own_columns(const float* table) const {
        return owns() ? *reinterpret_cast<const float2*>(table + own_col()) : make_float2(0.f, 0.f);
    }
    __device__ float4 x() const { return owns() ? as_float4(load_shared4(own_x())) : make_float4(0.f, 0.f, 0.f, 0.f); }
    __device__ void set_x(const float4& v) const { store_shared4(own_x(), v); }

#if TRACE
    int marks = 0;
    __device__ void mark() {
        if (tid == 0 && marks < TRACE) p.trace[block() * TRACE + marks++] = clock64();
    }
#else
    __device__ void mark() {}
#endif
    // What is computed from `tid` is computed where it is used, not kept in registers (and spilled) over all stages.
    __device__ void forget() { asm volatile("" : "+r"(tid)); }
    __device__ void sync() const { asm volatile("bar.sync 1, 256;" ::: "memory"); }
    __device__ u32 take_scratch() {  // written before a sync and read after it; the next user takes the other half
        const u32 mine = smem_base() + SLOTS * ITEM + turn;
        turn ^= SCRATCH;
        return mine;
    }
    __device__ void release(int n, u32 share = 1) const {
        if (lane() == 0) ring.release(n, share);
    }

    // Until these N k-steps' fragments, 2,048 bytes apart, are all there; every lane of a warp waits for all of them.
    template <int N, bool WORDS> __device__ static void settle(uint4 (&v)[N], const char* at) {
        u32 spins = 0;
        while (__any_sync(~0u, missing<N, WORDS>(v))) {
#pragma unroll
            for (int k = 0; k < N; ++k) renew<WORDS>(v[k], at + k * 2048);
            if (++spins > SPIN_LIMIT) __trap();
        }
    }
    template <bool WORDS> __device__ static void fetch(uint4 (&v)[4], const char* at) {
#pragma unroll
        for (int k = 0; k < 4; ++k) v[k] = load_relaxed4<WORDS>(at + k * 2048);
    }
    __device__ const u64* squares(int row) const { return p.ssq + (((uses - 1) & 3) * ROWS + min(row, MQ - 1)) * 16; }
    __device__ float norm(u64 sum, const u64* at) const {  // 1 / rms; the sum's low byte counts the blocks
        u32 spins = 0;
        while ((sum & 255) != G) {
            sum = load_relaxed(at);
            if (++spins > SPIN_LIMIT) __trap();
        }
        return rsqrtf(static_cast<float>(sum >> 8) * (1.0f / SQUARES / D) + p.eps);
    }

    // Until chunks from .. to of `a` are all there. What is missing is asked for again, as far as `a` goes: all
    // that a look finds missing, not chunk by chunk.
    template <bool WORDS, int LOCAL, typename At>
    __device__ void settle_chunks(uint4 (&a)[LOCAL][4], const At& at, int from, int to) const {
        u32 spins = 0;
        for (;;) {
            u32 top = 0;
#pragma unroll
            for (int l = 0; l < LOCAL; ++l)
                if (l >= from && l < to) top = max(top, largest<4, WORDS>(a[l]));
            if (!__any_sync(~0u, top == EMPTY)) return;
#pragma unroll
            for (int l = 0; l < LOCAL; ++l)
                if (l >= from) {
                    const char* chunk = at(l);
#pragma unroll
                    for (int k = 0; k < 4; ++k) renew<WORDS>(a[l][k], chunk + k * 2048);
                }
            if (++spins > SPIN_LIMIT) __trap();
        }
    }

    // acc = A[64, K of this warpgroup] · W[8·N8, the same K]ᵀ. Of CHUNKS (a power of two) chunks of 64 columns the
    // warpgroups take every other one. The first differs between blocks that read the same, so that they do not all
    // ask the same slices of L2 at once; the weights are packed in the same order. All chunks are asked for at once
    // when the first words of one are there (that alone keeps L2 free of futile reads), and multiplied four at a time:
    // waiting for each alone costs more instructions, waiting for all leaves the tensor core idle. `late` asks for what
    // is needed after the product, when nothing waits for it any more: loads in flight wait for each other.
    template <int N8, int CHUNKS, bool WORDS, typename Late>
    __device__ void product(float (&acc)[N8 * 4], const char* src, int first, const Late& late) {
        constexpr int LOCAL = CHUNKS / 2, PER = N8 == 8 ? 1 : 2;  // chunks, and those of an item of the ring
        constexpr int NEED = 4;
        const auto at = [&](int c) { return src + ((2 * c + group() + first) & (CHUNKS - 1)) * TILE + unit(); };
        uint4 a[LOCAL][4], one[1] = {load_relaxed4<WORDS>(at(0))};
        settle<1, WORDS>(one, at(0));
        a[0][0] = one[0];
#pragma unroll
        for (int l = 0; l < LOCAL; ++l)
#pragma unroll
            for (int k = !l; k < 4; ++k) a[l][k] = load_relaxed4<WORDS>(at(l) + k * 2048);
        mark();
#pragma unroll
        for (int i = 0; i < N8 * 4; ++i) acc[i] = 0.0f;
#pragma unroll
        for (int l = 0; l < LOCAL; l += PER) {
            ring.wait_full();
            const u64 w = uniform_desc(ring.data() + group() * (N8 * 1024));
            if (l % NEED == 0) settle_chunks<WORDS>(a, at, l, l + NEED);
            gmma_fence();
#pragma unroll
            for (int j = 0; j < PER; ++j)
#pragma unroll
                for (int k = 0; k < 4; ++k) gmma<N8>(acc, a[l + j][k], w + (j * 2 * N8 * 1024 + k * 32) / 16);
            gmma_commit();
            if (l == min((LOCAL - 1) / NEED * NEED + PER, LOCAL - PER)) late();
            if (l) {
                gmma_wait<1>();
                release(-1);
            }
            ring.next();
        }
        gmma_wait<0>();
        gmma_pin(acc);
        release(-1);
        mark();
    }
    // The sum of both warpgroups' products, by rows: warpgroup 0 gets its rows 16t + g, warpgroup 1 rows 16t + g + 8,
    // two adjacent columns of each octet.
    template <int N8> __device__ void exchange_rows(const float (&acc)[N8 * 4], float (&y)[N8][2]) {
        const u32 area = take_scratch() + (tid & 127) * 8;
#pragma unroll
        for (int j = 0; j < N8; ++j) {
            const float* give = acc + j * 4;
            store_shared2(area + (group() * N8 + j) * 1024, group() ? give[0] : give[2], group() ? give[1] : give[3]);
        }
        sync();
#pragma unroll
        for (int j = 0; j < N8; ++j) {
            const float2 v = load_shared2(area + ((group() ^ 1) * N8 + j) * 1024);
            y[j][0] = (group() ? acc[j * 4 + 2] : acc[j * 4]) + v.x;
            y[j][1] = (group() ? acc[j * 4 + 3] : acc[j * 4 + 1]) + v.y;
        }
    }
    // The same by octets: warpgroup w gets octets 4w .. + 3; of each, two columns of row 16t + g, then of row 16t + g +
    // 8. Warpgroup 1's weights have the octets 4 .. 7 in front of 0 .. 3: each warpgroup keeps the first half of what
    // it has.
    __device__ void exchange_octets(const float (&acc)[32], float4 (&y)[4]) {
        const u32 area = take_scratch() + (tid & 127) * 16;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float* give = acc + 16 + j * 4;
            store_shared4(area + (group() * 4 + j) * 2048, make_float4(give[0], give[1], give[2], give[3]));
        }
        sync();
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float* keep = acc + j * 4;
            const float4 v = as_float4(load_shared4(area + ((group() ^ 1) * 4 + j) * 2048));
            y[j] = make_float4(keep[0] + v.x, keep[1] + v.y, keep[2] + v.z, keep[3] + v.w);
        }
    }
};
