// Which rows and keys a block of attention_prefill.cu has, its tiles' copies, and its products.
#pragma once
#include "tma.cuh"

// GROUP: query heads of a key head, 1 to 64 and a power of two. SPLITS: 1 or 2.
constexpr int ROWS = 128, HD = 256, CHUNKS = HD / 64, KEYS = 64, SLOTS = 5;  // keys of a tile; tiles in flight
constexpr int Q_CHUNK = ROWS * 128, Q_SIZE = CHUNKS * Q_CHUNK, CHUNK = KEYS * 128, SLOT = CHUNKS * CHUNK;
constexpr int PIECES = 17;                       // of 16 bytes: what a thread gives to its like of the other block
constexpr int PART = SPLITS > 1 ? 128 * 16 : 0;  // bytes of the last of them
constexpr float LATITUDE = 8.0f;                 // sums are scaled anew where weights would be larger than 2 to this power

// ---- boxes of three and four dimensions, the first the contiguous one
__device__ __forceinline__ void box_load(u32 dst, const TensorMap& map, int x, int y, int z, u32 bar) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
        ::"r"(dst), "l"(reinterpret_cast<u64>(&map)), "r"(x), "r"(y), "r"(z), "r"(bar) : "memory");
}
__device__ __forceinline__ void box_load(u32 dst, const TensorMap& map, int x, int y, int z, int w, u32 bar) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];"
        ::"r"(dst), "l"(reinterpret_cast<u64>(&map)), "r"(x), "r"(y), "r"(z), "r"(w), "r"(bar) : "memory");
}

// ---- products. s[64 × 64] (+)= A[64 × 16] · B[64 × 16]ᵀ, both in shared memory, K-major; o[64 × 256] += P[64 × 16] ·
// B[16 × 256], P in registers, B with its columns contiguous 64 at a time.
#define F8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define F16 F8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define F32 F16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
__device__ __forceinline__ void multiply(float (&r)[32], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32" ELEM " {" F32 "}, %32, %33, p, 1, 1, 0, 0;\n}"
                 : D16(r, 0), D16(r, 16) : "l"(a), "l"(b), "r"(add));
}
#define D64(d, i) D16(d, i), D16(d, i + 16), D16(d, i + 32), D16(d, i + 48)
__device__ __forceinline__ void weigh(float (&d)[128], const u32* a, u64 b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32" ELEM " {" F32
        ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "{%128, %129, %130, %131}, %132, p, 1, 1, 1;\n}"
        : D64(d, 0), D64(d, 64) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
// gmma_desc of columns that lie `apart` bytes from the 64 before them.
__device__ __forceinline__ u64 wide_desc(u32 addr, u32 apart) {
    const u64 plain = uniform_desc(addr);
    return (plain & ~0x3FFF0000ull) | (static_cast<u64>(apart >> 4) << 16);
}
// The compiler may not move uses of an accumulator across this.
template <int N> __device__ __forceinline__ void pin(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// mbar_wait that says whether it gave up: a kernel that may stop while products are in flight has them one by one.
__device__ __forceinline__ bool met_in_time(u32 bar, u32 parity) {
    u32 done = 0;
    for (u32 spins = 0; !done && spins < SPIN_LIMIT; ++spins) {
        asm volatile(
            "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
            : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    }
    return done;
}

struct Params {
    const int *cu_seqlens, *indices, *last;
    elem* o;                      // [tokens, heads, 256]
    int tokens, requests, heads;
    float factor;                 // of scores, in powers of two
};

struct Work {
    int first, queries, all;  // the request's first query; its queries; and with rows of no request behind them
    int top;                  // the cluster's first row: row r is query r / GROUP, head r % GROUP of its key head
    int page, keys;
};

// Cluster `tile` of all requests, SPAN rows to each, one request after another. Rows of q that belong to no request count
// for the last one.
template <int SPAN> __device__ __forceinline__ bool find(const Params& p, int tile, int lane, Work& work) {
    for (int base = 0; base < p.requests; base += 32) {
        const int i = base + lane;
        int begin = 0, own = 0, keys = 0, page = 0;
        if (i < p.requests) {
            begin = __ldcg(p.cu_seqlens + i);
            own = __ldcg(p.cu_seqlens + i + 1);
            keys = __ldcg(p.last + i);
            page = __ldcg(p.indices + i);
        }
        const int end = i + 1 == p.requests ? p.tokens : own;
        const int tiles = i < p.requests ? ((end - begin) * GROUP + SPAN - 1) / SPAN : 0;
        int sum = tiles;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const int other = __shfl_up_sync(~0u, sum, d);
            if (lane >= d) sum += other;
        }
        const u32 past = __ballot_sync(~0u, sum > tile);
        if (past) {
            const int at = __ffs(past) - 1;
            work.first = __shfl_sync(~0u, begin, at);
            work.queries = __shfl_sync(~0u, own - begin, at);
            work.all = __shfl_sync(~0u, end - begin, at);
            work.top = (tile - __shfl_sync(~0u, sum - tiles, at)) * SPAN;
            work.page = __shfl_sync(~0u, page, at);
            work.keys = __shfl_sync(~0u, keys, at);
            return true;
        }
        tile -= __shfl_sync(~0u, sum, 31);
    }
    return false;
}

struct Ring {
    u32 slots, full, empty, start;  // `start`: of each chunk of the queries and of the first keys
    int slot = 0;
    u32 phase = 0;
    __device__ u32 data() const { return slots + slot * SLOT; }
    __device__ u32 filled() const { return full + 8 * slot; }
    __device__ u32 free() const { return empty + 8 * slot; }
    __device__ void next() {
        if (++slot == SLOTS) { slot = 0; phase ^= 1; }
    }
};

// The keys of a block: one tile of `first` keys, which may be fewer, and whole ones.
struct Tiles {
    int begin, first, count;
    __device__ int at(int j) const { return begin + (j ? first + (j - 1) * KEYS : 0); }
};

__device__ __forceinline__ void fetch(
    Ring& ring, const Tiles& tiles, const Work& work, int head, const TensorMap& keys, const TensorMap& values) {
    const int items = 2 * tiles.count;
    // keys 0, keys 1, values 0, keys 2, values 1, …, keys n - 1, values n - 2, values n - 1
    for (int i = 0; i < items; ++i, ring.next()) {
        if (i >= SLOTS) mbar_wait(ring.free(), ring.phase ^ 1);
        const bool value = i == items - 1 || (i > 0 && i % 2 == 0);
        const int j = i == 0 ? 0 : i == items - 1 ? items / 2 - 1 : value ? i / 2 - 1 : (i + 1) / 2;
        if (i)
            mbar_expect(ring.filled(), SLOT);
        else
            mbar_arrive(ring.filled());
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            const u32 to = ring.data() + c * CHUNK, bar = i ? ring.filled() : ring.start + 8 * c;
            if (i == 0) mbar_expect(bar, CHUNK);
            box_load(to, value ? values : keys, c * 64, head, tiles.at(j), work.page, bar);
        }
    }
}

// Scores become weights, 2^(factor · (score - m)); m and l follow. Returns what sums so far are to be multiplied by:
// 1 for all rows of a warp unless one of them needs it.
struct Rows {
    float m[2] = {NEG_INF, NEG_INF}, l[2] = {0.0f, 0.0f};
    __device__ __forceinline__ bool weights(float (&s)[KEYS / 2], float factor, float (&scale)[2]) {
        float top[2] = {NEG_INF, NEG_INF};
#pragma unroll
        for (int j = 0; j < KEYS / 2; ++j) top[j / 2 % 2] = fmaxf(top[j / 2 % 2], s[j]);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            top[h] = fmaxf(top[h], __shfl_xor_sync(~0u, top[h], 1));
            top[h] = fmaxf(top[h], __shfl_xor_sync(~0u, top[h], 2));
        }
        const bool grown = (top[0] - m[0]) * factor > LATITUDE || (top[1] - m[1]) * factor > LATITUDE;
        const bool anew = __any_sync(~0u, grown);
        if (anew) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float greatest = fmaxf(m[h], top[h]);
                scale[h] = exp2_fast((m[h] - greatest) * factor);
                l[h] *= scale[h];
                m[h] = greatest;
            }
        }
        const float least[2] = {m[0] * factor, m[1] * factor};
        float sum[2] = {0.0f, 0.0f};
#pragma unroll
        for (int j = 0; j < KEYS / 2; ++j) {
            s[j] = exp2_fast(fmaf(s[j], factor, -least[j / 2 % 2]));
            sum[j / 2 % 2] += s[j];
        }
        l[0] += sum[0];
        l[1] += sum[1];
        return anew;
    }
    static __device__ __forceinline__ float exp2_fast(float x) {
        float y;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
        return y;
    }
};
