// Operations on rows of activations: embedding lookup, RMS norm, the gated product of a prefill, the order for products with a few rows.
#include <type_traits>

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
            for (int j = 0; j < 8; j++) gate[j] = gated_value(gate[j], up[j], activation);
            store8(out + row * n + column, gate);
        }
        return;
    }
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * n; i += stride) {
        size_t row = i / n, column = i % n;
        float gate = wide(gate_up[row * 2 * n + column]), up = wide(gate_up[row * 2 * n + n + column]);
        out[i] = narrow<T>(gated_value(gate, up, activation));
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

// Rows of activations in the order of `few_rows.cuh`: halves, each row times a power of two, and normed where `norm` is given. A lane's 16 bytes of 32 columns are
// four columns from 4·(lane % 4) on and those 16 further; of FP8, eight neighbours. Columns beyond k are zeros. `factors` gets what a row's results are multiplied with,
// times `times`. A block a row; with a `plan` of experts, that of position blockIdx.x in tile blockIdx.y, from the row of its pair in `order`, `active` of which share one.
template <typename T>
__device__ void ordered_rows(uint4* ordered, float* factors, const T* x, int k, int groups, int fp8, float times,
                             const float* norm, float eps, const int* plan, const int* order, int active) {
    constexpr int WARPS = 8, THREADS = WARPS * 32;
    let_next_start();
    wait_for_previous();
    int row = blockIdx.x, from = row;
    if (plan) {
        if (blockIdx.y >= __ldcg(plan)) return;
        const int* own = plan + 1 + 3 * blockIdx.y;
        const int position = __ldcg(own + 1) + row;
        if (position >= __ldcg(own + 2)) return;
        from = order ? __ldcg(order + position) / active : position;
        row += blockIdx.y * gridDim.x;
    }
    x += (size_t)from * k;
    ordered += (size_t)(row / 8) * groups * 32 + row % 8 * 4;
    auto load = [&](int column, float (&v)[4], float& squares) {
        using Four = typename std::conditional<sizeof(T) == 2, uint2, uint4>::type;
        Four raw = __ldcg(reinterpret_cast<const Four*>(x + column));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[i] = wide(reinterpret_cast<const T*>(&raw)[i]);
            squares = fmaf(v[i], v[i], squares);
        }
        if (!norm) return;
        float4 weights = __ldg(reinterpret_cast<const float4*>(norm + column));
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] *= reinterpret_cast<const float*>(&weights)[i];
    };
    float squares = 0.f, largest = 0.f;
    for (int column = threadIdx.x * 4; column < k; column += THREADS * 4) {
        float v[4];
        load(column, v, squares);
#pragma unroll
        for (int i = 0; i < 4; i++) largest = fmaxf(largest, fabsf(v[i]));
    }
    __shared__ float most[WARPS];
    // Positive numbers are ordered as their bits are.
    largest = __uint_as_float(__reduce_max_sync(ALL_LANES, __float_as_uint(largest)));
    if (threadIdx.x % 32 == 0) most[threadIdx.x / 32] = largest;
    squares = block_sum(squares);
#pragma unroll
    for (int i = 0; i < WARPS; i++) largest = fmaxf(largest, most[i]);
    // The largest gets the exponent of 2^14.
    const int up = min(14 + 127 - (int)(__float_as_uint(largest) >> 23), 120);
    const float power = __uint_as_float((uint32_t)(up + 127) << 23);
    if (threadIdx.x == 0)
        factors[row] = __uint_as_float((uint32_t)(127 - up) << 23) * times * (norm ? rsqrtf(squares / k + eps) : 1.f);
    for (int i = threadIdx.x; i < groups * 4; i += THREADS) {
        const int group = i / 4, quad = i % 4;
        // Of FP8, two neighbouring groups have the two halves of 16 columns.
        const int first = fp8 ? group / 2 * 64 + quad * 16 + group % 2 * 8 : group * 32 + quad * 4, next = fp8 ? 4 : 16;
        uint32_t packed[4] = {};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float v[4], unused = 0.f;
            if (first + half * next >= k) break;
            load(first + half * next, v, unused);
            packed[2 * half] = pack<f16>(v[0] * power, v[1] * power);
            packed[2 * half + 1] = pack<f16>(v[2] * power, v[3] * power);
        }
        ordered[(size_t)group * 32 + quad] = make_uint4(packed[0], packed[1], packed[2], packed[3]);
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
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(256)                                                                \
        ordered_rows_##NAME(uint4* ordered, float* factors, const T* x, int k, int groups, int fp8, float times,     \
                            const float* norm, float eps, const int* plan, const int* order, int active) {           \
        ordered_rows(ordered, factors, x, k, groups, fp8, times, norm, eps, plan, order, active);                    \
    }
FOR_BF16(ROWS_OF(bf16, bf16))
FOR_F16(ROWS_OF(f16, f16))
FOR_F32(ROWS_OF(float, f32))
