// What the products of many rows share: y[m, n] = Σ_k x[m, k] · w[n, k], where x and w are tiled along k.
//
// A tile of x and of w is copied to shared memory while an earlier one is multiplied. Its rows are 128 bytes; the eight
// pieces of a row are permuted by the row's number, so that eight rows are read without bank conflicts.
#pragma once

#include "common.cuh"

constexpr int DEPTH = 64; // columns of a tile: 128 bytes
constexpr int ROW_BYTES = DEPTH * 2;

__device__ __forceinline__ uint32_t shared_address(const void* at) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

// 16 bytes to shared memory; zeros where `inside` is false.
__device__ __forceinline__ void copy16(uint32_t to, const void* from, bool inside) {
    int bytes = inside ? 16 : 0;
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;"); }
template <int LEFT> __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT));
}

__device__ __forceinline__ uint32_t piece(uint32_t tile, int row, int column) {
    return tile + row * ROW_BYTES + ((column ^ (row & 7)) << 4);
}

// Blocks that run at the same time share rows of x and of w: eight tiles of rows, then the next tile of columns.
template <int ROWS, int COLUMNS>
__device__ __forceinline__ void place_of_block(int m, int n, int& first_row, int& first_column) {
    constexpr int GROUP = 8;
    int row_tiles = (m + ROWS - 1) / ROWS, column_tiles = (n + COLUMNS - 1) / COLUMNS;
    int per_group = GROUP * column_tiles, group = blockIdx.x / per_group, at = blockIdx.x % per_group;
    int first = group * GROUP, rows = min(row_tiles - first, GROUP);
    first_row = (first + at % rows) * ROWS;
    first_column = at / rows * COLUMNS;
}

// Starts the copy of a tile: ROWS rows of x, then COLUMNS rows of w.
template <typename T, int ROWS, int COLUMNS, int THREADS>
__device__ __forceinline__ void copy_tile(uint32_t to, const T* x, const T* w, int m, int n, int k, int first_row,
                                          int first_column, int depth) {
#pragma unroll
    for (int i = 0; i < (ROWS + COLUMNS) * 8 / THREADS; i++) {
        int at = threadIdx.x + i * THREADS, row = at / 8, column = at % 8, from_k = depth + column * 8;
        bool of_x = row < ROWS;
        int from = of_x ? first_row + row : first_column + row - ROWS;
        bool inside = from < (of_x ? m : n) && from_k < k;
        const T* source = (of_x ? x : w) + (inside ? (size_t)from * k + from_k : 0);
        copy16(piece(to, row, column), source, inside);
    }
}

// Starts the copy of tile number `tile` to its place in a ring of STAGES tiles. Beyond the last tile, an empty group of copies keeps
// their number.
template <typename T, int ROWS, int COLUMNS, int THREADS, int STAGES>
__device__ __forceinline__ void copy_stage(uint32_t ring, const T* x, const T* w, int m, int n, int k, int first_row,
                                           int first_column, int tile) {
    if (tile * DEPTH < k) {
        uint32_t to = ring + tile % STAGES * ((ROWS + COLUMNS) * ROW_BYTES);
        copy_tile<T, ROWS, COLUMNS, THREADS>(to, x, w, m, n, k, first_row, first_column, tile * DEPTH);
    }
    commit_copies();
}

// Two neighbours of a row of y, where they are inside.
template <typename T, typename Out>
__device__ __forceinline__ void store_pair(Out* y, int m, int n, int row, int column, float low, float high, bool add) {
    if (row >= m || column >= n) return;
    Out* to = y + (size_t)row * n + column;
    bool both = column + 1 < n;
    if (add) {
        low += wide(to[0]);
        if (both) high += wide(to[1]);
    }
    if constexpr (sizeof(Out) == 2) {
        if (both && n % 2 == 0) {
            *reinterpret_cast<uint32_t*>(to) = pack<T>(low, high);
            return;
        }
    }
    to[0] = narrow<Out>(low);
    if (both) to[1] = narrow<Out>(high);
}
