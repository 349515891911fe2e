// Between the projections and the attention: bias, norm of each head, rotation, and the copy into the cache.
#include "common.cuh"

// A warp computes one head of one row of qkv = [heads·dim | kv_heads·dim | kv_heads·dim]. Queries stay in place; keys and
// values go to the caches, (batch, kv_heads, capacity, dim). Row b·length + i is position `*start + i` of sequence b.
// dim is even and at most 256. Tables of cosines and sines: (capacity, dim / 2).
template <typename T>
__device__ void rope(T* qkv, T* keys, T* values, const T* bias, const float* query_norm, const float* key_norm,
                     const float* cosines, const float* sines, const int* start, int rows, int length, int heads,
                     int kv_heads, int dim, int capacity, float eps) {
    constexpr int MOST = 4; // pairs of a lane
    let_next_start();
    const int all = heads + 2 * kv_heads, half = dim / 2;
    const int task = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    wait_for_previous();
    if (task >= rows * all) return;
    const int row = task / all, head = task % all;
    const int position = __ldcg(start) + row % length, sequence = row / length;
    T* from = qkv + ((size_t)row * all + head) * dim;
    const bool is_query = head < heads, is_value = head >= heads + kv_heads;
    T* to = from;
    if (!is_query) {
        int kv_head = (head - heads) % kv_heads;
        to = (is_value ? values : keys) + (((size_t)sequence * kv_heads + kv_head) * capacity + position) * dim;
    }
    float low[MOST], high[MOST];
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        int at = lane + 32 * i;
        low[i] = high[i] = 0.f;
        if (at >= half) continue;
        low[i] = wide(from[at]);
        high[i] = wide(from[at + half]);
        if (bias) {
            low[i] = wide(narrow<T>(low[i] + wide(bias[head * dim + at])));
            high[i] = wide(narrow<T>(high[i] + wide(bias[head * dim + at + half])));
        }
    }
    const float* norm = is_query ? query_norm : key_norm;
    if (norm && !is_value) {
        float squares = 0.f;
#pragma unroll
        for (int i = 0; i < MOST; i++) squares += low[i] * low[i] + high[i] * high[i];
        float scale = rsqrtf(warp_sum(squares) / dim + eps);
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
        if (at >= half) continue;
        float a = low[i], b = high[i];
        if (!is_value) {
            float cosine = cosines[(size_t)position * half + at], sine = sines[(size_t)position * half + at];
            a = low[i] * cosine - high[i] * sine;
            b = high[i] * cosine + low[i] * sine;
        }
        to[at] = narrow<T>(a);
        to[at + half] = narrow<T>(b);
    }
}

#define ROPE_OF(T, NAME)                                                                                             \
    extern "C" __global__ void rope_##NAME(T* qkv, T* keys, T* values, const T* bias, const float* query_norm,       \
                                           const float* key_norm, const float* cosines, const float* sines,          \
                                           const int* start, int rows, int length, int heads, int kv_heads, int dim, \
                                           int capacity, float eps) {                                                \
        rope(qkv, keys, values, bias, query_norm, key_norm, cosines, sines, start, rows, length, heads, kv_heads,    \
             dim, capacity, eps);                                                                                    \
    }
FOR_BF16(ROPE_OF(bf16, bf16))
FOR_F16(ROPE_OF(f16, f16))
FOR_F32(ROPE_OF(float, f32))
