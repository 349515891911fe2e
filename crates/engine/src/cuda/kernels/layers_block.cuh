// One decode step of a small dense model, batch 1: all layers in one persistent kernel, for compute capability 9.0.
//
// The grid is made of clusters of blocks, one block on each multiprocessor, and never synchronises as a whole. A cluster
// has a fixed share of every layer (`Share`): some key/value heads with everything that belongs to them (rows of q, k and v,
// attention, columns of the output product), and some columns of the intermediate (rows of gate and up, columns of down).
// So values are exchanged within clusters, by messages to each other's shared memory, and only the two results of a layer,
// of the output product and of down, are summed over the grid.
//
// A block has three kinds of warps:
// - The copier streams the block's share of all weights (and of the KV cache) through a ring in shared memory, in the order
//   in which they are used. It waits for room in the ring and for nothing else, so that memory stays busy whatever
//   the other warps wait for (`layers_copier.cuh`).
// - The workers multiply tiles of the ring: 16 rows at a time by tensor cores, four warps share the columns of a tile
//   (`layers_product.cuh`, `layers_attention.cuh`).
// - The keeper has a part of the residual vector: block r of every cluster keeps the r-th part. It waits for the sums of
//   the part, adds them, and sends the normed values to all blocks of its cluster (`layers_keeper.cuh`).
//
// Sums over the grid: 64-bit integers, the value in fixed point in the upper 56 bits and the number of contributions in the
// lower eight. A keeper polls the sums themselves until they have all contributions: there is no barrier and no fence, and the
// result does not depend on the order. Each layer has sums of its own, zero before a step: a step uses one of two sets
// and clears the other.
//
// Messages are never overwritten before they are read, without a wait for that: the sender of the next
// message of a kind has seen something that needed the reader to be past the last one (`layers_product.cuh`).
#pragma once

#include "layers_ops.cuh"

namespace layers {

constexpr int TILE = 16;           // rows of a tile; positions of a tile of the cache
constexpr int CHUNK = 32;          // columns of a pair of tensor-core products: 16 bytes for each lane and row
constexpr int SPLIT = 4;           // warps that share the columns of a tile
constexpr int WORKERS = 8;         // warps
constexpr int SLOTS = 64;          // barriers for tiles of the ring
constexpr int PART_ROWS = 256;     // rows of a product, at most
constexpr int MOST_COLUMNS = 1024; // of the intermediate in a cluster
// Dynamic shared memory of a block: all that 9.0 allows.
constexpr unsigned SHARED_BYTES = 227 << 10;
// Sums in fixed point: ±2^27 in steps of 2^-28.
constexpr float SUM_STEPS = 268435456.f;
constexpr int COUNT_BITS = 8;

// Weights (out, in) row by row; qkv = queries, keys, values; gate_up = gates, then ups.
struct Layer {
    const bf16 *qkv, *bias, *output, *gate_up, *down;           // no bias: null
    const float *input_norm, *mlp_norm, *query_norm, *key_norm; // no norms of heads: null
    bf16 *keys, *values;                                        // (kv_heads, slots, dim)
};

// What a cluster does in each layer. Columns in steps of CHUNK.
struct Share {
    int first_kv, kvs;
    int first_column, columns;
};

struct Parameters {
    const Layer* layers;
    const Share* shares; // one for each cluster
    bf16* x;             // the hidden vector of the token, before the first layer and after the last
    const int* position; // of the token, below slots
    const float *cosines, *sines; // (positions, dim / 2)
    uint64_t* sums;               // 2 sets × 2 · layers × hidden, zero before the first step
    unsigned* state;              // zero before the first step: finished steps, finished blocks
    int layer_count, slots;
    int mlp_clusters; // clusters with columns
    float eps, score_scale;
};

template <int HIDDEN_, int HEADS_, int KV_HEADS_, int DIM_, int INTERMEDIATE_, int CLUSTER_> struct Model {
    static constexpr int HIDDEN = HIDDEN_, HEADS = HEADS_, KV_HEADS = KV_HEADS_, DIM = DIM_, INTERMEDIATE = INTERMEDIATE_;
    static constexpr int CLUSTER = CLUSTER_;       // blocks
    static constexpr int GROUP = HEADS / KV_HEADS; // query heads of a key/value head
    static_assert(HEADS % KV_HEADS == 0 && GROUP <= 8 && KV_HEADS < 1 << COUNT_BITS);
    static_assert(DIM % 64 == 0 && DIM <= 128 && HIDDEN % CHUNK == 0 && INTERMEDIATE % CHUNK == 0);
};

// Rows in the ring: neighbours differ by half of the 128 bytes of all banks, so that two rows of 64 bytes do not collide.
__host__ __device__ constexpr unsigned pitch_of(unsigned bytes) { return bytes % 128 == 0 ? bytes + 64 : bytes; }
__host__ __device__ constexpr unsigned larger(unsigned a, unsigned b) { return a > b ? a : b; }

__device__ __forceinline__ float rounded(float x) { return wide(narrow<bf16>(x)); }
__device__ __forceinline__ uint32_t pack(float low, float high) { return ::pack<bf16>(low, high); }
__device__ __forceinline__ uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}
__device__ __forceinline__ float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
__device__ __forceinline__ float low_of(uint32_t two) { return float_of(two << 16); }
__device__ __forceinline__ float high_of(uint32_t two) { return float_of(two & 0xffff0000u); }
__device__ __forceinline__ float sum_of_warp(float x) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) x += ops::shuffled(x, step);
    return x;
}

// What all warps of a block know.
template <class M> struct Block {
    using Of = M;
    static constexpr int HIDDEN = M::HIDDEN, DIM = M::DIM, GROUP = M::GROUP, KV_HEADS = M::KV_HEADS, CLUSTER = M::CLUSTER;
    static constexpr int THREADS = (WORKERS + 2) * 32, WORKER_THREADS = WORKERS * 32;
    static constexpr int COPIER = WORKERS, KEEPER = WORKERS + 1;  // numbers of their warps
    static constexpr int SLICE = HIDDEN / CLUSTER;                // of the residual vector: the rows of output and down of a block
    static constexpr int QKV_ROWS = (GROUP + 2) * DIM / CLUSTER;  // of a key/value head, in a block
    static constexpr unsigned FULL_PITCH = pitch_of(HIDDEN * 2), HEADS_PITCH = pitch_of(GROUP * DIM * 2);
    static constexpr unsigned CACHE_PITCH = TILE * DIM * 2; // a tile of keys, or of values
    static constexpr unsigned WIDEST_PITCH = larger(larger(FULL_PITCH, HEADS_PITCH), pitch_of(MOST_COLUMNS * 2));
    // A row that begins before the end of the ring may end after it.
    static constexpr unsigned MARGIN = larger(WIDEST_PITCH, CACHE_PITCH);
    static_assert((CLUSTER & (CLUSTER - 1)) == 0 && CLUSTER <= 16 && (WORKERS % CLUSTER == 0 || CLUSTER % WORKERS == 0));
    static_assert(HIDDEN % (CLUSTER * 4) == 0 && QKV_ROWS % 2 == 0 && QKV_ROWS * CLUSTER == (GROUP + 2) * DIM);
    static_assert(QKV_ROWS <= PART_ROWS && SLICE <= PART_ROWS);

    struct Shared {
        uint64_t full[SLOTS], empty[SLOTS];
        uint64_t normed_came, qkv_came, attended_came, gated_came;
        unsigned sizes[SLOTS];           // bytes of the tiles in the ring
        float squares[CLUSTER];          // of the parts of the residual vector
        alignas(16) bf16 normed[HIDDEN]; // times the norm's weights, not yet divided
        alignas(16) bf16 gated[MOST_COLUMNS];
        float parts[2][SPLIT][PART_ROWS];
    };
    struct AttentionShared {
        alignas(16) bf16 qkv[(GROUP + 2) * DIM];
        alignas(16) bf16 queries[GROUP * DIM];
        alignas(16) bf16 fresh[2][DIM]; // key and value of the new position
        alignas(16) bf16 attended[GROUP * DIM];
        alignas(16) float block_result[CLUSTER][GROUP * DIM]; // of each block's positions
        alignas(16) float block_scale[CLUSTER][GROUP][2];     // its maximum score and its sum
        alignas(16) float warp_result[WORKERS][GROUP][DIM + 4];
        float warp_scale[WORKERS][GROUP][2];
    };
    static constexpr unsigned ATTENTION_AT = (sizeof(Shared) + 127) / 128 * 128;
    static constexpr unsigned RING_AT = (ATTENTION_AT + sizeof(AttentionShared) + 127) / 128 * 128;
    // The smallest ring that works has room for a tile.
    static constexpr unsigned LEAST_RING = larger(TILE * WIDEST_PITCH, 2 * CACHE_PITCH);
    static_assert(RING_AT + LEAST_RING + MARGIN + 128 <= SHARED_BYTES);

    const Parameters p;
    Shared& s;
    AttentionShared& a;
    const int warp, lane, rank, cluster;
    const Share share;
    uint32_t ring_at;
    unsigned ring_bytes;

    __device__ __forceinline__ explicit Block(const Parameters& p)
        : p(p), s(*reinterpret_cast<Shared*>(ops::shared())),
          a(*reinterpret_cast<AttentionShared*>(ops::shared() + ATTENTION_AT)), warp(ops::thread_index() / 32),
          lane(ops::thread_index() % 32), rank(ops::cluster_rank()), cluster(ops::cluster_index()),
          share(p.shares[cluster]) {
        const unsigned at = share.kvs ? RING_AT : ATTENTION_AT; // without attention, the ring has its memory too
        ring_at = ops::address(ops::shared() + at);
        ring_bytes = (SHARED_BYTES - at - MARGIN) / 128 * 128;
    }

    __device__ __forceinline__ unsigned wrapped(unsigned at) const {
        while (at >= ring_bytes) at -= ring_bytes;
        return at;
    }
    __device__ __forceinline__ void wait(const uint64_t& barrier, unsigned phase) const {
        const uint32_t at = ops::address(&barrier);
        while (!ops::ended(at, phase & 1)) {}
    }
    __device__ __forceinline__ void wait_for_cluster(const uint64_t& barrier, unsigned phase) const {
        const uint32_t at = ops::address(&barrier);
        while (!ops::ended_in_cluster(at, phase & 1)) {}
    }
    // This step's set.
    __device__ __forceinline__ uint64_t* sums() const {
        const unsigned set = ops::early(p.state) & 1;
        return p.sums + (size_t)set * 2 * p.layer_count * HIDDEN;
    }
    __device__ __forceinline__ int position() const { return (int)ops::early(reinterpret_cast<const uint32_t*>(p.position)); }
    // Tiles of the new position's past, and how many of them this block has: they go to the blocks of the cluster in turn.
    __device__ static __forceinline__ int cache_tiles(int past) { return (past + TILE - 1) / TILE; }
    __device__ __forceinline__ int own_cache_tiles(int past) const { return (cache_tiles(past) + CLUSTER - 1 - rank) / CLUSTER; }
    // Row `row` of a key/value head, its queries first, in the matrix of all heads.
    __device__ static __forceinline__ int qkv_row(int kv, int row) {
        constexpr int QUERIES = GROUP * DIM;
        if (row < QUERIES) return kv * QUERIES + row;
        if (row < QUERIES + DIM) return M::HEADS * DIM + kv * DIM + row - QUERIES;
        return (M::HEADS + KV_HEADS) * DIM + kv * DIM + row - QUERIES - DIM;
    }

    __device__ __forceinline__ void init_barriers() const {
        if (warp == 0 && lane == 0) {
            for (int i = 0; i < SLOTS; i++) {
                ops::init_barrier(ops::address(&s.full[i]), 1);
                ops::init_barrier(ops::address(&s.empty[i]), SPLIT);
            }
            ops::init_barrier(ops::address(&s.normed_came), 1);
            ops::init_barrier(ops::address(&s.qkv_came), 1);
            ops::init_barrier(ops::address(&s.attended_came), 1);
            ops::init_barrier(ops::address(&s.gated_came), 1);
            ops::publish_barriers();
        }
        ops::sync_cluster();
    }
    // No block leaves while another sends to it. The last one of the grid counts the step.
    __device__ __forceinline__ void finish() const {
        ops::sync_block();
        ops::sync_cluster();
        if (ops::thread_index() == 0 && ops::is_last(p.state + 1, ops::block_count())) p.state[0]++;
    }
};

}  // namespace layers
