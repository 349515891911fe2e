// The warp of a block that keeps a part of the residual vector (`layers_block.cuh`).
#pragma once

#include "layers_block.cuh"

namespace layers {

template <class B> struct Keeper {
    using M = typename B::Of;
    // A lane has four neighbours of each 128.
    static constexpr int FOURS = (B::SLICE / 4 + 31) / 32;
    const B b;
    float x[FOURS][4], weights[FOURS][4];
    const uint64_t* sums = nullptr;

    __device__ __forceinline__ explicit Keeper(const B& b) : b(b) {}
    __device__ __forceinline__ bool inside(int i) const { return (i * 32 + b.lane) * 4 < B::SLICE; }
    __device__ __forceinline__ int index(int i) const { return b.rank * B::SLICE + (i * 32 + b.lane) * 4; }

    __device__ __forceinline__ void load_norm(const float* norm) {
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            float4 four = inside(i) ? ops::early4(norm + index(i)) : make_float4(0.f, 0.f, 0.f, 0.f);
            weights[i][0] = four.x, weights[i][1] = four.y, weights[i][2] = four.z, weights[i][3] = four.w;
        }
    }

    __device__ __forceinline__ void send_normed() const {
        float squares = 0.f;
        const uint32_t barrier = ops::address(&b.s.normed_came);
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            if (!inside(i)) continue;
            const uint2 four = make_uint2(pack(x[i][0] * weights[i][0], x[i][1] * weights[i][1]),
                                          pack(x[i][2] * weights[i][2], x[i][3] * weights[i][3]));
            const uint32_t to = ops::address(&b.s.normed[index(i)]);
#pragma unroll
            for (int d = 0; d < M::CLUSTER; d++) {
                const int there = (b.rank + d) % M::CLUSTER;
                ops::send(ops::remote(to, there), four, ops::remote(barrier, there));
            }
#pragma unroll
            for (int j = 0; j < 4; j++) squares += x[i][j] * x[i][j];
        }
        squares = sum_of_warp(squares);
        if (b.lane < M::CLUSTER) {
            ops::send(ops::remote(ops::address(&b.s.squares[b.rank]), b.lane), bits_of(squares), ops::remote(barrier, b.lane));
        }
    }

    // One keeper of each part: the sums of a later phase were last touched a step ago.
    __device__ __forceinline__ void warm_up(int phase) const {
        if (b.cluster != 0 || phase >= 2 * b.p.layer_count || b.lane * 16 >= B::SLICE) return;
        ops::bring_to_l2(sums + (size_t)phase * M::HIDDEN + b.rank * B::SLICE + b.lane * 16);
    }

    __device__ __forceinline__ void add_sums(int phase, unsigned contributions) {
        const uint64_t* from = sums + (size_t)phase * M::HIDDEN;
        ulonglong2 low[FOURS], high[FOURS];
        while (true) {
            bool came = true;
#pragma unroll
            for (int i = 0; i < FOURS; i++) {
                if (!inside(i)) continue;
                low[i] = ops::load_two(from + index(i));
                high[i] = ops::load_two(from + index(i) + 2);
            }
#pragma unroll
            for (int i = 0; i < FOURS; i++) {
                if (!inside(i)) continue;
                // All four counts are right: nothing is left in the lower bits.
                const uint64_t wrong = (low[i].x ^ contributions) | (low[i].y ^ contributions) | (high[i].x ^ contributions) |
                                       (high[i].y ^ contributions);
                came = came && (wrong & ((1 << COUNT_BITS) - 1)) == 0;
            }
            if (ops::all_of_warp(came)) break;
        }
        auto value = [](uint64_t sum) { return ops::to_float((int64_t)sum >> COUNT_BITS) * (1.f / SUM_STEPS); };
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            if (!inside(i)) continue;
            x[i][0] += value(low[i].x), x[i][1] += value(low[i].y);
            x[i][2] += value(high[i].x), x[i][3] += value(high[i].y);
        }
    }

    __device__ __forceinline__ void keep() {
        load_norm(b.p.layers[0].input_norm);
        ops::wait_for_previous();
        sums = b.sums();
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            const uint2 four = inside(i) ? ops::early2(b.p.x + index(i)) : make_uint2(0, 0);
            x[i][0] = low_of(four.x), x[i][1] = high_of(four.x), x[i][2] = low_of(four.y), x[i][3] = high_of(four.y);
        }
        warm_up(0);
        warm_up(1);
        for (int l = 0; l < b.p.layer_count; l++) {
            if (b.share.kvs) send_normed();
            warm_up(2 * l + 2);
            load_norm(b.p.layers[l].mlp_norm);
            add_sums(2 * l, M::KV_HEADS);
            if (b.share.columns) send_normed();
            warm_up(2 * l + 3);
            if (l + 1 < b.p.layer_count) load_norm(b.p.layers[l + 1].input_norm);
            add_sums(2 * l + 1, b.p.mlp_clusters);
        }
        // All keepers have read x: their clusters have contributed to the last sums.
        if (b.cluster != 0) return;
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            if (!inside(i)) continue;
            *reinterpret_cast<uint2*>(b.p.x + index(i)) = make_uint2(pack(x[i][0], x[i][1]), pack(x[i][2], x[i][3]));
        }
    }
};

}  // namespace layers
