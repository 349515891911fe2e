// Tiles of weights of eight bits (e4m3) with scales, and how a warp brings them into shared memory.
//
// A tile is 16 rows × 128 columns, of a gated matrix 8 rows of the gate and the same 8 of up. Its bytes lie in the order in which a warp reads them, and tiles of the same rows, a
// strip, are neighbours.
#pragma once

#include "fp8.cuh"

constexpr int WARPS = 8;
constexpr int THREADS = WARPS * 32;
constexpr int SCALED = 128;          // columns of a scale, and of a tile
constexpr int TILE = 16 * SCALED;    // bytes of its codes
constexpr int ROOM = TILE + 16 * 4;  // with the scales of its rows, in a ring
constexpr int EACH = 16;             // neighbours that a thread loads

__device__ __forceinline__ uint32_t address(const void* at) { return (uint32_t)__cvta_generic_to_shared(at); }
__device__ __forceinline__ void copy_ahead(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(address(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_scale(void* to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most `ahead` groups of copies have not arrived; 1 or 2.
__device__ __forceinline__ void wait_for_copies(int ahead) {
    if (ahead == 1) asm volatile("cp.async.wait_group 1;" ::: "memory");
    else asm volatile("cp.async.wait_group 2;" ::: "memory");
    __syncwarp();
}

// Four codes as two pairs of halves.
__device__ __forceinline__ void halves(uint32_t four, uint32_t& low, uint32_t& high) {
#if __CUDA_ARCH__ >= 890
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(low) : "h"((uint16_t)(four & 0xffff)));
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(high) : "h"((uint16_t)(four >> 16)));
#else
    widened<f16>(four, low, high);
#endif
}

// The matrix, (n, k), or (2n, k) where it is gated.
struct Weights {
    const uint8_t* tiles;
    const float* scales;
    int scale_rows, n, k;
    bool gated;
    __device__ __forceinline__ int columns() const { return (k + SCALED - 1) / SCALED; } // tiles of a strip
    __device__ __forceinline__ int strips() const { return gated ? (n + 7) / 8 : (n + 15) / 16; }
    // The row of the matrix that is row `slot` of a strip; -1 without one.
    __device__ __forceinline__ int row(int strip, int slot) const {
        int at = gated ? strip * 8 + slot % 8 : strip * 16 + slot;
        return at >= n ? -1 : gated && slot >= 8 ? at + n : at;
    }
    // Of 16 neighbours of a row, from a column that is divisible by 16.
    __device__ __forceinline__ const uint8_t* codes(int row, int column) const {
        const int up = gated && row >= n, of = up ? row - n : row;
        const int strip = gated ? of / 8 : of / 16, slot = gated ? of % 8 + 8 * up : of % 16, c = column % SCALED;
        return tiles + ((size_t)strip * columns() + column / SCALED) * TILE + (c / 64 * 2 + slot / 8) * 512 +
               (slot % 8 * 4 + c % 64 / 16) * 16;
    }
    __device__ __forceinline__ const float* scales_of(int row) const { return scales + (size_t)(row / scale_rows) * columns(); }
    __device__ __forceinline__ float scale(int row, int column) const { return __ldg(scales_of(row) + column / SCALED); }
};

// A warp's tiles are counted through all strips of its block, so that no warp has more than another.
struct Walk {
    int strip, tile;
    __device__ __forceinline__ void wrap(int tiles) {
        while (tile >= tiles) tile -= tiles, strip += gridDim.x;
    }
};

// Copies a warp's tiles with their scales, `ahead` of them ahead, into a ring of its own.
struct Copier {
    const Weights& w;
    uint8_t* ring;
    int warp, lane, ahead;
    Walk at{(int)blockIdx.x, warp};
    int to_copy = 0, scales_of = -1;
    const float* own_scales = nullptr;
    __device__ __forceinline__ void next() {
        const int tiles = w.columns();
        at.wrap(tiles);
        if (at.strip < w.strips()) {
            const uint8_t* from = w.tiles + ((size_t)at.strip * tiles + at.tile) * TILE;
            uint8_t* to = ring + to_copy * ROOM;
#pragma unroll
            for (int i = 0; i < TILE / 512; i++) copy_ahead(to + i * 512 + lane * 16, from + i * 512 + lane * 16);
            if (scales_of != at.strip) {
                scales_of = at.strip;
                // Without a row: zeros times any scale.
                own_scales = w.scales_of(max(w.row(at.strip, lane % 16), 0));
            }
            if (lane < 16) copy_scale(to + TILE + lane * 4, own_scales + at.tile);
            at.tile += WARPS;
        }
        end_copies();
        to_copy = to_copy == ahead ? 0 : to_copy + 1;
    }
};
