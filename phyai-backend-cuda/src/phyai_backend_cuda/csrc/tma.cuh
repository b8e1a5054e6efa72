// Wrappers over PTX for tiles that are described once (tensor maps) and fetched for a whole cluster (sm_90a).
#pragma once
#include "cluster.cuh"

struct alignas(64) TensorMap { char bytes[128]; };  // what the driver's cuTensorMapEncodeTiled fills in

__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<u64>(&map)) : "memory");
}
// The box of `map` at (x, y), x along rows, into shared memory; its bytes complete on `bar`. What lies outside is zero.
__device__ __forceinline__ void tile_load(u32 dst, const TensorMap& map, int x, int y, u32 bar) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        ::"r"(dst), "l"(reinterpret_cast<u64>(&map)), "r"(x), "r"(y), "r"(bar) : "memory");
}
// The same of a map with four dimensions.
__device__ __forceinline__ void tile_load(u32 dst, const TensorMap& map, int x, int y, int z, int w, u32 bar) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];"
        ::"r"(dst), "l"(reinterpret_cast<u64>(&map)), "r"(x), "r"(y), "r"(z), "r"(w), "r"(bar) : "memory");
}
// The first into every block of the cluster that `mask` has a bit for: at the same address, on the same barrier of each.
__device__ __forceinline__ void tile_load_all(u32 dst, const TensorMap& map, int x, int y, u32 bar, u32 mask) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;"
        ::"r"(dst), "l"(reinterpret_cast<u64>(&map)), "r"(x), "r"(y), "r"(bar), "h"(static_cast<unsigned short>(mask))
        : "memory");
}
// A box from shared memory; what lies outside is left out.
__device__ __forceinline__ void tile_store(const TensorMap& map, int x, int y, u32 src) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
        ::"l"(reinterpret_cast<u64>(&map)), "r"(x), "r"(y), "r"(src) : "memory");
}
__device__ __forceinline__ void tile_store(const TensorMap& map, int x, int y, int z, int w, u32 src) {
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4}], [%5];"
        ::"l"(reinterpret_cast<u64>(&map)), "r"(x), "r"(y), "r"(z), "r"(w), "r"(src) : "memory");
}
__device__ __forceinline__ void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// This thread's stores have read their shared memory.
__device__ __forceinline__ void store_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// Makes initialized barriers known to the copy engine and to the cluster.
__device__ __forceinline__ void fence_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Arrives at a barrier of a block of the cluster: `bar` is an address from peer(). It says that wgmma and the copy engine
// are done with shared memory, which they have waited for; with `.release.cluster` it would be a fence of the whole
// device's memory too, some 1,300 cycles each time.
__device__ __forceinline__ void mbar_arrive_at(u32 bar) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}
template <int N> __device__ __forceinline__ void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
__device__ __forceinline__ void named_barrier(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Four 8 × 8 matrices of 16-bit elements as tensor cores hold them; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrices(u32 addr, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(addr), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
