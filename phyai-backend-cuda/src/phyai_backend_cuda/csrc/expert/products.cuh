// Stages A and D: products with all of K, by the block's own columns.
#pragma once
#include "expert/consumer.cuh"

// q, k, v = rope(norm(x) Wqkv), N8 octets of columns, each of one head.
template <int N8> __device__ void stage_qkv(Consumer& c, int step, int layer, int pos0, u32 use) {
    const Params& p = c.p;
    float acc[N8 * 4], y[N8][2];
    float2 shift[N8], rot[N8];  // read ahead of the product: they are at hand when it is done
    const float* table = p.shift_qkv + (size_t(step) * p.layers + layer) * (OCTETS * 8);
    const float* cs = p.cos_sin + size_t(pos0 + min(c.row(), MQ - 1)) * HD;
    const int row = c.row();
    u64 sum;
    char* to[N8];
    c.product<N8, 16, false>(acc, c.copy(p.xs1, use, 16 * TILE), c.block() / 4, [&] {
        sum = load_relaxed(c.squares(row));
#pragma unroll
        for (int j = 0; j < N8; ++j) {
            const int octet = first_octet(c.block()) + j, within = octet & 31, i = within * 4 + c.q();  // of its head
            shift[j] = *reinterpret_cast<const float2*>(table + octet * 8 + 2 * c.q());
            rot[j] = make_float2(cs[i], cs[i + HD / 2]);
            if (octet < 256)  // k-step within / 2 of a head: its columns in the tensor core's order
                to[j] = c.copy(p.qbuf, use, 32 * TILE) + ((octet >> 5) * 4 + (within >> 3)) * TILE +
                        fragment(row, (within >> 1 & 3) * 8 + 2 * c.q() + (within & 1));
            else
                to[j] = c.copy(p.fresh, use, FRESH) + ((octet >= 288) * ROWS + row) * 512 + within * 16 + c.q() * 4;
            to[j] = computed(to[j]);
        }
    });
    c.exchange_rows<N8>(acc, y);
    const float r = c.norm(sum, c.squares(row));
    if (row < MQ) {
#pragma unroll
        for (int j = 0; j < N8; ++j) {
            const int octet = first_octet(c.block()) + j;
            const float a = y[j][0] * r + shift[j].x, b = y[j][1] * r + shift[j].y;
            const u32 turned = pack_bf16(a * rot[j].x - b * rot[j].y, b * rot[j].x + a * rot[j].y);
            store_relaxed(to[j], octet < 288 ? turned : pack_bf16(a, b));  // q or k: dimensions i and i + 128 of a head
        }
#pragma unroll
        for (int j = 0; j < N8; ++j) {
            const int copy = first_octet(c.block()) + j < 256 ? 32 * TILE : FRESH;
            store_empty(to[j] + (use & 1 ? -copy : copy));
        }
    }
    c.mark();
}

// gelu_tanh with the constants multiplied out: x · sigmoid(2u) = x / (1 + 2^(-2u log2 e)).
__device__ __forceinline__ float gelu(float x) {
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * fmaf(x * x, -0.10294324f, -2.30220819f)));
    return __fdividef(x, 1.0f + e);
}

// gelu(gate) · up: 32 gate and 32 up columns side by side, so that a thread has both of a pair.
__device__ void stage_gate_up(Consumer& c, int step, int layer, u32 use) {
    const Params& p = c.p;
    float acc[32];
    float4 y[4];
    const float* shift = p.shift_gu + (size_t(step) * p.layers + layer) * (2 * I) + c.block() * 64 + c.group() * 32;
    float2 s[4];
    const int row = c.first_row();
    u64 sum, sum8;
    char* to;
    c.product<8, 16, false>(acc, c.copy(p.xs2, use, 16 * TILE), c.block() / 4, [&] {
        sum = load_relaxed(c.squares(row));
        sum8 = load_relaxed(c.squares(row + 8));
#pragma unroll
        for (int j = 0; j < 4; ++j) s[j] = *reinterpret_cast<const float2*>(shift + j * 8 + 2 * c.q());
        to = computed(c.copy(p.act, use, 64 * TILE) + (c.block() >> 1) * TILE +
                      ((c.block() & 1) * 2 + c.group()) * 2048 + (c.tid & 127) * 16);
    });
    c.exchange_octets(acc, y);
    const float r = c.norm(sum, c.squares(row)), r8 = c.norm(sum8, c.squares(row + 8));
    if (row < MQ) {
        const u32 both = row + 8 < MQ ? ~0u : 0u;
        float z[4], z8[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            z[j] = gelu(y[j].x * r + s[j].x) * (y[j].y * r + s[j].y);
            z8[j] = gelu(y[j].z * r8 + s[j].x) * (y[j].w * r8 + s[j].y);
        }
        store_relaxed4(to, make_uint4(pack_bf16(z[0], z[1]), pack_bf16(z8[0], z8[1]) & both, pack_bf16(z[2], z[3]),
                                      pack_bf16(z8[2], z8[3]) & both));
        store_empty4(to + (use & 1 ? -64 * TILE : 64 * TILE));
    }
    c.mark();
}
