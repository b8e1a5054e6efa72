// One of a block's 256 threads that multiply: who it is, reading what other blocks publish, and products.
#pragma once
#include "expert/exchange.cuh"
#include "expert/ring.cuh"
#include "expert/shared.cuh"
#include "expert/wgmma_registers.cuh"

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
    __device__ int row() const { return tile() * 16 + g() + group() * 8; }  // of this thread after `exchange`
    __device__ char* copy(char* base, u32 use, int bytes) const { return base + (use & 1) * bytes; }

    // x: row tid / 2, columns 64·cluster + 8·rank + 4·(tid % 2) .., in shared memory
    __device__ bool owns() const { return tid < 2 * MQ; }
    __device__ int own_row() const { return tid >> 1; }
    __device__ int own_col() const { return cluster() * 64 + rank() * 8 + (tid & 1) * 4; }
    __device__ static u32 x_area() { return smem_base() + SLOTS * ITEM + 2 * SCRATCH + 2 * SLOTS * 8; }
    __device__ u32 own_x() const { return x_area() + tid * 16; }
    __device__ float4 own_columns(const float* table) const {
        return owns() ? *reinterpret_cast<const float4*>(table + own_col()) : make_float4(0.f, 0.f, 0.f, 0.f);
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

    // A copy of a fragment, made here. The tensor core wants the words in another order than loads bring them; left to
    // itself the compiler moves them right behind the loads, which then are all back before the first product begins.
    __device__ uint4 copied(const uint4& v) const {
        const u32 zero = static_cast<u32>(p.layers) >> 30;  // which the compiler does not know
        uint4 t;
        asm volatile("xor.b32 %0, %4, %8;\nxor.b32 %1, %5, %8;\nxor.b32 %2, %6, %8;\nxor.b32 %3, %7, %8;"
                     : "=r"(t.x), "=r"(t.y), "=r"(t.z), "=r"(t.w) : "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(zero));
        return t;
    }

    // Until these N k-steps' fragments, 2,048 bytes apart, are all there; every lane of a warp waits for all of them.
    template <int N, bool WORDS> __device__ static void settle(uint4 (&v)[N], const char* at) {
        u32 spins = 0;
        while (__any_sync(~0u, missing<N, WORDS>(v))) {
#pragma unroll
            for (int k = 0; k < N; ++k) {
                const uint4 one[1] = {v[k]};
                if (missing<1, WORDS>(one)) v[k] = load_relaxed4<WORDS>(at + k * 2048);
            }
            if (++spins > SPIN_LIMIT) __trap();
        }
    }
    template <bool WORDS> __device__ static void fetch(uint4 (&v)[4], const char* at) {
#pragma unroll
        for (int k = 0; k < 4; ++k) v[k] = load_relaxed4<WORDS>(at + k * 2048);
    }
    // Chunk 0's fragments; waiting for the first of them alone keeps L2 free of futile reads.
    template <bool WORDS> __device__ static void fetch_first(uint4 (&v)[4], const char* at) {
        uint4 first[1] = {load_relaxed4<WORDS>(at)};
        settle<1, WORDS>(first, at);
        v[0] = first[0];
#pragma unroll
        for (int k = 1; k < 4; ++k) v[k] = load_relaxed4<WORDS>(at + k * 2048);
    }

    __device__ const u64* squares(int row) const { return p.ssq + (((uses - 1) & 3) * ROWS + row) * 16; }
    __device__ const u64* squares() const { return squares(min(row(), MQ - 1)); }
    __device__ float norm(u64 sum, const u64* at) const {  // 1 / rms; the sum's low byte counts the blocks
        u32 spins = 0;
        while ((sum & 255) != G) {
            sum = load_relaxed(at);
            if (++spins > SPIN_LIMIT) __trap();
        }
        return rsqrtf(static_cast<float>(sum >> 8) * (1.0f / SQUARES / D) + p.eps);
    }

    // acc = A[64, K of this warpgroup] · W[8·N8, the same K]ᵀ. Of CHUNKS (a power of two) chunks of 64 columns the
    // warpgroups take every other one. The first differs between blocks that read the same, so that they do not all
    // ask the same slices of L2 at once; the weights are packed in the same order. `sum` is the row's sum of squares.
    template <int N8, int CHUNKS> __device__ void product(float (&acc)[N8 * 4], const char* src, int first, u64* sum) {
        constexpr int LOCAL = CHUNKS / 2, PER = N8 == 8 ? 1 : 2;  // chunks, and those of an item of the ring
        constexpr int ASKED = LOCAL < AHEAD ? LOCAL : AHEAD;
        const auto at = [&](int c) { return src + ((2 * c + group() + first) & (CHUNKS - 1)) * TILE + unit(); };
        uint4 a[LOCAL][4];
        fetch_first<false>(a[0], at(0));
#pragma unroll
        for (int l = 1; l < ASKED; ++l) fetch<false>(a[l], at(l));
        mark();
#pragma unroll
        for (int i = 0; i < N8 * 4; ++i) acc[i] = 0.0f;
#pragma unroll
        for (int item = 0; item < LOCAL / PER; ++item) {
            ring.wait_full();
            const u64 w = uniform_desc(ring.data() + group() * (N8 * 1024));
            if (sum && item == LOCAL / PER - 2) *sum = load_relaxed(squares());
#pragma unroll
            for (int j = 0; j < PER; ++j) settle<4, false>(a[item * PER + j], at(item * PER + j));
            uint4 t[PER * 4];
#pragma unroll
            for (int j = 0; j < PER * 4; ++j) t[j] = copied(a[item * PER + j / 4][j % 4]);
            gmma_fence();
#pragma unroll
            for (int j = 0; j < PER; ++j)
#pragma unroll
                for (int k = 0; k < 4; ++k) gmma<N8>(acc, t[j * 4 + k], w + (j * 2 * N8 * 1024 + k * 32) / 16);
            gmma_commit();
            if (item) {
                gmma_wait<1>();
                release(-1);
#pragma unroll
                for (int l = (item - 1) * PER + ASKED; l < item * PER + ASKED && l < LOCAL; ++l) fetch<false>(a[l], at(l));
            }
            ring.next();
        }
        gmma_wait<0>();
        gmma_pin(acc);
        release(-1);
        mark();
    }
    // The sum of both warpgroups' products: warpgroup 0 gets its rows 16t + g, warpgroup 1 rows 16t + g + 8, two
    // adjacent columns of each octet.
    template <int N8> __device__ void exchange(const float (&acc)[N8 * 4], float (&y)[N8][2]) {
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
};
