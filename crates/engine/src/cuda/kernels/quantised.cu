// Quantised weights times one row of activations, and as plain numbers for products of many rows; a few rows are in quantised_rows.cu.
//
// The weights are read once. The warps of a block share the columns of 16 rows; each copies its tiles ahead into a ring of its own in shared memory, the first
// ones before the previous kernel has ended. Activations are rounded to eight bits with a scale for each
// 32 of them, as llama.cpp does, and the products are of integers: codes need no conversion. Sums of a group become floats there, times both scales.
//
// The tensor cores have seven columns to spare. A group's activations go into the column of its number and zeros into the others, so
// that eight groups are summed apart in one accumulator, and each lane scales a fourth of them.
//
// Where rows are few and long, the blocks of a cluster share the columns of a strip, and the first of them adds up what the others send it.
#include <cooperative_groups.h>

#include "quantised.cuh"

constexpr int MOST_SHARING = 4; // blocks of a strip

// Products of the same activations with two matrices run side by side: the second one starts when the first has waited for the activations.
enum class Turn { ALONE, FIRST, SECOND };

// All blocks of a cluster come to `arrive_at_cluster` before one is through `wait_for_cluster`.
__device__ __forceinline__ void arrive_at_cluster() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
// The same variable of the first block of the cluster.
__device__ __forceinline__ float* in_first_block(float* at) {
#if __CUDA_ARCH__ >= 900
    return cooperative_groups::this_cluster().map_shared_rank(at, 0);
#else
    return at;
#endif
}

// A sum s of integers below 2^22 comes out of the tensor cores as the float 1.5·2^23 + s: no conversion.
constexpr int MAGIC = 0x4b400000;
__device__ __forceinline__ float summed(int bits) { return __int_as_float(bits) - 12582912.f; }

template <bool SIGNED>
__device__ __forceinline__ void mma_32(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                       uint32_t b1) {
    if (SIGNED)
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_16(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a0), "r"(a1), "r"(b));
}

// Rounds a row of k activations to eight bits. A group's bytes are in the order of the lanes: 8·quad, the first half's four and then the second half's. `scales` gets the
// scale, and times it the sums of the two halves and of the group. Groups beyond k are zeros. All threads of the block take part.
// With `norm` the activations are multiplied with the weights of a norm first. Returns a thread's sum of squares.
// `early` has the first weights of the norm, which are loaded already.
constexpr int EARLY = 2;
template <typename T>
__device__ __forceinline__ float round_row(uint8_t* rounded, float4* scales, const T* x, int k, int groups,
                                           const float* norm, const float4 (*early)[2]) {
    // Some loads in flight at a time: each takes long.
    constexpr int FLIGHT = sizeof(T) == 2 ? 4 : 2;
    float squares = 0.f;
    for (int base = threadIdx.x; base - (int)threadIdx.x < groups * 4; base += FLIGHT * THREADS) {
        constexpr int PARTS = sizeof(T) / 2;
        uint4 raw[FLIGHT][PARTS] = {};
#pragma unroll
        for (int u = 0; u < FLIGHT; u++) {
            int chunk = base + u * THREADS;
#pragma unroll
            for (int i = 0; i < PARTS; i++)
                if (chunk * 8 < k) raw[u][i] = __ldcg(reinterpret_cast<const uint4*>(x + chunk * 8) + i);
        }
#pragma unroll
        for (int u = 0; u < FLIGHT; u++) {
            int chunk = base + u * THREADS, group = chunk / 4, part = chunk % 4;
            // For all threads of the block, or for none.
            if (chunk - (int)threadIdx.x >= groups * 4) break;
            float v[8];
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] = wide(reinterpret_cast<const T*>(raw[u])[i]);
            if (norm && chunk * 8 < k) {
                bool is_early = u < EARLY && base == threadIdx.x;
                float4 of_norm[2];
#pragma unroll
                for (int i = 0; i < 2; i++)
                    of_norm[i] = is_early ? early[u < EARLY ? u : 0][i] : __ldg(reinterpret_cast<const float4*>(norm) + 2 * chunk + i);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    squares = fmaf(v[i], v[i], squares);
                    v[i] *= reinterpret_cast<const float*>(of_norm)[i];
                }
            }
            float largest = 0.f;
#pragma unroll
            for (int i = 0; i < 8; i++) largest = fmaxf(largest, fabsf(v[i]));
            largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
            float scale = largest / 127.f, inverse = largest > 0.f ? 127.f / largest : 0.f;
            int bits[8], sum = 0;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                bits[i] = __float_as_int(fmaf(v[i], inverse, 12582912.f));
                sum += bits[i] - MAGIC;
            }
            auto packed = [&](int i) {
                return __byte_perm(__byte_perm(bits[i], bits[i + 1], 0x0040), __byte_perm(bits[i + 2], bits[i + 3], 0x0040), 0x5410);
            };
            sum += __shfl_xor_sync(ALL_LANES, sum, 1);
            int other = __shfl_xor_sync(ALL_LANES, sum, 2);
            if (group >= groups) continue;
            uint8_t* at = rounded + group * GROUP + 16 * (part % 2) + 4 * (part / 2);
            *reinterpret_cast<uint32_t*>(at) = packed(0);
            *reinterpret_cast<uint32_t*>(at + 8) = packed(4);
            if (part == 0) scales[group] = make_float4(scale, scale * sum, scale * other, scale * (sum + other));
        }
    }
    return squares;
}

// y[n] = Σ_k w[n, k] · x[k] + bias + residual, where those are given; or activate(gate) · up of a gated matrix, each plus its bias. Its numbers
// are f32 where `wide_y`. A warp copies `ahead` tiles ahead. Each block rounds x itself, and norms it where `norm` is given.
// SHARED: `shared_by` blocks of a cluster have a strip.
template <Format F, typename T, bool GATED, bool SHARED = false>
__device__ void quantised(void* y, const uint8_t* w, const T* x, const T* bias, const T* residual, int n, int k, int activation,
                          int wide_y, const float* norm, float eps, int ahead, Turn turn = Turn::ALONE, int shared_by = 1) {
    using L = Layout<F>;
    constexpr int ROWS = GATED ? 8 : 16;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4, quad = lane % 4;
    const int all_tiles = (k + L::COLUMNS - 1) / L::COLUMNS, strips = (n + ROWS - 1) / ROWS;
    // This block's share of the tiles of a row; k becomes its columns.
    const int rank = SHARED ? blockIdx.x % shared_by : 0, own_strip = SHARED ? blockIdx.x / shared_by : blockIdx.x;
    const int strip_step = SHARED ? gridDim.x / shared_by : gridDim.x, each = SHARED ? (all_tiles + shared_by - 1) / shared_by : all_tiles;
    const int first_tile = rank * each, tiles = SHARED ? max(0, min(each, all_tiles - first_tile)) : all_tiles;
    [[maybe_unused]] __shared__ float came[2][MOST_SHARING - 1][16];
    if constexpr (SHARED) {
        k = max(0, min(k - first_tile * L::COLUMNS, tiles * L::COLUMNS));
        x += first_tile * L::COLUMNS;
        arrive_at_cluster();
    }
    const int groups = tiles * L::GROUPS;
    extern __shared__ uint4 dynamic[];
    // A ring of tiles for each warp, then the activations.
    uint8_t* ring = reinterpret_cast<uint8_t*>(dynamic) + warp * (ahead + 1) * L::BYTES;
    uint8_t* staged = reinterpret_cast<uint8_t*>(dynamic) + WARPS * (ahead + 1) * L::BYTES;
    float4* staged_scales = reinterpret_cast<float4*>(staged + groups * GROUP);
    __shared__ float parts[2][WARPS][16];
    __shared__ float squares[WARPS];

    Copier<F> copier{w + (size_t)first_tile * L::BYTES, ring, own_strip, strips, strip_step, tiles, all_tiles, warp, lane, ahead};
    for (int i = 0; i < ahead; i++) copier.next();
    float4 early[EARLY][2] = {};
    if (norm) {
#pragma unroll
        for (int u = 0; u < EARLY; u++) {
            int chunk = threadIdx.x + u * THREADS;
            if (chunk * 8 >= k) break;
#pragma unroll
            for (int i = 0; i < 2; i++) early[u][i] = __ldg(reinterpret_cast<const float4*>(norm) + 2 * chunk + i);
        }
    }
    if (turn != Turn::FIRST) let_next_start();
    if (turn != Turn::SECOND) wait_for_previous();
    if (turn == Turn::FIRST) let_next_start();
    float square = warp_sum(round_row(staged, staged_scales, x, k, groups, norm, early));
    if (norm && lane == 0) squares[warp] = square;
    __syncthreads();
    // The root of the mean square is one factor of the whole row.
    float of_norm = 1.f;
    if (norm) {
        of_norm = 0.f;
#pragma unroll
        for (int i = 0; i < WARPS; i++) of_norm += squares[i];
        of_norm = rsqrtf(of_norm / k + eps);
    }
    // The first block runs: its memory is there.
    if constexpr (SHARED) wait_for_cluster();

    int buffer = 0;
    for (int strip = own_strip; strip < strips; strip += strip_step, buffer ^= 1) {
        float sums[2] = {};
        for (int tile = warp; tile < tiles; tile += WARPS) {
            Span<F> current;
            fetch<F, true>(current, copier.oldest(), lane);
            int own = tile * L::GROUPS + row;
            uint2 mine = row < L::GROUPS ? *reinterpret_cast<const uint2*>(staged + own * GROUP + quad * 8) : make_uint2(0, 0);
            int first[4] = {MAGIC, MAGIC, MAGIC, MAGIC}, second[4] = {MAGIC, MAGIC, MAGIC, MAGIC};
#pragma unroll
            for (int j = 0; j < L::GROUPS; j++) {
                uint32_t a0, a1, a2, a3, b0 = row == j ? mine.x : 0, b1 = row == j ? mine.y : 0;
                codes(current, 0, j, a0, a2);
                codes(current, 1, j, a1, a3);
                if (L::HALVES) {
                    mma_16(first, a0, a1, b0);
                    mma_16(second, a2, a3, b1);
                } else {
                    mma_32<L::IS_SIGNED>(first, a0, a1, a2, a3, b0, b1);
                }
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int j = 2 * quad + i;
                if (j >= L::GROUPS) continue;
                float4 of_x = staged_scales[tile * L::GROUPS + j];
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    Scale s = scale_of(current, r, j, 0);
                    float sum = s.scale * summed(first[2 * r + i]), offset = s.offset * (L::HALVES ? of_x.y : of_x.w);
                    if (L::HALVES) {
                        Scale t = scale_of(current, r, j, 1);
                        sum += t.scale * summed(second[2 * r + i]);
                        offset += t.offset * of_x.z;
                    }
                    sums[r] += sum * of_x.x;
                    if (L::HAS_OFFSET) sums[r] += offset;
                }
            }
        }
        // The four lanes of a row have scaled different groups.
#pragma unroll
        for (int r = 0; r < 2; r++) {
            sums[r] += __shfl_xor_sync(ALL_LANES, sums[r], 1);
            sums[r] += __shfl_xor_sync(ALL_LANES, sums[r], 2);
            if (quad == 0) parts[buffer][warp][row + 8 * r] = sums[r];
        }
        // The other buffer is written next, after every thread has read it: they all came here since.
        __syncthreads();
        if constexpr (SHARED) {
            if (rank > 0 && threadIdx.x < 16) {
                float sum = 0.f;
#pragma unroll
                for (int i = 0; i < WARPS; i++) sum += parts[buffer][i][threadIdx.x];
                *in_first_block(&came[buffer][rank - 1][threadIdx.x]) = sum;
            }
            // What came stays until the strip after next: the first block comes here once more before.
            arrive_at_cluster();
            wait_for_cluster();
            if (rank > 0) continue;
        }
        auto total = [&](int of_row) {
            float sum = 0.f;
#pragma unroll
            for (int i = 0; i < WARPS; i++) sum += parts[buffer][i][of_row];
            if constexpr (SHARED) {
                for (int i = 0; i < shared_by - 1; i++) sum += came[buffer][i][of_row];
            }
            return sum * of_norm;
        };
        const int at = strip * ROWS + threadIdx.x;
        if (threadIdx.x >= ROWS || at >= n) continue;
        float sum = total(threadIdx.x);
        if (GATED) {
            float up = total(threadIdx.x + 8);
            if (bias) sum += wide(bias[at]), up += wide(bias[n + at]);
            // Rounded as the result of a separate product is.
            sum = gated_value(wide(narrow<T>(sum)), wide(narrow<T>(up)), activation);
        } else {
            if (bias) sum += wide(bias[at]);
            if (residual) sum = wide(narrow<T>(sum)) + wide(residual[at]);
        }
        if (wide_y) reinterpret_cast<float*>(y)[at] = sum;
        else reinterpret_cast<T*>(y)[at] = narrow<T>(sum);
    }
    // Whatever waits for this kernel also waits for the first one.
    if (turn == Turn::SECOND) wait_for_previous();
}

// For GPUs with clusters.
template <Format F, typename T>
__device__ void quantised_by_cluster(void* y, const uint8_t* w, const T* x, const T* bias, const T* residual, int n, int k,
                                     int wide_y, int ahead, int shared_by) {
#if __CUDA_ARCH__ >= 900
    quantised<F, T, false, true>(y, w, x, bias, residual, n, k, 0, wide_y, nullptr, 0.f, ahead, Turn::ALONE, shared_by);
#endif
}

// Four weights of a lane, as plain numbers.
template <Format F, typename T>
__device__ __forceinline__ void plain4(T* to, uint32_t four, Scale s, float times) {
    T out[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int code = Layout<F>::IS_SIGNED ? (int)(int8_t)(four >> (8 * i)) : (int)(four >> (8 * i) & 0xff);
        out[i] = narrow<T>(fmaf(s.scale, (float)code, s.offset) * times);
    }
    if (sizeof(T) == 2) *reinterpret_cast<uint2*>(to) = *reinterpret_cast<uint2*>(out);
    else *reinterpret_cast<uint4*>(to) = *reinterpret_cast<uint4*>(out);
}

// The weights of row `r` of a lane in a tile whose columns begin at `column`, those below k.
template <Format F, typename T>
__device__ __forceinline__ void plain_row(T* row, const Span<F>& span, int r, int column, int quad, int k, float times) {
    using L = Layout<F>;
#pragma unroll
    for (int j = 0; j < L::GROUPS; j++) {
        int at = column + j * GROUP + quad * 4;
        if (column + j * GROUP >= k) break;
        uint32_t first, second;
        codes(span, r, j, first, second);
        plain4<F>(row + at, first, scale_of(span, r, j, 0), times);
        plain4<F>(row + at + 16, second, scale_of(span, r, j, L::HALVES ? 1 : 0), times);
    }
}

// out (n or 2n, k) = w, in rows; of matrix blockIdx.y of several that follow each other. A warp a tile.
template <Format F, typename T> __device__ void dequantised(T* out, const uint8_t* w, int n, int k, int gated) {
    using L = Layout<F>;
    let_next_start();
    wait_for_previous();
    const int lane = threadIdx.x % 32, quad = lane % 4;
    const int tiles = (k + L::COLUMNS - 1) / L::COLUMNS, rows = gated ? 8 : 16, strips = (n + rows - 1) / rows;
    const size_t all = (size_t)strips * tiles;
    w += blockIdx.y * all * L::BYTES;
    out += blockIdx.y * (size_t)(gated ? 2 * n : n) * k;
    for (size_t at = blockIdx.x * (size_t)WARPS + threadIdx.x / 32; at < all; at += gridDim.x * (size_t)WARPS) {
        int strip = at / tiles, tile = at % tiles;
        Span<F> span;
        fetch<F, false>(span, w + at * L::BYTES, lane);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = lane / 4 + 8 * r;
            if (has_row(strip, row, n, gated)) plain_row<F>(out + matrix_row(strip, row, n, gated) * k, span, r, tile * L::COLUMNS, quad, k, 1.f);
        }
    }
}

// out[i] = row ids[i] of w times `times`. A block a row.
template <Format F, typename T>
__device__ void embedded(T* out, const uint8_t* w, const uint32_t* ids, int k, float times) {
    using L = Layout<F>;
    let_next_start();
    wait_for_previous();
    const int lane = threadIdx.x % 32, quad = lane % 4, tiles = (k + L::COLUMNS - 1) / L::COLUMNS;
    const uint32_t id = __ldcg(ids + blockIdx.x), strip = id / TILE_ROWS, row = id % TILE_ROWS;
    for (int tile = threadIdx.x / 32; tile < tiles; tile += WARPS) {
        Span<F> span;
        fetch<F, false>(span, w + ((size_t)strip * tiles + tile) * L::BYTES, lane);
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (lane / 4 + 8 * r == row) plain_row<F>(out + (size_t)blockIdx.x * k, span, r, tile * L::COLUMNS, quad, k, times);
    }
}

// Where `ids` are given, row blockIdx.y of y is the product of one of `active` experts with a row of x. An expert has `biases` biases.
template <typename T>
__device__ __forceinline__ void of_expert(void*& y, const uint8_t*& w, const T*& x, const T*& bias, int biases, int n, int k,
                                          const int* ids, int active, size_t expert_bytes) {
    if (!ids) return;
    wait_for_previous();
    const int pair = blockIdx.y;
    const int expert = __ldcg(ids + pair);
    w += expert * expert_bytes;
    if (bias) bias += (size_t)expert * biases;
    x += (size_t)(pair / active) * k;
    y = reinterpret_cast<T*>(y) + (size_t)pair * n;
}

#define KERNELS(F, T)                                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS, 4)                                       \
        quantised_one_##F##_##T(void* y, const uint8_t* w, const T* x, const T* bias, const T* residual, int n, int k,     \
                                int wide_y, const float* norm, float eps, int ahead, const int* ids, int active,     \
                                size_t expert_bytes, int turn) {                                                     \
        of_expert<T>(y, w, x, bias, n, n, k, ids, active, expert_bytes);                                             \
        quantised<F, T, false>(y, w, x, bias, residual, n, k, 0, wide_y, norm, eps, ahead, (Turn)turn);              \
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS, 4)                                       \
        quantised_gated_one_##F##_##T(void* y, const uint8_t* w, const T* x, const T* bias, int n, int k, int activation,  \
                                      const float* norm, float eps, int ahead, const int* ids, int active,           \
                                      size_t expert_bytes) {                                                         \
        of_expert<T>(y, w, x, bias, 2 * n, n, k, ids, active, expert_bytes);                                         \
        quantised<F, T, true>(y, w, x, bias, nullptr, n, k, activation, 0, norm, eps, ahead);                        \
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                            \
        dequantised_##F##_##T(T* out, const uint8_t* w, int n, int k, int gated) {                                     \
        dequantised<F, T>(out, w, n, k, gated);                                                                      \
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                            \
        embedded_##F##_##T(T* out, const uint8_t* w, const uint32_t* ids, int k, float times) {                        \
        embedded<F, T>(out, w, ids, k, times);                                                                       \
    }
#define SHARED_KERNEL(F, T)                                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS, 4)                                                         \
        quantised_shared_##F##_##T(void* y, const uint8_t* w, const T* x, const T* bias, const T* residual, int n,   \
                                   int k, int wide_y, int ahead, int shared_by) {                                    \
        quantised_by_cluster<F>(y, w, x, bias, residual, n, k, wide_y, ahead, shared_by);                            \
    }
#define ALL_SHARED(T)                                                                                                \
    SHARED_KERNEL(Q4_0, T) SHARED_KERNEL(Q4_1, T) SHARED_KERNEL(Q5_0, T) SHARED_KERNEL(Q5_1, T)                      \
    SHARED_KERNEL(Q8_0, T) SHARED_KERNEL(Q2K, T) SHARED_KERNEL(Q3K, T) SHARED_KERNEL(Q4K, T)                         \
    SHARED_KERNEL(Q5K, T) SHARED_KERNEL(Q6K, T) SHARED_KERNEL(IQ4NL, T) SHARED_KERNEL(IQ4XS, T)                      \
    SHARED_KERNEL(MXFP4, T)
#define ALL(T)                                                                                                       \
    KERNELS(Q4_0, T) KERNELS(Q4_1, T) KERNELS(Q5_0, T) KERNELS(Q5_1, T) KERNELS(Q8_0, T) KERNELS(Q2K, T)             \
    KERNELS(Q3K, T) KERNELS(Q4K, T) KERNELS(Q5K, T) KERNELS(Q6K, T) KERNELS(IQ4NL, T) KERNELS(IQ4XS, T) KERNELS(MXFP4, T)
FOR_BF16(ALL(bf16) ALL_SHARED(bf16))
FOR_F16(ALL(f16) ALL_SHARED(f16))
FOR_F32(ALL(f32))
