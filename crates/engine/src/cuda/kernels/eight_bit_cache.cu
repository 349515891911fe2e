// Rotation, copies and attention with a cache of eight bits a number.
#include "decode_attention.cuh"

#define CACHE(ROWS, PREFIX, T)                                                                                       \
    DECODE(ROWS, PREFIX, T, 64)                                                                                      \
    DECODE(ROWS, PREFIX, T, 128) DECODE(ROWS, PREFIX, T, 256) PLAIN_DECODE(ROWS, PREFIX, T, T) ROPE(ROWS, PREFIX, T, T)
#define CACHES(T) CACHE(Fp8Rows, fp8_, T) CACHE(Q8Rows, q8_0_, T) DECODE(Fp8Rows, fp8_, T, 96)
FOR_BF16(CACHES(bf16))
FOR_F16(CACHES(f16))
FOR_F32(PLAIN_DECODE(Fp8Rows, fp8_, float, f32) ROPE(Fp8Rows, fp8_, float, f32)
            PLAIN_DECODE(Q8Rows, q8_0_, float, f32) ROPE(Q8Rows, q8_0_, float, f32))
