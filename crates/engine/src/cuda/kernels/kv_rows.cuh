// How a KV cache keeps its rows: one of `dim` numbers for each position of each key/value head.
#pragma once

#include "fp8.cuh"

// As `load_once`, of memory that this kernel also writes.
__device__ __forceinline__ uint4 load_cache(const void* at) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at));
    return v;
}
__device__ __forceinline__ uint2 load_cache8(const void* at) {
    uint2 v;
    asm volatile("ld.global.L1::no_allocate.L2::128B.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(at));
    return v;
}

// `Eight` neighbours of a row are loaded as they are, and become numbers later. `store` is called by all lanes of a warp, with neighbouring `at`.
template <typename T> struct PlainRows {
    static constexpr bool IS_PLAIN = true;
    using Eight = uint4;
    T* values;
    int dim;
    __device__ __forceinline__ PlainRows(void* cache, size_t, int dim) : values(static_cast<T*>(cache)), dim(dim) {}
    __device__ __forceinline__ static Eight none() { return make_uint4(0, 0, 0, 0); }
    __device__ __forceinline__ Eight load(size_t row, int at) const { return load_cache(values + row * dim + at); }
    __device__ __forceinline__ static uint4 numbers(const Eight& eight) { return eight; }
    __device__ __forceinline__ float number(size_t row, int at) const { return wide(values[row * dim + at]); }
    __device__ __forceinline__ void store(size_t row, int at, float x, bool inside) const {
        if (inside) values[row * dim + at] = narrow<T>(x);
    }
};

// e4m3, limited to ±448.
template <typename T> struct Fp8Rows {
    static constexpr bool IS_PLAIN = false;
    using Eight = uint2;
    uint8_t* codes;
    int dim;
    __device__ __forceinline__ Fp8Rows(void* cache, size_t, int dim) : codes(static_cast<uint8_t*>(cache)), dim(dim) {}
    __device__ __forceinline__ static Eight none() { return make_uint2(0, 0); }
    __device__ __forceinline__ Eight load(size_t row, int at) const { return load_cache8(codes + row * dim + at); }
    __device__ __forceinline__ static uint4 numbers(const Eight& eight) {
        uint4 out;
        widened<T>(eight.x, out.x, out.y);
        widened<T>(eight.y, out.z, out.w);
        return out;
    }
    __device__ __forceinline__ float number(size_t row, int at) const { return ::number(codes[row * dim + at]); }
    __device__ __forceinline__ void store(size_t row, int at, float x, bool inside) const {
        if (inside) codes[row * dim + at] = code_of(x);
    }
};

// Two integers of eight bits, each in the low byte of a half, as numbers; exactly.
template <typename T> __device__ __forceinline__ uint32_t integers(uint32_t two);
template <> __device__ __forceinline__ uint32_t integers<bf16>(uint32_t two) {
    // 128 and the lower seven bits; less 128, or 256 for a negative one.
    uint32_t low = (two & 0x007f007fu) | 0x43004300u, sign = (two & 0x00800080u) | 0x43004300u;
    __nv_bfloat162 both = __hsub2(*reinterpret_cast<__nv_bfloat162*>(&low), *reinterpret_cast<__nv_bfloat162*>(&sign));
    return *reinterpret_cast<uint32_t*>(&both);
}
template <> __device__ __forceinline__ uint32_t integers<f16>(uint32_t two) {
    // 1,024 and the integer plus 128.
    uint32_t above = (two ^ 0x00800080u) | 0x64006400u;
    __half2 both = __hsub2(*reinterpret_cast<__half2*>(&above), __float2half2_rn(1152.f));
    return *reinterpret_cast<uint32_t*>(&both);
}
template <typename T> __device__ __forceinline__ uint32_t times(uint32_t two, float by);
template <> __device__ __forceinline__ uint32_t times<bf16>(uint32_t two, float by) {
    __nv_bfloat162 both = __hmul2(*reinterpret_cast<__nv_bfloat162*>(&two), __float2bfloat162_rn(by));
    return *reinterpret_cast<uint32_t*>(&both);
}
template <> __device__ __forceinline__ uint32_t times<f16>(uint32_t two, float by) {
    __half2 both = __hmul2(*reinterpret_cast<__half2*>(&two), __float2half2_rn(by));
    return *reinterpret_cast<uint32_t*>(&both);
}

// Integers of eight bits with a scale for each 32, as in GGUF. The scales lie after the codes of all `rows`. dim is a multiple of 64.
template <typename T> struct Q8Rows {
    static constexpr bool IS_PLAIN = false;
    static constexpr int BLOCK = 32;
    struct Eight {
        uint2 codes;
        uint16_t scale;
    };
    uint8_t* codes;
    f16* scales;
    int dim;
    __device__ __forceinline__ Q8Rows(void* cache, size_t rows, int dim)
        : codes(static_cast<uint8_t*>(cache)), scales(reinterpret_cast<f16*>(codes + rows * dim)), dim(dim) {}
    __device__ __forceinline__ f16& scale(size_t row, int at) const { return scales[(row * dim + at) / BLOCK]; }
    __device__ __forceinline__ static Eight none() { return {make_uint2(0, 0), 0}; }
    __device__ __forceinline__ Eight load(size_t row, int at) const {
        return {load_cache8(codes + row * dim + at), __ldcg(reinterpret_cast<const uint16_t*>(&scale(row, at)))};
    }
    __device__ __forceinline__ static uint4 numbers(const Eight& eight) {
        const float by = __half2float(__ushort_as_half(eight.scale));
        auto pair = [&](uint32_t four, uint32_t which) { return times<T>(integers<T>(__byte_perm(four, 0, which)), by); };
        return make_uint4(pair(eight.codes.x, 0x4140), pair(eight.codes.x, 0x4342), pair(eight.codes.y, 0x4140),
                          pair(eight.codes.y, 0x4342));
    }
    __device__ __forceinline__ float number(size_t row, int at) const {
        return (float)(int8_t)codes[row * dim + at] * __half2float(scale(row, at));
    }
    __device__ __forceinline__ void store(size_t row, int at, float x, bool inside) const {
        // A block is the 32 numbers of a warp, all of them inside or none.
        float largest = fabsf(x);
#pragma unroll
        for (int step = 16; step > 0; step >>= 1) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, step));
        if (!inside) return;
        codes[row * dim + at] = (uint8_t)(int8_t)rintf(largest > 0.f ? x * (127.f / largest) : 0.f);
        if (at % BLOCK == 0) scale(row, at) = __float2half_rn(largest / 127.f);
    }
};

// The row of a position of a key/value head: the `slots` of a head are used in turn.
struct Slots {
    size_t first; // the head's first row
    int base, count;
    // Of positions from `begin` on, at most `count` of them.
    __device__ __forceinline__ Slots(size_t head, int count, int begin)
        : first(head * count), base(begin < count ? 0 : begin - begin % count), count(count) {}
    __device__ __forceinline__ size_t of(int position) const {
        int slot = position - base;
        return first + (slot < count ? slot : slot - count);
    }
};
