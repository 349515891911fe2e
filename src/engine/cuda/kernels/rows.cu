// Operations on rows of activations: embedding lookup, RMS norm, the gated product of a prefill.
#include "common.cuh"

// Rows of the table, one for each id.
template <typename T> __device__ void embed(T* out, const T* table, const uint32_t* ids, int n, float scale) {
    let_next_start();
    wait_for_previous();
    const T* from = table + (size_t)__ldcg(ids + blockIdx.x) * n;
    T* to = out + (size_t)blockIdx.x * n;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        to[i] = scale == 1.f ? from[i] : narrow<T>(wide(from[i]) * scale);
    }
}

// out = x / rms(x) · weight, row by row; `residual`, where given, is added after it (and out may be residual).
// `every` and `first`: row i of the result is row i·every + first of x.
template <typename T>
__device__ void rms_norm(T* out, const T* x, const float* weight, const T* residual, int n, float eps, int every,
                         int first) {
    constexpr int KEPT = 4; // vectors of eight that a thread keeps in registers
    let_next_start();
    const size_t at = (size_t)blockIdx.x * every + first;
    const T* from = x + at * n;
    T* to = out + (size_t)blockIdx.x * n;
    wait_for_previous();
    if (n % 8 == 0 && n <= blockDim.x * 8 * KEPT) {
        float kept[KEPT][8];
        float squares = 0.f;
#pragma unroll
        for (int v = 0; v < KEPT; v++) {
            int i = (v * blockDim.x + threadIdx.x) * 8;
            if (i >= n) break;
            load8(from + i, kept[v]);
#pragma unroll
            for (int j = 0; j < 8; j++) squares += kept[v][j] * kept[v][j];
        }
        float scale = rsqrtf(block_sum(squares) / n + eps);
#pragma unroll
        for (int v = 0; v < KEPT; v++) {
            int i = (v * blockDim.x + threadIdx.x) * 8;
            if (i >= n) break;
            float weights[8], before[8];
            load8(weight + i, weights);
#pragma unroll
            for (int j = 0; j < 8; j++) kept[v][j] = kept[v][j] * scale * weights[j];
            if (residual) {
                load8(residual + (size_t)blockIdx.x * n + i, before);
#pragma unroll
                for (int j = 0; j < 8; j++) kept[v][j] = wide(narrow<T>(kept[v][j])) + before[j];
            }
            store8(to + i, kept[v]);
        }
        return;
    }
    float squares = 0.f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float value = wide(from[i]);
        squares += value * value;
    }
    float scale = rsqrtf(block_sum(squares) / n + eps);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float value = wide(from[i]) * scale * weight[i];
        if (residual) value = wide(narrow<T>(value)) + wide(residual[(size_t)blockIdx.x * n + i]);
        to[i] = narrow<T>(value);
    }
}

// Rows of n gates and n ups become rows of n.
template <typename T> __device__ void gated(T* out, const T* gate_up, size_t rows, int n, int activation) {
    let_next_start();
    wait_for_previous();
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    if (n % 8 == 0) {
        const size_t vectors = rows * (n / 8);
        for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < vectors; i += stride) {
            size_t row = i / (n / 8);
            int column = (int)(i % (n / 8)) * 8;
            float gate[8], up[8];
            load8(gate_up + row * 2 * n + column, gate);
            load8(gate_up + row * 2 * n + n + column, up);
#pragma unroll
            for (int j = 0; j < 8; j++) gate[j] = activate(gate[j], activation) * up[j];
            store8(out + row * n + column, gate);
        }
        return;
    }
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * n; i += stride) {
        size_t row = i / n, column = i % n;
        float gate = wide(gate_up[row * 2 * n + column]), up = wide(gate_up[row * 2 * n + n + column]);
        out[i] = narrow<T>(activate(gate, activation) * up);
    }
}

// Limits each of n numbers to ±cap.
extern "C" __global__ void softcap(float* x, size_t n, float cap) {
    let_next_start();
    wait_for_previous();
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        x[i] = softcapped(__ldcg(x + i), cap);
    }
}

// x += bias, row by row.
template <typename T> __device__ void add_bias(T* x, const T* bias, size_t rows, int n) {
    let_next_start();
    wait_for_previous();
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * n; i += (size_t)gridDim.x * blockDim.x) {
        x[i] = narrow<T>(wide(x[i]) + wide(bias[i % n]));
    }
}

#define ROWS_OF(T, NAME)                                                                                             \
    extern "C" __global__ void embed_##NAME(T* out, const T* table, const uint32_t* ids, int n, float scale) {       \
        embed(out, table, ids, n, scale);                                                                            \
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(1024)                                                               \
        rms_norm_##NAME(T* out, const T* x, const float* weight, const T* residual, int n, float eps, int every,     \
                        int first) {                                                                                 \
        rms_norm(out, x, weight, residual, n, eps, every, first);                                                    \
    }                                                                                                                \
    extern "C" __global__ void gated_##NAME(T* out, const T* gate_up, size_t rows, int n, int activation) {                \
        gated(out, gate_up, rows, n, activation);                                                                          \
    }                                                                                                                \
    extern "C" __global__ void add_bias_##NAME(T* x, const T* bias, size_t rows, int n) {                            \
        add_bias(x, bias, rows, n);                                                                                  \
    }
FOR_BF16(ROWS_OF(bf16, bf16))
FOR_F16(ROWS_OF(f16, f16))
FOR_F32(ROWS_OF(float, f32))
