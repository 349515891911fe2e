// Products with two to 32 rows of activations: how those lie in memory, and what becomes of the sums.
#pragma once

#include "common.cuh"

// Numbers of the results, the bias and the residual.
enum class Kind { BF16, F16, F32 };
__device__ __forceinline__ float number_at(const void* from, size_t i, Kind kind) {
    if (kind == Kind::BF16) return wide(reinterpret_cast<const bf16*>(from)[i]);
    if (kind == Kind::F16) return wide(reinterpret_cast<const f16*>(from)[i]);
    return reinterpret_cast<const float*>(from)[i];
}
__device__ __forceinline__ float rounded(float x, Kind kind) {
    return kind == Kind::BF16 ? wide(narrow<bf16>(x)) : kind == Kind::F16 ? wide(narrow<f16>(x)) : x;
}
__device__ __forceinline__ void put(void* to, size_t i, float x, Kind kind) {
    if (kind == Kind::BF16) reinterpret_cast<bf16*>(to)[i] = narrow<bf16>(x);
    else if (kind == Kind::F16) reinterpret_cast<f16*>(to)[i] = narrow<f16>(x);
    else reinterpret_cast<float*>(to)[i] = x;
}

// What is multiplied with the weights, and where it goes: y (m, n) with rows of `stride`, its numbers f32 where `wide_y`. x is as `ordered_rows` puts it: of eight
// rows, 32 lanes have 16 bytes of each 32 columns, and a row's results are multiplied with its factor.
struct FewRows {
    void* y;
    const uint4* x;
    const float* factors;
    const void *bias, *residual;
    Kind kind;
    int m, n, k, groups, stride;
    bool gated, wide_y;
    int activation;
    // Of the first row, and of the first bias.
    int first = 0;
    size_t of_bias = 0;

    // Adds up what WARPS warps have of a strip. By all threads of the block, after a barrier.
    template <int WARPS, int COLUMNS> __device__ __forceinline__ void finish(const float (&parts)[WARPS][16][COLUMNS], int strip) const {
        const int rows = gated ? 8 : 16;
        for (int i = threadIdx.x; i < rows * m; i += WARPS * 32) {
            const int of = i / rows, row = i % rows, column = strip * rows + row;
            if (column >= n) continue;
            const size_t to = (size_t)(first + of) * stride + column;
            auto total = [&](int at) {
                float sum = 0.f;
#pragma unroll
                for (int j = 0; j < WARPS; j++) sum += parts[j][at][of];
                return sum * __ldcg(factors + of);
            };
            float sum = total(row);
            if (bias) sum += number_at(bias, of_bias + column, kind);
            if (gated) {
                float up = total(row + 8);
                if (bias) up += number_at(bias, of_bias + n + column, kind);
                // Rounded as the result of a separate product is.
                sum = gated_value(rounded(sum, kind), rounded(up, kind), activation);
            } else {
                if (residual) sum = rounded(sum, kind) + number_at(residual, to, kind);
            }
            put(y, to, sum, wide_y ? Kind::F32 : kind);
        }
    }
};
#define FEW_ROWS_PARAMETERS                                                                                          \
    void *y, const uint4 *x, const float *factors, const void *bias, const void *residual, int kind, int m, int n, int k, \
        int groups, int stride, int gated, int wide_y, int activation
#define FEW_ROWS                                                                                                     \
    FewRows {                                                                                                        \
        y, x, factors, bias, residual, (Kind)kind, m, n, k, groups, stride, gated != 0, wide_y != 0, activation      \
    }
