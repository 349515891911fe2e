// Rotation and copies into a cache of plain numbers.
#include "rope.cuh"

FOR_BF16(ROPE(PlainRows, , bf16, bf16))
FOR_F16(ROPE(PlainRows, , f16, f16))
FOR_F32(ROPE(PlainRows, , float, f32))
