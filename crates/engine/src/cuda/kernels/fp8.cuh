// Numbers of eight bits with four of them for the exponent (e4m3).
#pragma once

#include "common.cuh"

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
