// Products of many rows, where there is no cuBLAS: y[m, n] = Σ_k x[m, k] · w[n, k], or += where `add`.
#include "product.cuh"

constexpr int ROWS = 128;
constexpr int COLUMNS = 128;
constexpr int THREADS = 256;
constexpr int STAGES = 3; // 96 KiB: what every GPU from 8.0 on has
constexpr int TILE_BYTES = (ROWS + COLUMNS) * ROW_BYTES;

__device__ __forceinline__ void load_fragments(uint32_t (&to)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from));
}

// k is divisible by eight. Eight warps, each with 64 rows and 32 columns of the block's 128 by 128.
template <typename T, typename Out>
__device__ void product(Out* y, const T* x, const T* w, int m, int n, int k, int add) {
    extern __shared__ __align__(128) unsigned char shared[];
    int first_row, first_column;
    place_of_block<ROWS, COLUMNS>(m, n, first_row, first_column);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row_of_warp = warp % 2 * 64, column_of_warp = warp / 2 * 32;
    const uint32_t base = shared_address(shared);
    const int tiles = (k + DEPTH - 1) / DEPTH;
    auto copy = [&](int tile) {
        copy_stage<T, ROWS, COLUMNS, THREADS, STAGES>(base, x, w, m, n, k, first_row, first_column, tile);
    };
#pragma unroll
    for (int tile = 0; tile < STAGES - 1; tile++) copy(tile);
    float sums[4][4][4] = {};
    uint32_t a[2][4][4], b[2][2][4];
    auto load = [&](int to, int tile, int step) {
        uint32_t from = base + tile % STAGES * TILE_BYTES;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            load_fragments(a[to][i], piece(from, row_of_warp + i * 16 + lane % 16, step * 2 + lane / 16));
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int row = ROWS + column_of_warp + j * 16 + lane % 8 + lane / 16 * 8;
            load_fragments(b[to][j], piece(from, row, step * 2 + lane / 8 % 2));
        }
    };
    wait_for_copies<STAGES - 2>();
    __syncthreads();
    load(0, 0, 0);
    for (int tile = 0; tile < tiles; tile++) {
#pragma unroll
        for (int step = 0; step < 4; step++) {
            if (step == 0) copy(tile + STAGES - 1);
            if (step == 3) {
                wait_for_copies<STAGES - 2>();
                __syncthreads();
                load(0, tile + 1, 0);
            } else {
                load((step + 1) % 2, tile, step + 1);
            }
            const auto& rows = a[step % 2];
            const auto& columns = b[step % 2];
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    mma<T>(sums[i][j], rows[i][0], rows[i][1], rows[i][2], rows[i][3], columns[j / 2][j % 2 * 2],
                           columns[j / 2][j % 2 * 2 + 1]);
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int row = first_row + row_of_warp + i * 16 + lane / 4;
            int column = first_column + column_of_warp + j * 8 + lane % 4 * 2;
            store_pair<T>(y, m, n, row, column, sums[i][j][0], sums[i][j][1], add);
            store_pair<T>(y, m, n, row + 8, column, sums[i][j][2], sums[i][j][3], add);
        }
    }
}

#define PRODUCT(NAME, T, OUT)                                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                         \
        NAME(OUT* y, const T* x, const T* w, int m, int n, int k, int add) {                                         \
        product<T, OUT>(y, x, w, m, n, k, add);                                                                      \
    }
FOR_BF16(PRODUCT(product_bf16, bf16, bf16))
FOR_F16(PRODUCT(product_f16, f16, f16))
FOR_BF16(PRODUCT(product_logits_bf16, bf16, float))
FOR_F16(PRODUCT(product_logits_f16, f16, float))

// Any type and any k, without tensor cores: 64 by 64 in a block, 4 by 4 in a thread.
template <typename T, typename Out>
__device__ void plain_product(Out* y, const T* x, const T* w, int m, int n, int k, int add) {
    constexpr int SIDE = 64, PART = 16;
    __shared__ float rows[PART][SIDE + 4], columns[PART][SIDE + 4];
    int first_row, first_column;
    place_of_block<SIDE, SIDE>(m, n, first_row, first_column);
    const int row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
    float sums[4][4] = {};
    for (int depth = 0; depth < k; depth += PART) {
        for (int i = threadIdx.x; i < SIDE * PART; i += 256) {
            int of = i / PART, at = i % PART;
            bool inside = depth + at < k;
            rows[at][of] = inside && first_row + of < m ? wide(x[(size_t)(first_row + of) * k + depth + at]) : 0.f;
            columns[at][of] =
                inside && first_column + of < n ? wide(w[(size_t)(first_column + of) * k + depth + at]) : 0.f;
        }
        __syncthreads();
#pragma unroll
        for (int at = 0; at < PART; at++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) sums[i][j] += rows[at][row + i] * columns[at][column + j];
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int r = first_row + row + i, c = first_column + column + j;
            if (r >= m || c >= n) continue;
            Out* to = y + (size_t)r * n + c;
            *to = narrow<Out>(add ? sums[i][j] + wide(*to) : sums[i][j]);
        }
    }
}

#define PLAIN_PRODUCT(NAME, T, OUT)                                                                                  \
    extern "C" __global__ void __launch_bounds__(256)                                                                \
        NAME(OUT* y, const T* x, const T* w, int m, int n, int k, int add) {                                         \
        plain_product<T, OUT>(y, x, w, m, n, k, add);                                                                \
    }
FOR_F32(PLAIN_PRODUCT(plain_product_f32, float, float))
FOR_BF16(PLAIN_PRODUCT(plain_product_bf16, bf16, bf16))
FOR_F16(PLAIN_PRODUCT(plain_product_f16, f16, f16))
FOR_BF16(PLAIN_PRODUCT(plain_product_logits_bf16, bf16, float))
FOR_F16(PLAIN_PRODUCT(plain_product_logits_f16, f16, float))
