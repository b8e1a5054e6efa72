// Attention of many queries to the keys of one page, every query to all of them.
//
// The query heads that share a key head are rows beside each other: row r of a request is query r / GROUP, head
// r % GROUP. A block has 128 such rows, 64 to each of two warpgroups, and all keys or, where a cluster of two blocks has
// the rows (SPLITS), half of them; one thread of a third warpgroup fetches tiles of keys and values into a ring. A
// warpgroup's scores of one tile are computed while the values of the tile before are added up, its exponentials while
// the other warpgroup multiplies, in turns. In the end each block of a cluster finishes the rows of one warpgroup: the
// other one's sums, divided by its weights, go to the same warpgroup of the other block.
#include "attention_prefill.cuh"

extern "C" __global__ void __launch_bounds__(384, 1) attention_prefill(
    const __grid_constant__ TensorMap queries, const __grid_constant__ TensorMap keys,
    const __grid_constant__ TensorMap values, const __grid_constant__ Params p) {
    extern __shared__ __align__(1024) char smem[];
    const u32 base = smem_u32(smem), ring = base + Q_SIZE, last = ring + SLOTS * SLOT;
    const u32 bars = last + PART, start = bars + 16 * SLOTS, met = start + 8 * CHUNKS;
    const int tid = threadIdx.x, lane = tid & 31, warp = __shfl_sync(~0u, tid >> 5, 0), group = warp / 4;
    const u32 split = SPLITS > 1 ? cluster_rank() : 0;
    launch_next();
    if (tid == 0) {
        prefetch_map(queries);
        prefetch_map(keys);
        prefetch_map(values);
        for (int i = 0; i < SLOTS; ++i) {
            mbar_init(bars + 8 * i, 1);
            mbar_init(bars + 8 * (SLOTS + i), 2);
        }
        for (int c = 0; c < CHUNKS; ++c) mbar_init(start + 8 * c, 2);
        mbar_init(met, 1);
        fence_barriers();
        if (SPLITS > 1) mbar_expect(met, PIECES * 16 * 128);
    }
    __syncthreads();
    wait_previous();
    const int head = blockIdx.y;
    const auto fetch_queries = [&](int query) {
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            mbar_expect(start + 8 * c, Q_CHUNK);
            box_load(base + c * Q_CHUNK, queries, c * 64, head * GROUP, query, start + 8 * c);
        }
    };
    // The only request begins at the first query: no need to wait for the metadata.
    const bool early = p.requests == 1;
    if (tid == 0 && early) fetch_queries(blockIdx.x / SPLITS * (ROWS / GROUP));
    Work work;
    if (!find<ROWS>(p, blockIdx.x / SPLITS, lane, work)) return;  // as every block of the cluster does
    const int all = work.top < work.queries * GROUP ? max(work.keys, 0) : 0;
    const int middle = SPLITS > 1 ? min((all + 31) / 32 * 16, all) : 0;
    const int length = SPLITS > 1 && !split ? middle : all - middle;
    const int count = (length + KEYS - 1) / KEYS;
    const Tiles tiles{split ? middle : 0, length - (count - 1) * KEYS, count};
    Ring at{ring, bars, bars + 8 * SLOTS, start};

    if (group == 0) {
        fewer_registers<24>();
        if (tid == 0) {
            if (count > 0 && !early) fetch_queries(work.first + work.top / GROUP);
            fetch(at, tiles, work, head, keys, values);
            if (count == 0 && early)  // no block ends while something is still to be written to it
                for (int c = 0; c < CHUNKS; ++c) {
                    mbar_arrive(start + 8 * c);
                    mbar_wait(start + 8 * c, 0);
                }
        }
        __syncwarp();
        if (SPLITS > 1) {
            cluster_arrive();
            cluster_wait();
        }
    } else {
        more_registers<240>();
        const int mine = group - 1, q = lane & 3;
        const bool leader = tid % 128 == 0;
        const u32 own = base + mine * 8192;  // this warpgroup's rows of Q: of the first chunk, Q_CHUNK before the next
        // The part of matrix lane / 8 of four that this lane gives the address of: rows r and unit 2·i + lane / 16.
        const int r = (warp % 4) * 16 + (lane / 8 & 1) * 8 + lane % 8;
        int left = 2 * count - SLOTS;  // items that wait for a place
        const auto released = [&](int slot) {
            if (left-- > 0 && leader) mbar_arrive(bars + 8 * (SLOTS + slot));
        };
        bool late = false;
        float o[128], s[KEYS / 2];
        u32 weight[KEYS / 4];
        Rows rows;
#pragma unroll
        for (int i = 0; i < 128; ++i) o[i] = 0.0f;
        const auto score = [&](u32 k) {
            const u64 a = uniform_desc(own), b = uniform_desc(k);
            gmma_fence();
#pragma unroll
            for (int i = 0; i < HD / 16; ++i) {
                    multiply(s, a + (i / 4 * (Q_CHUNK / 16) + i % 4 * 2), b + (i / 4 * (CHUNK / 16) + i % 4 * 2), i);
            }
            gmma_commit();
        };
        const auto add_up = [&](u32 v) {
            const u64 b = wide_desc(v, CHUNK);
            gmma_fence();
#pragma unroll
            for (int i = 0; i < KEYS / 16; ++i) weigh(o, weight + 4 * i, b + 128 * i);
            gmma_commit();
        };
        const auto pack = [&]() {
#pragma unroll
            for (int i = 0; i < KEYS / 4; ++i) weight[i] = pack_elem(s[2 * i], s[2 * i + 1]);
        };
        if (count > 0) {
            float scale[2];
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) {  // as they arrive
                late |= !met_in_time(start + 8 * c, 0);
                const u64 a = uniform_desc(own + c * Q_CHUNK), b = uniform_desc(at.data() + c * CHUNK);
                gmma_fence();
#pragma unroll
                for (int i = 0; i < 4; ++i) multiply(s, a + 2 * i, b + 2 * i, c + i);
                gmma_commit();
            }
            gmma_wait<0>();
            pin(s);
            released(at.slot);
            at.next();
            if (tiles.first < KEYS) {
#pragma unroll
                for (int i = 0; i < KEYS / 2; ++i)
                    if (i / 4 * 8 + 2 * q + i % 2 >= tiles.first) s[i] = NEG_INF;
            }
            rows.weights(s, p.factor, scale);
            pack();
            const int turn = SPLITS > 1 ? int(mine == split) : mine;  // who gives its sums away goes first
            if (turn == 1) asm volatile("bar.arrive 2, 256;" ::: "memory");
            late |= !met_in_time(at.filled(), at.phase);
#pragma unroll 1
            for (int j = 1; j < count; ++j) {
                const int k_slot = at.slot;
                asm volatile("bar.sync %0, 256;" ::"r"(2 + turn) : "memory");
                score(at.data());
                at.next();
                late |= !met_in_time(at.filled(), at.phase);
                add_up(at.data());
                if (turn == 0 || j < count - 1) asm volatile("bar.arrive %0, 256;" ::"r"(3 - turn) : "memory");
                gmma_wait<1>();
                pin(s);
                released(k_slot);
                const bool anew = rows.weights(s, p.factor, scale);
                pin(s);
                const int v_slot = at.slot;
                at.next();
                late |= !met_in_time(at.filled(), at.phase);  // here, so that the wait below stays behind the weights
                gmma_wait<0>();
                pin(o);
                released(v_slot);
                if (anew) {
#pragma unroll
                    for (int i = 0; i < 128; ++i) o[i] *= scale[i / 2 % 2];
                }
                pack();
            }
        }
        if (SPLITS > 1) cluster_arrive();  // this thread's warpgroup has read its rows of Q for the last time
        if (count > 0) {
            late |= !met_in_time(at.filled(), at.phase);
            if (count == 1 && tiles.first < KEYS) {  // past the last key may be anything: nothing times it is nothing
                for (int u = tiles.first * 8 + tid % 128; u < KEYS * 8; u += 128)
#pragma unroll
                    for (int c = 0; c < CHUNKS; ++c) {
                        const float zero[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                        store_shared4(at.data() + c * CHUNK + u * 16, zero);
                    }
                fence_async();
                named_barrier(4 + mine, 128);
            }
            add_up(at.data());
            gmma_wait<0>();
            pin(o);
        }
        if (late) __trap();

#pragma unroll
        for (int h = 0; h < 2; ++h) {
            rows.l[h] += __shfl_xor_sync(~0u, rows.l[h], 1);
            rows.l[h] += __shfl_xor_sync(~0u, rows.l[h], 2);
        }
        float f[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) f[h] = rows.l[h] > 0.0f ? 1.0f / rows.l[h] : 0.0f;
        if (SPLITS > 1) cluster_wait();
        if (SPLITS > 1 && mine != split) {
            // To the same thread of the other part's block, into the rows of Q of the warpgroup that sends there.
            const u32 to = peer(base + (mine ^ 1) * 8192, split ^ 1), bar = peer(met, split ^ 1);
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                float piece[4];
#pragma unroll
                for (int w = 0; w < 4; ++w) {
                    const int e = 8 * i + 2 * w;
                    piece[w] = __uint_as_float(pack_elem(o[e] * f[w % 2], o[e + 1] * f[w % 2]));
                }
                push4(to + i / 4 * Q_CHUNK + i % 4 * 2048 + tid % 128 * 16, bar, piece);
            }
            const float summary[4] = {rows.m[0], rows.l[0], rows.m[1], rows.l[1]};
            push4(peer(last, split ^ 1) + tid % 128 * 16, bar, summary);
        } else {
            if (SPLITS > 1) {
                const u32 from = base + (mine ^ 1) * 8192;
                if (!met_in_time(met, 0)) __trap();
                const float4 other = as_float4(load_shared4(last + tid % 128 * 16));
                const float m[2] = {other.x, other.z}, l[2] = {other.y, other.w};
                float part[2];
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const float greatest = fmaxf(rows.m[h], m[h]);
                    const float a = rows.l[h] > 0.0f ? exp2f((rows.m[h] - greatest) * p.factor) : 0.0f;
                    const float b = l[h] > 0.0f ? l[h] * exp2f((m[h] - greatest) * p.factor) : 0.0f;
                    const float total = rows.l[h] * a + b;
                    f[h] = total > 0.0f ? a / total : 0.0f;
                    part[h] = total > 0.0f ? b / total : 0.0f;
                }
#pragma unroll
                for (int i = 0; i < 16; ++i) {
                    const uint4 v = load_shared4(from + i / 4 * Q_CHUNK + i % 4 * 2048 + tid % 128 * 16);
                    const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                    for (int w = 0; w < 4; ++w) {
                        const float2 pair = unpack_elem(words[w]);
                        const int e = 8 * i + 2 * w;
                        o[e] = o[e] * f[w % 2] + pair.x * part[w % 2];
                        o[e + 1] = o[e + 1] * f[w % 2] + pair.y * part[w % 2];
                    }
                }
            } else {
#pragma unroll
                for (int i = 0; i < 128; ++i) o[i] *= f[i / 2 % 2];
            }
            // Through this warp's own rows of Q to whole rows of o.
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                const int unit = 2 * i + lane / 16;
                u32 v[4];
#pragma unroll
                for (int w = 0; w < 4; ++w) v[w] = pack_elem(o[8 * i + 2 * w], o[8 * i + 2 * w + 1]);
                store_matrices(
                    own + unit / 8 * Q_CHUNK + r * 128 + ((unit % 8 ^ (r & 7)) << 4), v[0], v[1], v[2], v[3]);
            }
            __syncwarp();
            const int first = (warp % 4) * 16;
#pragma unroll 4
            for (int i = 0; i < 16; ++i) {
                const int row = work.top + mine * 64 + first + i, query = row / GROUP;
                uint4 v = load_shared4(own + lane / 8 * Q_CHUNK + (first + i) * 128 + ((lane % 8 ^ (i & 7)) << 4));
                if (query >= work.queries) v = make_uint4(0, 0, 0, 0);
                if (query < work.all) {
                    elem* to = p.o + (size_t(work.first + query) * p.heads + head * GROUP + row % GROUP) * HD + lane * 8;
                    *reinterpret_cast<uint4*>(to) = v;
                }
            }
        }
    }
}
