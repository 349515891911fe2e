// Bias, norm and rotation of one head, by one warp.
#pragma once

#include "common.cuh"

// Of all heads; what is null is not there. Tables of cosines and sines: (capacity, dim / 2).
template <typename T> struct Transform {
    const T* bias;
    const float *query_norm, *key_norm, *cosines, *sines;
    float eps;
};

// Head `head` of `heads` queries, kv_heads keys and kv_heads values, of `dim` numbers, at most 256 and even. `to` may be `from`.
template <typename T>
__device__ __forceinline__ void rotate(T* to, const T* from, const Transform<T>& transform, int head, int heads, int kv_heads,
                                       int dim, int position) {
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
        if (at >= half) continue;
        float a = low[i], b = high[i];
        if (!is_value) {
            float cosine = transform.cosines[(size_t)position * half + at], sine = transform.sines[(size_t)position * half + at];
            a = low[i] * cosine - high[i] * sine;
            b = high[i] * cosine + low[i] * sine;
        }
        to[at] = narrow<T>(a);
        to[at + half] = narrow<T>(b);
    }
}
