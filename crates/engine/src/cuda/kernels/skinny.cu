// Weights times a few rows of activations: y[m, n] = Σ_k w[n, k] · x[m, k]. Most of the time of a decode step.
//
// The weights are read once, from memory directly into the tensor cores' fragments; everything else is small in
// comparison. A warp computes 16 rows of the weights and a share of the columns; the warps of a block share the 16
// rows, so that a block reads long runs of each row, and sum up at the end. The order of k within a product is arbitrary:
// a thread loads eight neighbours of a row at once, and weights and activations have the same permutation.
//
// The first weights are loaded before the previous kernel has ended: they do not depend on it.
#include "common.cuh"

constexpr int WARPS = 8;
constexpr int CHUNK = 32;            // columns of one pair of products
constexpr int UNROLL = 8;            // chunks in flight
constexpr int SPAN = UNROLL * CHUNK; // columns of one iteration of a warp

// `gated`: w holds n rows of gates and then n rows of ups, and y = activate(gate) · up.
// Otherwise y = w·x + bias + residual, where those are given. k is divisible by eight. m ≤ 8·TILES. CARRIED: with rows of x whose norm is `carried`.
template <typename T, typename Out, int TILES, bool GATED, bool CARRIED = false>
__device__ void skinny(Out* y, const T* w, const T* x, const T* bias, const T* residual, int m, int n, int k,
                       int activation, Carried carried = {}) {
    constexpr int ROWS = GATED ? 8 : 16;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
    const int first_row = blockIdx.x * ROWS;
    const int low_row = min(first_row + group, n - 1);
    const int high_row = GATED ? n + low_row : min(first_row + 8 + group, n - 1);
    const T* low_at = w + (size_t)low_row * k + quad * 8;
    const T* high_at = w + (size_t)high_row * k + quad * 8;
    const uint4 nothing = make_uint4(0, 0, 0, 0);

    struct Span {
        uint4 low[UNROLL], high[UNROLL];
    };
    auto fetch = [&](Span& span, int column) {
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int at = column + u * CHUNK;
            bool inside = at + quad * 8 < k;
            span.low[u] = inside ? load_once(low_at + at) : nothing;
            span.high[u] = inside ? load_once(high_at + at) : nothing;
        }
    };
    float sums[TILES][4] = {};
    auto multiply = [&](const Span& span, int column) {
        uint4 b[UNROLL][TILES];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                int row = tile * 8 + group, at = column + u * CHUNK + quad * 8;
                bool inside = row < m && at < k;
                b[u][tile] = inside ? __ldcg(reinterpret_cast<const uint4*>(x + (size_t)row * k + at)) : nothing;
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const uint4 &low = span.low[u], &high = span.high[u];
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                mma<T>(sums[tile], low.x, high.x, low.y, high.y, b[u][tile].x, b[u][tile].y);
                mma<T>(sums[tile], low.z, high.z, low.w, high.w, b[u][tile].z, b[u][tile].w);
            }
        }
    };
    constexpr int STRIDE = WARPS * SPAN;
    int column = warp * SPAN;
    Span span;
    fetch(span, column);
    let_next_start();
    wait_for_previous();
    [[maybe_unused]] __shared__ __align__(16) float squares[CARRIED ? TILES * 8 * MOST_CARRIED : 4];
    if constexpr (CARRIED) carried.copy(squares, m);
    while (column < k) {
        multiply(span, column);
        column += STRIDE;
        if (column < k) fetch(span, column);
    }

    // Row of the weights, then row of x; a column of padding avoids bank conflicts.
    __shared__ float parts[WARPS][16][TILES * 8 + 1];
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
        for (int i = 0; i < 4; i++) parts[warp][group + 8 * (i / 2)][tile * 8 + quad * 2 + i % 2] = sums[tile][i];
    }
    if constexpr (CARRIED) wait_for_copies_of_all();
    __syncthreads();
    auto total = [&](int row, int of) {
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < WARPS; i++) sum += parts[i][row][of];
        return sum;
    };
    for (int i = threadIdx.x; i < ROWS * m; i += WARPS * 32) {
        int of = i / ROWS, row = i % ROWS, at = first_row + row;
        if (at >= n) continue;
        size_t to = (size_t)of * n + at;
        float sum = total(row, of);
        if constexpr (CARRIED) sum *= carried.factor<ROWS>(squares, of, k);
        if (GATED) {
            // Rounded as the result of a separate product is.
            sum = gated_value(wide(narrow<T>(sum)), wide(narrow<T>(total(row + 8, of))), activation);
        } else {
            if (bias) sum += wide(bias[at]);
            if (residual) sum = wide(narrow<T>(sum)) + wide(residual[to]);
        }
        y[to] = narrow<Out>(sum);
    }
}

// f32 has no tensor cores: a warp computes a row of the weights.
template <bool GATED>
__device__ void skinny_f32(float* y, const float* w, const float* x, const float* bias, const float* residual, int m,
                           int n, int k, int activation) {
    let_next_start();
    wait_for_previous();
    const int lane = threadIdx.x % 32, row = blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= n) return;
    for (int of = 0; of < m; of++) {
        float sum = 0.f, up = 0.f;
        for (int i = lane; i < k; i += 32) {
            float value = __ldcg(x + (size_t)of * k + i);
            sum += w[(size_t)row * k + i] * value;
            if (GATED) up += w[(size_t)(n + row) * k + i] * value;
        }
        sum = warp_sum(sum);
        if (GATED) sum = gated_value(sum, warp_sum(up), activation);
        if (lane) continue;
        size_t to = (size_t)of * n + row;
        if (!GATED && bias) sum += bias[row];
        if (!GATED && residual) sum += residual[to];
        y[to] = sum;
    }
}

#define SKINNY(NAME, T, OUT, TILES, GATED)                                                                           \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 2)                                                      \
        NAME(OUT* y, const T* w, const T* x, const T* bias, const T* residual, int m, int n, int k, int activation) {      \
        skinny<T, OUT, TILES, GATED>(y, w, x, bias, residual, m, n, k, activation);                                        \
    }
#define SKINNY_CARRIED(T)                                                                                            \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 2)                                                      \
        skinny_carried_8_##T(T* y, const T* w, const T* x, const T* bias, const T* residual, int m, int n, int k,    \
                             int activation, const float* squares, int blocks, float eps) {                          \
        skinny<T, T, 1, false, true>(y, w, x, bias, residual, m, n, k, activation, Carried{squares, blocks, eps});   \
    }
#define SKINNY_OF(T)                                                                                                 \
    SKINNY(skinny_8_##T, T, T, 1, false)                                                                             \
    SKINNY(skinny_gated_8_##T, T, T, 1, true)                                                                        \
    SKINNY(skinny_logits_8_##T, T, float, 1, false)                                                                  \
    SKINNY_CARRIED(T)
FOR_BF16(SKINNY_OF(bf16))
FOR_F16(SKINNY_OF(f16))

#ifdef OF_f32
extern "C" __global__ void __launch_bounds__(WARPS * 32)
    skinny_f32(float* y, const float* w, const float* x, const float* bias, const float* residual, int m, int n, int k,
               int activation) {
    skinny_f32<false>(y, w, x, bias, residual, m, n, k, activation);
}
extern "C" __global__ void __launch_bounds__(WARPS * 32)
    skinny_gated_f32(float* y, const float* w, const float* x, const float* bias, const float* residual, int m, int n,
                     int k, int activation) {
    skinny_f32<true>(y, w, x, bias, residual, m, n, k, activation);
}
#endif
