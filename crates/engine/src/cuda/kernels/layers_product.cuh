// What the workers of a block share (`layers_block.cuh`): products of the ring's tiles, and messages.
//
// Why a message never overwrites one that is still read. Let r be the reader, in a cluster, and q another block of it.
// - normed: q's keeper sends the next values when its sums are complete. They include those of q itself, which
//   needed the message of r (gated values, or its result of attention) that r sent after its workers had loaded `normed`.
// - gated: q's workers needed `normed` of the next phase from r's keeper; it had the sums of r's own product with `gated`.
// - qkv: q's workers needed r's result of attention (for the next head of the same layer), or `normed` of the next layer
//   from r's keeper, both of them later than r's reading of qkv.
// - block_result: q's workers needed qkv from r, sent after a barrier of r's workers that follows the reading.
// For the same reasons a barrier never gets bytes of the phase after next.
#pragma once

#include "layers_block.cuh"

namespace layers {

// A worker.
template <class B> struct Products {
    using M = typename B::Of;
    static constexpr int TEAMS = WORKERS / SPLIT; // tiles at a time
    static constexpr int CHUNKS = M::HIDDEN / CHUNK, CHUNKS_OF_WARP = (CHUNKS + SPLIT - 1) / SPLIT; // of the hidden vector
    static_assert(WORKERS % SPLIT == 0);
    const B b;
    const int group, quad, part, team;
    unsigned tile = 0, at = 0; // of the ring, at the next product
    unsigned normeds = 0, products = 0;
    float scale = 0.f; // of the norm
    uint64_t* sums = nullptr;

    __device__ __forceinline__ explicit Products(const B& b)
        : b(b), group(b.lane / 4), quad(b.lane % 4), part(b.warp % SPLIT), team(b.warp / SPLIT) {}

    __device__ __forceinline__ int thread() const { return b.warp * 32 + b.lane; }
    __device__ __forceinline__ void sync() const { ops::sync_first<B::WORKER_THREADS>(); }

    // This warp's columns of x: every SPLIT-th chunk, zeros where there are no more.
    template <int COUNT> __device__ __forceinline__ void load_x(uint4 (&x)[COUNT], const bf16* from, int chunks) const {
        const uint32_t start = ops::address(from) + quad * 16;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const int chunk = part + SPLIT * i;
            x[i] = chunk < chunks ? ops::load_shared(start + chunk * CHUNK * 2) : make_uint4(0, 0, 0, 0);
        }
    }

    // The product of the next `rows` rows of the ring with x. Afterwards `result` has the sums, in the order of the tiles: 16 rows,
    // or eight gates and eight ups, for each. All workers.
    template <int COUNT>
    __device__ __forceinline__ void product(const uint4 (&x)[COUNT], int chunks, int rows, bool gated, unsigned pitch) {
        const int tiles = (rows + TILE - 1) / TILE;
        float* const to = b.s.parts[products % 2][part];
        const int last = part + SPLIT * (COUNT - 1);
        const unsigned last_at = (last < chunks ? last : 0) * CHUNK * 2, start = part * CHUNK * 2;
        unsigned tile_at = b.wrapped(at + team * TILE * pitch);
        for (int t = team; t < tiles; t += TEAMS) {
            const unsigned slot = (tile + t) % SLOTS;
            const int count = min(TILE, rows - t * TILE), half = gated ? count / 2 : min(TILE / 2, count);
            // Where there is no row, another is read, and not used.
            const uint32_t low = b.ring_at + b.wrapped(tile_at + min(group, count - 1) * pitch) + quad * 16;
            const uint32_t high = b.ring_at + b.wrapped(tile_at + min(half + group, count - 1) * pitch) + quad * 16;
            b.wait(b.s.full[slot], (tile + t) / SLOTS);
            // Few loads at a time where registers are few.
            constexpr int SUMS = 4, AT_A_TIME = COUNT > 8 ? 2 : COUNT > 7 ? 4 : 7;
            float c[SUMS][4] = {};
#pragma unroll
            for (int first = 0; first < COUNT; first += AT_A_TIME) {
                uint4 above[AT_A_TIME], below[AT_A_TIME];
#pragma unroll
                for (int i = first; i < COUNT && i < first + AT_A_TIME; i++) {
                    const unsigned offset = i < COUNT - 1 ? start + i * SPLIT * CHUNK * 2 : last_at;
                    above[i - first] = ops::load_shared(low + offset);
                    below[i - first] = ops::load_shared(high + offset);
                }
#pragma unroll
                for (int i = first; i < COUNT && i < first + AT_A_TIME; i++) {
                    const uint4 &u = above[i - first], &v = below[i - first];
                    ops::mma(c[2 * i % SUMS], u.x, v.x, u.y, v.y, x[i].x, x[i].y);
                    ops::mma(c[(2 * i + 1) % SUMS], u.z, v.z, u.w, v.w, x[i].z, x[i].w);
                }
            }
            ops::sync_warp();
            if (b.lane == 0) ops::arrive(ops::address(&b.s.empty[slot]), 1);
            // All columns of the result are the same.
            float both[2] = {0.f, 0.f};
#pragma unroll
            for (int i = 0; i < SUMS; i++) {
                both[0] += c[i][0];
                both[1] += c[i][2];
            }
            if (quad < 2) to[t * TILE + quad * 8 + group] = quad == 0 ? both[0] : both[1];
            tile_at = b.wrapped(tile_at + TEAMS * TILE * pitch);
        }
        tile += tiles;
        at = b.wrapped(at + rows * pitch);
        products++;
        sync();
    }
    // Of the last product. It stays until the one after next: between them all workers are synchronised.
    __device__ __forceinline__ float result(int row) const {
        const auto& parts = b.s.parts[(products + 1) % 2];
        return (parts[0][row] + parts[1][row]) + (parts[2][row] + parts[3][row]);
    }

    __device__ __forceinline__ void wait_for_normed() {
        if (thread() == 0) ops::expect(ops::address(&b.s.normed_came), M::HIDDEN * 2 + M::CLUSTER * 4);
        b.wait_for_cluster(b.s.normed_came, normeds++);
        float squares = 0.f;
#pragma unroll
        for (int i = 0; i < M::CLUSTER; i++) squares += b.s.squares[i];
        scale = ops::inverse_root(squares / M::HIDDEN + b.p.eps);
    }
    // Adds the last product, SLICE rows of the residual vector.
    __device__ __forceinline__ void add_result(int phase) const {
        for (int row = thread(); row < B::SLICE; row += B::WORKER_THREADS) {
            const int64_t steps = ops::to_integer(result(row) * SUM_STEPS);
            ops::add(sums + (size_t)phase * M::HIDDEN + b.rank * B::SLICE + row, ((uint64_t)steps << COUNT_BITS) + 1);
        }
    }
    // Messages to all blocks of the cluster: warps share the blocks, and the numbers for a block if there are more warps.
    // A lane sends the numbers `first_number`, and every NUMBERS-th after it, to each `block` of its warp.
    static constexpr int NUMBERS = (WORKERS > M::CLUSTER ? WORKERS / M::CLUSTER : 1) * 32;
    __device__ __forceinline__ int first_number() const { return b.warp / M::CLUSTER * 32 + b.lane; }
    template <class F> __device__ __forceinline__ void for_blocks(const F& f) const {
        for (int block = b.warp % M::CLUSTER; block < M::CLUSTER; block += WORKERS) f(block);
    }

    // The other set of sums, for the next step.
    __device__ __forceinline__ void clear_sums() const {
        const size_t set = (size_t)2 * b.p.layer_count * M::HIDDEN;
        ulonglong2* other = reinterpret_cast<ulonglong2*>(sums == b.p.sums ? b.p.sums + set : b.p.sums);
        const size_t threads = (size_t)ops::block_count() * B::WORKER_THREADS;
        for (size_t i = (size_t)ops::block_index() * B::WORKER_THREADS + thread(); i < set / 2; i += threads) {
            other[i] = make_ulonglong2(0, 0);
        }
    }
};

}  // namespace layers
