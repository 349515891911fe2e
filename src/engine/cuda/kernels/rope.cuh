// Between the projections and the attention: bias, norm and rotation of each head, and the copy into the cache.
#pragma once

#include "kv_rows.cuh"

// Of all heads; what is null is not there. Tables of cosines and sines: (capacity, dim / 2).
template <typename T> struct Transform {
    const T* bias;
    const float *query_norm, *key_norm, *cosines, *sines;
    float eps;
};

// Head `head` of `heads` queries, kv_heads keys and kv_heads values, of `dim` numbers, at most 256 and even. `store` gets a number's index, the number,
// and whether it is there; it may write to `from`.
template <typename T, typename Store>
__device__ __forceinline__ void rotate(const Store& store, const T* from, const Transform<T>& transform, int head, int heads,
                                       int kv_heads, int dim, int position) {
    constexpr int MOST = 4; // pairs of a lane
    const int lane = threadIdx.x % 32, half = dim / 2;
    const bool is_query = head < heads, is_value = head >= heads + kv_heads;
    float low[MOST], high[MOST];
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        int at = lane + 32 * i;
        low[i] = high[i] = 0.f;
        if (at >= half) continue;
        low[i] = wide(from[at]);
        high[i] = wide(from[at + half]);
        if (transform.bias) {
            low[i] = wide(narrow<T>(low[i] + wide(transform.bias[head * dim + at])));
            high[i] = wide(narrow<T>(high[i] + wide(transform.bias[head * dim + at + half])));
        }
    }
    const float* norm = is_query ? transform.query_norm : transform.key_norm;
    if (norm && !is_value) {
        float squares = 0.f;
#pragma unroll
        for (int i = 0; i < MOST; i++) squares += low[i] * low[i] + high[i] * high[i];
        float scale = rsqrtf(warp_sum(squares) / dim + transform.eps);
#pragma unroll
        for (int i = 0; i < MOST; i++) {
            int at = lane + 32 * i;
            if (at >= half) continue;
            low[i] = wide(narrow<T>(low[i] * scale * norm[at]));
            high[i] = wide(narrow<T>(high[i] * scale * norm[at + half]));
        }
    }
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        int at = lane + 32 * i;
        if (32 * i >= half) break;
        const bool inside = at < half;
        float a = low[i], b = high[i];
        if (!is_value && inside) {
            float cosine = transform.cosines[(size_t)position * half + at], sine = transform.sines[(size_t)position * half + at];
            a = low[i] * cosine - high[i] * sine;
            b = high[i] * cosine + low[i] * sine;
        }
        store(at, a, inside);
        store(at + half, b, inside);
    }
}

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
    rotate(store, from, transform, head, heads, kv_heads, dim, position);
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
