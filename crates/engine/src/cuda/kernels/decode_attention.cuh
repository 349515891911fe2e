// Attention of one new position to all before it. The cache is read once: a block computes up to eight query heads that
// share one key/value head, for a range of positions. Blocks of a cluster send their results to each other's
// shared memory; on a GPU without clusters, the last block of a head combines them through global memory.
//
// Keys and values are loaded from memory directly into the tensor cores' fragments, 16 bytes at a time. Scores are
// transposed, positions × heads: the eight columns of a product are the eight heads. As in `skinny.cu` the order of the
// summed dimension is arbitrary, so a lane's eight neighbours may be any eight of it. The order of the rows of the result
// is arbitrary too, and is restored when they are written.
#pragma once

#include <cooperative_groups.h>

#include "kv_rows.cuh"
#include "rope.cuh"

namespace groups = cooperative_groups;

constexpr int HEADS = 8;         // query heads of a block
constexpr int TILE = 16;         // positions of one iteration of a warp
constexpr float LOWEST = -1e30f; // below every score, and finite

// Warps of a block: their partial results must fit into shared memory.
#define WARPS_OF(DIM) ((DIM) > 128 ? 4 : 8)
constexpr int PLAIN_WARPS = 8;

// Read where it stands: the compiler would keep a plain read in registers.
__device__ __forceinline__ uint4 load_shared(const uint4* at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"((uint32_t)__cvta_generic_to_shared(at)));
    return v;
}
// An 8×8 matrix of halves over the warp, transposed.
__device__ __forceinline__ uint32_t transposed(uint32_t x) {
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(x));
    return x;
}
__device__ __forceinline__ uint32_t lower_halves(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x5410); }
__device__ __forceinline__ uint32_t upper_halves(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x7632); }

// qkv: (rows, (heads + 2·kv_heads)·DIM), queries first; rows = batch·length. Caches: `slots` rows for each of batch · kv_heads. out: (rows,
// heads·DIM). parts: (rows, grid y, splits, HEADS, DIM + 4) of f32; arrived: (rows, grid y) counters that are zero
// between calls. Row b·length + i is position `*position + i` of sequence b. With tables, length is 1: queries, keys and values get their bias, norm and
// rotation here, and the blocks that attend to the new position write its keys and values to the caches, all the same. Without, all that is done before. window 0 means no
// window.
// With tables, the position and the caches of earlier positions are read before the previous kernel has ended: the first kernel of a step waits for all of
// the step before, and no kernel before this one changes them.
// Grid: (splits, kv_heads · (heads of the group in steps of HEADS), rows); with clusters, one for the splits.
template <typename T, typename Rows, int DIM, bool AHEAD>
__device__ void decode_attention(T* out, const T* qkv, void* keys, void* values, float* parts, unsigned* arrived,
                                 const int* position, int length, int heads, int kv_heads, int slots, int window,
                                 float scale, float cap, const float* sinks, const Transform<T>& transform) {
    using Eight = typename Rows::Eight;
    constexpr int WARPS = WARPS_OF(DIM), K_CHUNKS = (DIM + 31) / 32, V_CHUNKS = (DIM + 63) / 64;
    [[maybe_unused]] constexpr int PITCH = DIM + 4;
    __shared__ __align__(16) float merged[WARPS][HEADS][DIM + 4];
    __shared__ float merged_top[WARPS][HEADS], merged_sum[WARPS][HEADS];
    __shared__ __align__(16) T fresh[2][DIM]; // the new key and value
#if __CUDA_ARCH__ >= 900
    // Results of the blocks of the cluster, their maximum score and their sum, of the heads that this block completes.
    __shared__ float came[HEADS][DIM + 4];
#else
    __shared__ bool is_last;
#endif

    let_next_start();
    const int group_size = heads / kv_heads, steps = (group_size + HEADS - 1) / HEADS;
    const int kv_head = blockIdx.y / steps, first_head = kv_head * group_size + (blockIdx.y % steps) * HEADS;
    const int mine = min(HEADS, kv_head * group_size + group_size - first_head);
    const int row = blockIdx.z, split = blockIdx.x, splits = gridDim.x;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
    // A division takes time that one position does not need.
    const int sequence = length == 1 ? row : row / length;
    const uint4 nothing = make_uint4(0, 0, 0, 0);
    const bool rotates = transform.cosines != nullptr;
#if __CUDA_ARCH__ >= 900
    // When all blocks of the cluster run, they may write to each other's memory.
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
    if (!rotates) wait_for_previous();

    const int end = __ldcg(position) + row - sequence * length + 1, begin = window > 0 ? max(0, end - window) : 0;
    // Short contexts use fewer blocks, so that every warp has an iteration.
    constexpr int LEAST = WARPS * TILE;
    const int fair = (end - begin + splits - 1) / splits, stretch = (fair + LEAST - 1) / LEAST * LEAST;
    const int used = (end - begin + stretch - 1) / stretch;
#if __CUDA_ARCH__ < 900
    if (split >= used) return;
#endif
    // A block of a cluster with an empty range continues and adds nothing.
    const int from = begin + split * stretch, to = min(end, from + stretch);
    const bool attends_to_new = from < end && end <= to;

    T(*rotated)[DIM] = reinterpret_cast<T(*)[DIM]>(merged); // its memory gets the results later
    const size_t cache_rows = (size_t)(length == 1 ? gridDim.z : gridDim.z / length) * kv_heads * slots;
    const Rows key_rows(keys, cache_rows, DIM), value_rows(values, cache_rows, DIM);
    const Slots rows(sequence * kv_heads + kv_head, slots, begin);
    struct Loaded {
        Eight low[K_CHUNKS], high[K_CHUNKS], value[V_CHUNKS][4];
    };
    constexpr bool SCARCE = !AHEAD && DIM >= 128; // registers
    // Positions below `limit`.
    auto load_value = [&](Loaded& tile, int c, int first, int limit) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int here = first + quad * 2 + i % 2 + i / 2 * 8;
            bool inside = c * 64 + group * 8 < DIM && here < limit;
            tile.value[c][i] = inside ? value_rows.load(rows.of(here), c * 64 + group * 8) : Rows::none();
        }
    };
    // The last of the values are loaded when the keys are no longer needed.
    constexpr int EARLY = SCARCE ? V_CHUNKS - 1 : V_CHUNKS;
    auto load = [&](Loaded& tile, int first, int limit) {
#pragma unroll
        for (int c = 0; c < K_CHUNKS; c++) {
            bool inside = c * 32 + quad * 8 < DIM;
            int a = first + group, b = a + 8;
            tile.low[c] = inside && a < limit ? key_rows.load(rows.of(a), c * 32 + quad * 8) : Rows::none();
            tile.high[c] = inside && b < limit ? key_rows.load(rows.of(b), c * 32 + quad * 8) : Rows::none();
        }
#pragma unroll
        for (int c = 0; c < EARLY; c++) load_value(tile, c, first, limit);
    };
    constexpr int STEP = WARPS * TILE;
    Loaded even, odd;
    int first = from + warp * TILE;
    const int known = rotates ? min(to, end - 1) : to; // positions before it are in the caches
    if (first < to) load(even, first, known);

    // Queries are rotated by the warps in turn, the new key and value by those of the blocks that attend to it.
    const T* new_at = qkv + (size_t)row * (heads + 2 * kv_heads) * DIM;
    if (rotates) {
        const Rotation<T, (DIM + 63) / 64> rotation(transform, DIM, end - 1);
        wait_for_previous();
        // A warp has at most a few: all of them are loaded first.
        constexpr int TASKS = (HEADS + 2 + WARPS - 1) / WARPS;
        const int tasks = mine + (attends_to_new ? 2 : 0);
        auto head_of = [&](int task) { return task < mine ? first_head + task : heads + (task - mine) * kv_heads + kv_head; };
        typename decltype(rotation)::Pairs pairs[TASKS];
#pragma unroll
        for (int i = 0; i < TASKS; i++) {
            const int task = warp + i * WARPS;
            if (task < tasks) pairs[i] = rotation.load(new_at + (size_t)head_of(task) * DIM, head_of(task));
        }
#pragma unroll
        for (int i = 0; i < TASKS; i++) {
            const int task = warp + i * WARPS;
            if (task >= tasks) break;
            const Rows kept(task == mine ? keys : values, cache_rows, DIM);
            auto store = [&](int at, float x, bool inside) {
                if (task >= mine) {
                    kept.store(rows.of(end - 1), at, x, inside);
                    if (inside) fresh[task - mine][at] = narrow<T>(x);
                } else if (inside) {
                    rotated[task][at] = narrow<T>(x);
                }
            };
            rotation.rotate(store, pairs[i], head_of(task), heads, kv_heads);
        }
    } else {
        for (int i = threadIdx.x; i < mine * DIM / 8; i += WARPS * 32) {
            const uint4* from_qkv = reinterpret_cast<const uint4*>(new_at + (size_t)first_head * DIM);
            reinterpret_cast<uint4*>(rotated)[i] = __ldcg(from_qkv + i);
        }
    }
    __syncthreads();

    // The new position, where it is in the tile that was loaded before it was known.
    if (rotates && first < end && end <= first + TILE && end <= to) {
        auto eight = [&](const Rows& rows_of, const T* of_fresh, int at) -> Eight {
            if constexpr (Rows::IS_PLAIN) {
                return *reinterpret_cast<const uint4*>(of_fresh + at);
            } else {
                return rows_of.load(rows.of(end - 1), at);
            }
        };
#pragma unroll
        for (int c = 0; c < K_CHUNKS; c++) {
            if (c * 32 + quad * 8 >= DIM) continue;
            if (first + group == end - 1) even.low[c] = eight(key_rows, fresh[0], c * 32 + quad * 8);
            if (first + group + 8 == end - 1) even.high[c] = eight(key_rows, fresh[0], c * 32 + quad * 8);
        }
#pragma unroll
        for (int c = 0; c < EARLY; c++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const bool is_new = first + quad * 2 + i % 2 + i / 2 * 8 == end - 1;
                if (is_new && c * 64 + group * 8 < DIM) even.value[c][i] = eight(value_rows, fresh[1], c * 64 + group * 8);
            }
        }
    }

    // The queries, as the second factor: column `group` is a head, and the lane holds its share of each chunk. Where registers
    // are few, shared memory has them: they are the same in every warp.
    [[maybe_unused]] __shared__ uint4 shared_query[SCARCE ? K_CHUNKS : 1][32];
    [[maybe_unused]] uint4 own_query[SCARCE ? 1 : K_CHUNKS];
#pragma unroll
    for (int c = 0; c < K_CHUNKS; c++) {
        if (SCARCE && warp != c % WARPS) continue;
        bool inside = group < mine && c * 32 + quad * 8 < DIM;
        uint4 part = inside ? *reinterpret_cast<const uint4*>(&rotated[group][c * 32 + quad * 8]) : nothing;
        if constexpr (SCARCE) {
            shared_query[c][lane] = part;
        } else {
            own_query[c] = part;
        }
    }
    __syncthreads();
    auto query = [&](int c) {
        if constexpr (SCARCE) {
            return load_shared(&shared_query[c][lane]);
        } else {
            return own_query[c];
        }
    };

    // Rows of the result are dimensions, columns heads: this lane's are the heads 2·quad and 2·quad + 1.
    float acc[V_CHUNKS][4][4] = {};
    float top[2] = {LOWEST, LOWEST}, sum[2] = {0.f, 0.f};
    auto attend = [&](Loaded& tile, int first) {
        float score[4] = {};
#pragma unroll
        for (int c = 0; c < K_CHUNKS; c++) {
            const uint4 low = Rows::numbers(tile.low[c]), high = Rows::numbers(tile.high[c]), part = query(c);
            mma<T>(score, low.x, high.x, low.y, high.y, part.x, part.y);
            mma<T>(score, low.z, high.z, low.w, high.w, part.z, part.w);
        }
#pragma unroll
        for (int c = EARLY; c < V_CHUNKS; c++) load_value(tile, c, first, to);
        float keep[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            bool sees_low = first + group < to, sees_high = first + group + 8 < to;
            float a = sees_low ? softcapped(score[h] * scale, cap) : LOWEST;
            float b = sees_high ? softcapped(score[2 + h] * scale, cap) : LOWEST;
            float now = fmaxf(a, b);
#pragma unroll
            for (int step = 4; step < 32; step <<= 1) now = fmaxf(now, __shfl_xor_sync(ALL_LANES, now, step));
            now = fmaxf(now, top[h]);
            keep[h] = __expf(top[h] - now);
            top[h] = now;
            score[h] = sees_low ? __expf(a - now) : 0.f;
            score[2 + h] = sees_high ? __expf(b - now) : 0.f;
            // Each lane sums over its own positions.
            sum[h] = sum[h] * keep[h] + score[h] + score[2 + h];
        }
        uint32_t b0 = transposed(pack<T>(score[0], score[1])), b1 = transposed(pack<T>(score[2], score[3]));
#pragma unroll
        for (int c = 0; c < V_CHUNKS; c++) {
            const uint4 value[4] = {Rows::numbers(tile.value[c][0]), Rows::numbers(tile.value[c][1]),
                                    Rows::numbers(tile.value[c][2]), Rows::numbers(tile.value[c][3])};
            const uint32_t* p0 = &value[0].x; // positions 2·quad, …
            const uint32_t* p1 = &value[1].x; // 2·quad + 1, …
            const uint32_t* p8 = &value[2].x; // 2·quad + 8, …
            const uint32_t* p9 = &value[3].x; // 2·quad + 9: eight dimensions of each
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float(&rows)[4] = acc[c][i];
                rows[0] *= keep[0];
                rows[1] *= keep[1];
                rows[2] *= keep[0];
                rows[3] *= keep[1];
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                // Row `group` is dimension group·8 + 2i, or the next; row group + 8 the same, four further.
                mma<T>(acc[c][2 * i], lower_halves(p0[i], p1[i]), lower_halves(p0[i + 2], p1[i + 2]),
                       lower_halves(p8[i], p9[i]), lower_halves(p8[i + 2], p9[i + 2]), b0, b1);
                mma<T>(acc[c][2 * i + 1], upper_halves(p0[i], p1[i]), upper_halves(p0[i + 2], p1[i + 2]),
                       upper_halves(p8[i], p9[i]), upper_halves(p8[i + 2], p9[i + 2]), b0, b1);
            }
        }
    };
    // With AHEAD, the next tile is loaded while this one is computed.
    while (first < to) {
        if (AHEAD && first + STEP < to) load(odd, first + STEP, to);
        attend(even, first);
        first += STEP;
        if (first >= to) break;
        if (!AHEAD) {
            load(even, first, to);
            continue;
        }
        if (first + STEP < to) load(even, first + STEP, to);
        attend(odd, first);
        first += STEP;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int step = 4; step < 32; step <<= 1) sum[h] += __shfl_xor_sync(ALL_LANES, sum[h], step);
        if (group == 0) {
            merged_top[warp][quad * 2 + h] = top[h];
            merged_sum[warp][quad * 2 + h] = sum[h];
        }
#pragma unroll
        for (int c = 0; c < V_CHUNKS; c++) {
            int at = c * 64 + group * 8;
            if (at >= DIM) continue;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                merged[warp][quad * 2 + h][at + i] = acc[c][i][h];
                merged[warp][quad * 2 + h][at + 4 + i] = acc[c][i][2 + h];
            }
        }
    }
    __syncthreads();
    // The warps of the block.
#if __CUDA_ARCH__ < 900
    const int slot = row * gridDim.y + blockIdx.y;
#else
    // Head h is completed by block h, or by one of fewer blocks in turn.
    groups::cluster_group cluster = groups::this_cluster();
    if (used > 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
    T* my_out = out + ((size_t)row * heads + first_head) * DIM;
    for (int i = threadIdx.x; i < mine * DIM && split < used; i += WARPS * 32) {
        int h = i / DIM, d = i % DIM;
        float now = merged_top[0][h];
#pragma unroll
        for (int w = 1; w < WARPS; w++) now = fmaxf(now, merged_top[w][h]);
        float all = 0.f, total = 0.f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            float share = __expf(merged_top[w][h] - now);
            all += share * merged[w][h][d];
            total += share * merged_sum[w][h];
        }
        if (used == 1) {
            my_out[i] = narrow<T>(all / (total + of_sink(sinks, first_head + h, now)));
            continue;
        }
#if __CUDA_ARCH__ >= 900
        float* part = cluster.map_shared_rank(came[h / splits * splits + split], h % splits);
#else
        float* part = parts + (((size_t)slot * splits + split) * HEADS + h) * PITCH;
#endif
        part[d] = all;
        if (d == 0) {
            part[DIM] = now;
            part[DIM + 1] = total;
        }
    }
    if (used == 1) return;
#if __CUDA_ARCH__ >= 900
    cluster.sync();
    for (int i = threadIdx.x; i < HEADS / splits * DIM; i += WARPS * 32) {
        int turn = i / DIM, d = i % DIM, h = turn * splits + split;
        if (h >= mine) break;
        const auto* of_blocks = came + turn * splits;
        float now = LOWEST, all = 0.f, total = 0.f;
        for (int b = 0; b < used; b++) now = fmaxf(now, of_blocks[b][DIM]);
#pragma unroll 4
        for (int b = 0; b < used; b++) {
            float share = __expf(of_blocks[b][DIM] - now);
            all += share * of_blocks[b][d];
            total += share * of_blocks[b][DIM + 1];
        }
        my_out[h * DIM + d] = narrow<T>(all / (total + of_sink(sinks, first_head + h, now)));
    }
#else
    // The blocks of the head: a warp combines a query head.
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atomicAdd(arrived + slot, 1u) == (unsigned)used - 1;
        if (is_last) arrived[slot] = 0;
    }
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    constexpr int FOURS = (DIM / 4 + 31) / 32;
    for (int h = warp; h < mine; h += WARPS) {
        const float* parts_at = parts + ((size_t)slot * splits * HEADS + h) * PITCH;
        float now = LOWEST, total = 0.f, all[FOURS][4] = {};
        for (int s = lane; s < used; s += 32) now = fmaxf(now, __ldcg(parts_at + (size_t)s * HEADS * PITCH + DIM));
#pragma unroll
        for (int step = 16; step > 0; step >>= 1) now = fmaxf(now, __shfl_xor_sync(ALL_LANES, now, step));
#pragma unroll 8
        for (int s = 0; s < used; s++) {
            const float* part = parts_at + (size_t)s * HEADS * PITCH;
            float2 ends = __ldcg(reinterpret_cast<const float2*>(part + DIM));
            float share = __expf(ends.x - now);
            total += share * ends.y;
#pragma unroll
            for (int i = 0; i < FOURS; i++) {
                int d = (i * 32 + lane) * 4;
                if (d >= DIM) continue;
                float4 four = __ldcg(reinterpret_cast<const float4*>(part + d));
                all[i][0] += share * four.x;
                all[i][1] += share * four.y;
                all[i][2] += share * four.z;
                all[i][3] += share * four.w;
            }
        }
        total += of_sink(sinks, first_head + h, now);
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            int d = (i * 32 + lane) * 4;
            if (d >= DIM) continue;
            uint2 packed = make_uint2(pack<T>(all[i][0] / total, all[i][1] / total),
                                      pack<T>(all[i][2] / total, all[i][3] / total));
            *reinterpret_cast<uint2*>(my_out + h * DIM + d) = packed;
        }
    }
#endif
}

// Any number type and head dimension up to 256, without tensor cores: a block computes one head of one row. Its keys and values are in the caches already.
template <typename T, typename Rows>
__device__ void plain_decode_attention(T* out, const T* qkv, void* keys, void* values, const int* position, int length,
                                       int heads, int kv_heads, int slots, int window, float scale, float cap,
                                       const float* sinks, int dim) {
    constexpr int MOST = 8, WARPS = PLAIN_WARPS;
    __shared__ float merged[WARPS][32 * MOST], merged_top[WARPS], merged_sum[WARPS];
    let_next_start();
    wait_for_previous();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.x, row = blockIdx.y;
    const int end = __ldcg(position) + row % length + 1, begin = window > 0 ? max(0, end - window) : 0;
    const T* query_at = qkv + ((size_t)row * (heads + 2 * kv_heads) + head) * dim;
    const size_t all_rows = (size_t)(gridDim.y / length) * kv_heads * slots;
    const Rows key_rows(keys, all_rows, dim), value_rows(values, all_rows, dim);
    const Slots rows(row / length * kv_heads + head / (heads / kv_heads), slots, begin);
    float query[MOST], acc[MOST] = {}, top = LOWEST, sum = 0.f;
#pragma unroll
    for (int i = 0; i < MOST; i++) query[i] = lane + 32 * i < dim ? wide(query_at[lane + 32 * i]) * scale : 0.f;
    for (int key = begin + warp; key < end; key += WARPS) {
        float score = 0.f;
#pragma unroll
        for (int i = 0; i < MOST; i++) {
            if (lane + 32 * i < dim) score += query[i] * key_rows.number(rows.of(key), lane + 32 * i);
        }
        score = softcapped(warp_sum(score), cap);
        float now = fmaxf(top, score), keep = expf(top - now), share = expf(score - now);
        top = now;
        sum = sum * keep + share;
#pragma unroll
        for (int i = 0; i < MOST; i++) {
            if (lane + 32 * i >= dim) continue;
            acc[i] = acc[i] * keep + share * value_rows.number(rows.of(key), lane + 32 * i);
        }
    }
#pragma unroll
    for (int i = 0; i < MOST; i++) merged[warp][lane + 32 * i] = acc[i];
    if (lane == 0) merged_top[warp] = top, merged_sum[warp] = sum;
    __syncthreads();
    for (int d = threadIdx.x; d < dim; d += WARPS * 32) {
        float now = LOWEST, all = 0.f, total = 0.f;
        for (int w = 0; w < WARPS; w++) now = fmaxf(now, merged_top[w]);
        for (int w = 0; w < WARPS; w++) {
            float share = expf(merged_top[w] - now);
            all += share * merged[w][d];
            total += share * merged_sum[w];
        }
        out[((size_t)row * heads + head) * dim + d] = narrow<T>(all / (total + of_sink(sinks, head, now)));
    }
}

// Loading the next tile ahead uses the registers of a second block: it is faster with few blocks and up to 128
// dimensions.
#define DECODE(ROWS, PREFIX, T, DIM)                                                                                 \
    DECODE_AS(PREFIX##decode_attention_##DIM##_##T, ROWS, T, DIM, (DIM <= 128))                                      \
    DECODE_AS(crowded_##PREFIX##decode_attention_##DIM##_##T, ROWS, T, DIM, false)
#define DECODE_AS(NAME, ROWS, T, DIM, AHEAD)                                                                         \
    extern "C" __global__ void __launch_bounds__(WARPS_OF(DIM) * 32, (AHEAD) ? 1 : 2)                                \
        NAME(T* out, const T* qkv, void* keys, void* values, float* parts, unsigned* arrived, const int* position,   \
             int length, int heads, int kv_heads, int slots, int window, float scale, float cap,                     \
             const float* sinks, const T* bias,                                                                      \
             const float* query_norm, const float* key_norm, const float* cosines, const float* sines, float eps) {  \
        decode_attention<T, ROWS<T>, DIM, AHEAD>(out, qkv, keys, values, parts, arrived, position, length, heads,    \
                                                 kv_heads, slots, window, scale, cap, sinks,                         \
                                                 Transform<T>{bias, query_norm, key_norm, cosines, sines, eps});     \
    }
#define PLAIN_DECODE(ROWS, PREFIX, T, NAME)                                                                          \
    extern "C" __global__ void __launch_bounds__(PLAIN_WARPS * 32)                                                   \
        PREFIX##plain_decode_attention_##NAME(T* out, const T* qkv, void* keys, void* values, const int* position,   \
                                              int length, int heads, int kv_heads, int slots, int window,            \
                                              float scale, float cap, const float* sinks, int dim) {                 \
        plain_decode_attention<T, ROWS<T>>(out, qkv, keys, values, position, length, heads, kv_heads, slots, window, \
                                           scale, cap, sinks, dim);                                                  \
    }
