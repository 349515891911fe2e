// Between the projections and the attention: bias, norm and rotation of each head, and the copy into the cache.
#pragma once

#include "kv_rows.cuh"

// Of all heads; what is null is not there. Tables of cosines and sines: (capacity, dim / 2).
template <typename T> struct Transform {
    const T* bias;
    const float *query_norm, *key_norm, *cosines, *sines;
    float eps;
};

// The rotation to one position, of heads of `dim` numbers, an even number of at most 64 · PAIRS. A lane has PAIRS pairs of numbers, and loads
// what does not depend on the heads when it is made.
template <typename T, int PAIRS> struct Rotation {
    const Transform<T> transform;
    const int lane, dim, half;
    float cosines[PAIRS], sines[PAIRS], query_norm[2 * PAIRS], key_norm[2 * PAIRS];

    __device__ __forceinline__ Rotation(const Transform<T>& transform, int dim, int position)
        : transform(transform), lane(threadIdx.x % 32), dim(dim), half(dim / 2) {
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const int at = lane + 32 * i;
            const bool inside = at < half;
            cosines[i] = inside ? __ldg(transform.cosines + (size_t)position * half + at) : 1.f;
            sines[i] = inside ? __ldg(transform.sines + (size_t)position * half + at) : 0.f;
            auto load = [&](float (&weights)[2 * PAIRS], const float* norm) {
                weights[i] = norm && inside ? __ldg(norm + at) : 0.f;
                weights[PAIRS + i] = norm && inside ? __ldg(norm + at + half) : 0.f;
            };
            load(query_norm, transform.query_norm);
            load(key_norm, transform.key_norm);
        }
    }

    struct Pairs {
        float low[PAIRS], high[PAIRS];
    };
    // Numbers of head `head`, with their bias.
    __device__ __forceinline__ Pairs load(const T* from, int head) const {
        Pairs pairs;
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            int at = lane + 32 * i;
            pairs.low[i] = pairs.high[i] = 0.f;
            if (at >= half) continue;
            pairs.low[i] = wide(from[at]);
            pairs.high[i] = wide(from[at + half]);
            if (transform.bias) {
                pairs.low[i] = wide(narrow<T>(pairs.low[i] + wide(transform.bias[head * dim + at])));
                pairs.high[i] = wide(narrow<T>(pairs.high[i] + wide(transform.bias[head * dim + at + half])));
            }
        }
        return pairs;
    }

    // Head `head` of `heads` queries, kv_heads keys and kv_heads values. `store` gets a number's index, the number, and whether it is there;
    // it may write where the numbers were loaded from.
    template <typename Store>
    __device__ __forceinline__ void rotate(const Store& store, Pairs& pairs, int head, int heads, int kv_heads) const {
        const bool is_query = head < heads, is_value = head >= heads + kv_heads;
        auto &low = pairs.low, &high = pairs.high;
        if ((is_query ? transform.query_norm : transform.key_norm) && !is_value) {
            float squares = 0.f;
#pragma unroll
            for (int i = 0; i < PAIRS; i++) squares += low[i] * low[i] + high[i] * high[i];
            float scale = rsqrtf(warp_sum(squares) / dim + transform.eps);
#pragma unroll
            for (int i = 0; i < PAIRS; i++) {
                if (lane + 32 * i >= half) continue;
                low[i] = wide(narrow<T>(low[i] * scale * (is_query ? query_norm[i] : key_norm[i])));
                high[i] = wide(narrow<T>(high[i] * scale * (is_query ? query_norm[PAIRS + i] : key_norm[PAIRS + i])));
            }
        }
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            int at = lane + 32 * i;
            if (32 * i >= half) break;
            float a = low[i], b = high[i];
            if (!is_value) {
                a = low[i] * cosines[i] - high[i] * sines[i];
                b = high[i] * cosines[i] + low[i] * sines[i];
            }
            store(at, a, at < half);
            store(at + half, b, at < half);
        }
    }
};

// A warp computes one head of one row of qkv = [heads·dim | kv_heads·dim | kv_heads·dim]. Queries stay in place; keys and
// values go to the caches, `slots` rows for each of batch · kv_heads. Row b·length + i is position `*start + i` of sequence b.
template <typename T, typename Rows>
__device__ void rope(T* qkv, void* keys, void* values, const Transform<T>& transform, const int* start, int rows, int length,
                     int heads, int kv_heads, int dim, int slots) {
    let_next_start();
    const int all = heads + 2 * kv_heads;
    const int task = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    wait_for_previous();
    if (task >= rows * all) return;
    const int row = task / all, head = task % all;
    const int position = __ldcg(start) + row % length, sequence = row / length;
    T* from = qkv + ((size_t)row * all + head) * dim;
    const bool is_query = head < heads, is_value = head >= heads + kv_heads;
    const Rows cache(is_value ? values : keys, (size_t)(rows / length) * kv_heads * slots, dim);
    const Slots slot(sequence * kv_heads + (head - heads) % kv_heads, slots, position);
    auto store = [&](int at, float x, bool inside) {
        if (!is_query) {
            cache.store(slot.of(position), at, x, inside);
        } else if (inside) {
            from[at] = narrow<T>(x);
        }
    };
    // At most 256 numbers.
    const Rotation<T, 4> rotation(transform, dim, position);
    auto pairs = rotation.load(from, head);
    rotation.rotate(store, pairs, head, heads, kv_heads);
}

// A warp copies one row of a prompt's keys or values, (batch·kv_heads, length, dim), to the cache; of more than `slots` positions the last ones.
template <typename T, typename Rows>
__device__ void keep(void* cache, const T* from, int heads, int length, int slots, int dim) {
    let_next_start();
    const int kept = min(length, slots), task = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    wait_for_previous();
    if (task >= heads * kept) return;
    const int head = task / kept, position = length - kept + task % kept, lane = threadIdx.x % 32;
    const Rows rows(cache, (size_t)heads * slots, dim);
    const Slots slot(head, slots, position);
    const T* row = from + ((size_t)head * length + position) * dim;
    for (int first = 0; first < dim; first += 32) {
        const bool inside = first + lane < dim;
        rows.store(slot.of(position), first + lane, inside ? wide(__ldcg(row + first + lane)) : 0.f, inside);
    }
}

#define ROPE(ROWS, PREFIX, T, NAME)                                                                                  \
    extern "C" __global__ void PREFIX##rope_##NAME(T* qkv, void* keys, void* values, const T* bias,                  \
                                                   const float* query_norm, const float* key_norm,                   \
                                                   const float* cosines, const float* sines, const int* start,       \
                                                   int rows, int length, int heads, int kv_heads, int dim,           \
                                                   int slots, float eps) {                                           \
        rope<T, ROWS<T>>(qkv, keys, values, Transform<T>{bias, query_norm, key_norm, cosines, sines, eps}, start,    \
                         rows, length, heads, kv_heads, dim, slots);                                                 \
    }                                                                                                                \
    extern "C" __global__ void PREFIX##keep_##NAME(void* cache, const T* from, int heads, int length, int slots,     \
                                                   int dim) {                                                        \
        keep<T, ROWS<T>>(cache, from, heads, length, slots, dim);                                                    \
    }
