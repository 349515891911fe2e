// Random weights, the same as on the CPU: a value is a function of (key, row, column) alone.
#include "common.cuh"

__device__ __forceinline__ uint64_t mix64(uint64_t value) {
    uint64_t z = value + 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

// Uniform within `spread` of `offset`. One block fills a row at a time; a vector is one row.
template <typename T>
__device__ void synthetic(T* out, uint64_t key, size_t rows, int columns, float offset, float spread) {
    for (size_t row = blockIdx.x; row < rows; row += gridDim.x) {
        uint64_t row_key = mix64(key + row);
        uint32_t low = (uint32_t)row_key, high = (uint32_t)(row_key >> 32);
        for (int column = threadIdx.x; column < columns; column += blockDim.x) {
            uint32_t h = (uint32_t)column * 0x9e3779b9u ^ low;
            h = (h ^ (h >> 16)) * 0x7feb352du;
            h = ((h ^ (h >> 15)) + high) * 0x846ca68bu;
            h ^= h >> 16;
            float unit = (float)((int)(h >> 8) - (1 << 23)) * (1.f / (1 << 23));
            // Not fused, as on the CPU.
            out[row * columns + column] = narrow<T>(__fadd_rn(offset, __fmul_rn(spread, unit)));
        }
    }
}

#define SYNTHETIC(T, NAME)                                                                                           \
    extern "C" __global__ void synthetic_##NAME(T* out, uint64_t key, size_t rows, int columns, float offset,        \
                                                float spread) {                                                      \
        synthetic(out, key, rows, columns, offset, spread);                                                          \
    }
FOR_BF16(SYNTHETIC(bf16, bf16))
FOR_F16(SYNTHETIC(f16, f16))
FOR_F32(SYNTHETIC(float, f32))
