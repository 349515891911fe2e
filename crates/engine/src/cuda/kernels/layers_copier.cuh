// The warp of a block that streams weights and KV cache through the ring (`layers_block.cuh`).
#pragma once

#include "layers_block.cuh"

namespace layers {

template <class B> struct Copier {
    using M = typename B::Of;
    const B b;
    unsigned head = 0, tail = 0, room, at = 0;

    __device__ __forceinline__ explicit Copier(const B& b) : b(b), room(b.ring_bytes) {}

    // A tile of `rows` rows; a lane copies one, from its `from`.
    __device__ __forceinline__ void tile(int rows, unsigned row_bytes, unsigned pitch, const void* from, uint64_t policy) {
        const unsigned needed = rows * pitch;
        // Fewer than all slots: a warp never waits for a phase that is not the next one of its barrier.
        while (room < needed || head - tail >= SLOTS - WORKERS) {
            b.wait(b.s.empty[tail % SLOTS], tail / SLOTS);
            room += b.s.sizes[tail % SLOTS];
            tail++;
        }
        ops::sync_warp();
        const unsigned slot = head % SLOTS;
        const uint32_t barrier = ops::address(&b.s.full[slot]);
        if (b.lane == 0) {
            b.s.sizes[slot] = needed;
            ops::expect(barrier, rows * row_bytes);
        }
        ops::sync_warp();
        if (b.lane < rows) ops::copy(b.ring_at + b.wrapped(at + b.lane * pitch), from, row_bytes, barrier, policy);
        room -= needed;
        at = b.wrapped(at + needed);
        head++;
    }

    __device__ __forceinline__ void copy_all() {
        const uint64_t once = ops::leaves_first(), often = ops::stays();
        const Share& share = b.share;
        const int rank = b.rank, lane = b.lane;
        int past = -1;
        for (int l = 0; l < b.p.layer_count; l++) {
            const Layer& layer = b.p.layers[l];
            for (int kv = share.first_kv; kv < share.first_kv + share.kvs; kv++) {
                for (int first = 0; first < B::QKV_ROWS; first += TILE) {
                    const int row = B::qkv_row(kv, rank * B::QKV_ROWS + first + lane);
                    tile(min(TILE, B::QKV_ROWS - first), M::HIDDEN * 2, B::FULL_PITCH, layer.qkv + (size_t)row * M::HIDDEN, once);
                }
                if (past < 0) {
                    // Up to here, everything was weights.
                    ops::wait_for_previous();
                    past = b.position();
                }
                for (int i = 0; i < b.own_cache_tiles(past); i++) {
                    const int first = (i * M::CLUSTER + rank) * TILE;
                    const bf16* from = (lane == 0 ? layer.keys : layer.values) + ((size_t)kv * b.p.slots + first) * M::DIM;
                    tile(2, min(TILE, past - first) * M::DIM * 2, B::CACHE_PITCH, from, often);
                }
                for (int first = 0; first < B::SLICE; first += TILE) {
                    const int row = rank * B::SLICE + first + lane;
                    const bf16* from = layer.output + (size_t)row * M::HEADS * M::DIM + kv * M::GROUP * M::DIM;
                    tile(min(TILE, B::SLICE - first), M::GROUP * M::DIM * 2, B::HEADS_PITCH, from, once);
                }
            }
            if (share.columns == 0) continue;
            const int pairs = share.columns / M::CLUSTER, first_pair = share.first_column + rank * pairs;
            for (int first = 0; first < pairs; first += TILE / 2) {
                // Gates, then ups.
                const int count = min(TILE / 2, pairs - first);
                const int row = lane < count ? first_pair + first + lane : M::INTERMEDIATE + first_pair + first + lane - count;
                tile(2 * count, M::HIDDEN * 2, B::FULL_PITCH, layer.gate_up + (size_t)row * M::HIDDEN, once);
            }
            const unsigned row_bytes = share.columns * 2, pitch = pitch_of(row_bytes);
            for (int first = 0; first < B::SLICE; first += TILE) {
                const int row = rank * B::SLICE + first + lane;
                const bf16* from = layer.down + (size_t)row * M::INTERMEDIATE + share.first_column;
                tile(min(TILE, B::SLICE - first), row_bytes, pitch, from, once);
            }
        }
    }
};

}  // namespace layers
