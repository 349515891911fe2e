// Weights of eight bits with four of them for the exponent (e4m3), times a few rows of activations, and as plain numbers for products of many rows. A scale belongs to
// 128 columns of one row or of several.
//
// As in `skinny.cu`, weights go from memory directly into the tensor cores' fragments; codes become numbers of the activations' type on the way, exactly.
#include "common.cuh"

constexpr int WARPS = 8;
constexpr int EACH = 16;             // neighbours that a thread loads
constexpr int CHUNK = 4 * EACH;      // columns of one load of a warp
constexpr int SCALED = 128;          // columns of a scale
constexpr int UNROLL = 4;            // chunks in flight
constexpr int SPAN = UNROLL * CHUNK; // columns of one iteration of a warp

// Two codes, each in the high byte of a half, as numbers: the bits of exponent and mantissa move to their places, and a factor makes up for the other bias. Numbers
// below the normal ones stay right.
template <typename T> __device__ __forceinline__ uint32_t numbers(uint32_t codes);
template <> __device__ __forceinline__ uint32_t numbers<bf16>(uint32_t codes) {
    uint32_t bits = (codes & 0x80008000u) | ((codes >> 4) & 0x07f007f0u);
    __nv_bfloat162 times = __float2bfloat162_rn(0x1p120f);
    __nv_bfloat162 both = __hmul2(*reinterpret_cast<__nv_bfloat162*>(&bits), times);
    return *reinterpret_cast<uint32_t*>(&both);
}
template <> __device__ __forceinline__ uint32_t numbers<f16>(uint32_t codes) {
    uint32_t bits = (codes & 0x80008000u) | ((codes >> 1) & 0x3f803f80u);
    __half2 both = __hmul2(*reinterpret_cast<__half2*>(&bits), __float2half2_rn(256.f));
    return *reinterpret_cast<uint32_t*>(&both);
}
// Four codes as two pairs of numbers.
template <typename T> __device__ __forceinline__ void widened(uint32_t four, uint32_t& low, uint32_t& high) {
    low = numbers<T>(__byte_perm(four, 0, 0x1404));
    high = numbers<T>(__byte_perm(four, 0, 0x3424));
}
__device__ __forceinline__ float number(uint32_t code) {
    return __uint_as_float((code & 0x80) << 24 | (code & 0x7f) << 20) * 0x1p120f;
}

struct Scales {
    const float* values;
    int rows;    // rows that share one
    int columns; // of the table
    __device__ __forceinline__ float of(int row, int column) const {
        return __ldg(values + (size_t)(row / rows) * columns + column / SCALED);
    }
};

// As `skinny`: y = w·x + bias + residual, or the product of gate and up. k is divisible by 16, m ≤ 8.
template <typename T, typename Out, bool GATED>
__device__ void fp8(Out* y, const uint8_t* w, const float* scale_values, int scale_rows, const T* x, const T* bias,
                    const T* residual, int m, int n, int k, int activation) {
    constexpr int ROWS = GATED ? 8 : 16;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
    const int first_row = blockIdx.x * ROWS;
    const int low_row = min(first_row + group, n - 1);
    const int high_row = GATED ? n + low_row : min(first_row + 8 + group, n - 1);
    const uint8_t *low_at = w + (size_t)low_row * k, *high_at = w + (size_t)high_row * k;
    const Scales scales{scale_values, scale_rows, (k + SCALED - 1) / SCALED};
    const uint4 nothing = make_uint4(0, 0, 0, 0);
    uint4 low[UNROLL], high[UNROLL];
    float low_scales[2], high_scales[2];
    auto fetch = [&](int column) {
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int at = column + u * CHUNK + quad * EACH;
            low[u] = at < k ? load_once(low_at + at) : nothing;
            high[u] = at < k ? load_once(high_at + at) : nothing;
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int at = column + half * SCALED;
            low_scales[half] = at < k ? scales.of(low_row, at) : 0.f;
            high_scales[half] = at < k ? scales.of(high_row, at) : 0.f;
        }
    };
    float sums[4] = {};
    auto multiply = [&](int column) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float part[4] = {};
#pragma unroll
            for (int v = 0; v < UNROLL / 2; v++) {
                const int u = half * (UNROLL / 2) + v, at = column + u * CHUNK + quad * EACH;
                const uint4* from = reinterpret_cast<const uint4*>(x + (size_t)group * k + at);
                const bool inside = group < m && at < k;
                const uint4 b[2] = {inside ? __ldcg(from) : nothing, inside ? __ldcg(from + 1) : nothing};
                const uint32_t *of_low = &low[u].x, *of_high = &high[u].x;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    uint32_t a0, a1, a2, a3;
                    widened<T>(of_low[i], a0, a2);
                    widened<T>(of_high[i], a1, a3);
                    const uint4& of_x = b[i / 2];
                    mma<T>(part, a0, a1, a2, a3, i % 2 ? of_x.z : of_x.x, i % 2 ? of_x.w : of_x.y);
                }
            }
            sums[0] += part[0] * low_scales[half];
            sums[1] += part[1] * low_scales[half];
            sums[2] += part[2] * high_scales[half];
            sums[3] += part[3] * high_scales[half];
        }
    };
    constexpr int STRIDE = WARPS * SPAN;
    int column = warp * SPAN;
    fetch(column);
    let_next_start();
    wait_for_previous();
    while (column < k) {
        multiply(column);
        column += STRIDE;
        if (column < k) fetch(column);
    }

    __shared__ float parts[WARPS][16][9];
#pragma unroll
    for (int i = 0; i < 4; i++) parts[warp][group + 8 * (i / 2)][quad * 2 + i % 2] = sums[i];
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
        if (GATED) {
            // Rounded as the result of a separate product is.
            sum = activate(wide(narrow<T>(sum)), activation) * wide(narrow<T>(total(row + 8, of)));
        } else {
            if (bias) sum += wide(bias[at]);
            if (residual) sum = wide(narrow<T>(sum)) + wide(residual[to]);
        }
        y[to] = narrow<Out>(sum);
    }
}

// Without tensor cores: a warp computes a row of the weights.
template <bool GATED>
__device__ void fp8_f32(float* y, const uint8_t* w, const float* scale_values, int scale_rows, const float* x,
                        const float* bias, const float* residual, int m, int n, int k, int activation) {
    let_next_start();
    wait_for_previous();
    const int lane = threadIdx.x % 32, row = blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= n) return;
    const Scales scales{scale_values, scale_rows, (k + SCALED - 1) / SCALED};
    auto weight = [&](int of, int column) { return number(w[(size_t)of * k + column]) * scales.of(of, column); };
    for (int of = 0; of < m; of++) {
        float sum = 0.f, up = 0.f;
        for (int i = lane; i < k; i += 32) {
            float value = __ldcg(x + (size_t)of * k + i);
            sum += weight(row, i) * value;
            if (GATED) up += weight(n + row, i) * value;
        }
        sum = warp_sum(sum);
        if (GATED) sum = activate(sum, activation) * warp_sum(up);
        if (lane) continue;
        size_t to = (size_t)of * n + row;
        if (!GATED && bias) sum += bias[row];
        if (!GATED && residual) sum += residual[to];
        y[to] = sum;
    }
}

// out (n, k) = w.
template <typename T>
__device__ void fp8_plain(T* out, const uint8_t* w, const float* scale_values, int scale_rows, int n, int k) {
    let_next_start();
    wait_for_previous();
    const Scales scales{scale_values, scale_rows, (k + SCALED - 1) / SCALED};
    const size_t pieces = (size_t)n * (k / EACH);
    for (size_t piece = (size_t)blockIdx.x * blockDim.x + threadIdx.x; piece < pieces; piece += (size_t)gridDim.x * blockDim.x) {
        const int row = piece / (k / EACH), column = piece % (k / EACH) * EACH;
        const uint4 codes = load_once(w + (size_t)row * k + column);
        const uint8_t* bytes = reinterpret_cast<const uint8_t*>(&codes);
        const float scale = scales.of(row, column);
#pragma unroll
        for (int i = 0; i < EACH; i += 8) {
            float eight[8];
#pragma unroll
            for (int j = 0; j < 8; j++) eight[j] = number(bytes[i + j]) * scale;
            store8(out + (size_t)row * k + column + i, eight);
        }
    }
}

// The nearest code of a number below 464; even of two.
__device__ __forceinline__ uint32_t code_of(float x) {
    // Steps between neighbours: 2^-9, and an eighth of the power of two from 2^-6 on.
    float size = fminf(fabsf(x), 448.f);
    int exponent = max((int)(__float_as_uint(size) >> 23) - 127, -6);
    float step = __uint_as_float((uint32_t)(exponent - 3 + 127) << 23);
    float steps = rintf(size / step);
    // Sixteen steps are the first of the next power.
    if (steps == 16.f) steps = 8.f, exponent++;
    uint32_t code = steps < 8.f ? (uint32_t)steps : (uint32_t)(exponent + 7) << 3 | ((uint32_t)steps - 8);
    return code | (x < 0.f ? 0x80 : 0);
}

// The codes of n numbers times `times`.
template <typename T> __device__ void fp8_from(uint8_t* codes, const T* x, size_t n, float times) {
    let_next_start();
    wait_for_previous();
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        codes[i] = code_of(wide(x[i]) * times);
}

#define FP8(NAME, T, OUT, GATED)                                                                                     \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 3)                                                      \
        NAME(OUT* y, const uint8_t* w, const float* scales, int scale_rows, const T* x, const T* bias,               \
             const T* residual, int m, int n, int k, int activation) {                                               \
        fp8<T, OUT, GATED>(y, w, scales, scale_rows, x, bias, residual, m, n, k, activation);                        \
    }
#define FP8_OF(T, NAME)                                                                                              \
    extern "C" __global__ void fp8_plain_##NAME(T* out, const uint8_t* w, const float* scales, int scale_rows,       \
                                                int n, int k) {                                                      \
        fp8_plain<T>(out, w, scales, scale_rows, n, k);                                                              \
    }                                                                                                                \
    extern "C" __global__ void fp8_from_##NAME(uint8_t* codes, const T* x, size_t n, float times) {                  \
        fp8_from<T>(codes, x, n, times);                                                                             \
    }
FOR_BF16(FP8(fp8_bf16, bf16, bf16, false) FP8(fp8_gated_bf16, bf16, bf16, true) FP8_OF(bf16, bf16))
FOR_F16(FP8(fp8_f16, f16, f16, false) FP8(fp8_gated_f16, f16, f16, true) FP8_OF(f16, f16))
FOR_F32(FP8_OF(float, f32))
#ifdef OF_f32
extern "C" __global__ void __launch_bounds__(WARPS * 32)
    fp8_f32(float* y, const uint8_t* w, const float* scales, int scale_rows, const float* x, const float* bias,
            const float* residual, int m, int n, int k, int activation) {
    fp8_f32<false>(y, w, scales, scale_rows, x, bias, residual, m, n, k, activation);
}
extern "C" __global__ void __launch_bounds__(WARPS * 32)
    fp8_gated_f32(float* y, const uint8_t* w, const float* scales, int scale_rows, const float* x, const float* bias,
                  const float* residual, int m, int n, int k, int activation) {
    fp8_f32<true>(y, w, scales, scale_rows, x, bias, residual, m, n, k, activation);
}
#endif
