// Attention of new positions to a cache of plain numbers.
#include "decode_attention.cuh"

#define DECODE_OF(T)                                                                                                 \
    DECODE(PlainRows, , T, 64)                                                                                       \
    DECODE(PlainRows, , T, 80)                                                                                       \
    DECODE(PlainRows, , T, 96) DECODE(PlainRows, , T, 128) DECODE(PlainRows, , T, 256)
FOR_BF16(DECODE_OF(bf16) PLAIN_DECODE(PlainRows, , bf16, bf16))
FOR_F16(DECODE_OF(f16) PLAIN_DECODE(PlainRows, , f16, f16))
FOR_F32(PLAIN_DECODE(PlainRows, , float, f32))
