// Products of a few rows with the weights of one matrix.
#include "skinny.cuh"

#define SKINNY(NAME, T, OUT, TILES, GATED)                                                                           \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 2)                                                      \
        NAME(OUT* y, const T* w, const T* x, const T* bias, const T* residual, int m, int n, int k, int activation) {      \
        skinny<T, OUT, TILES, GATED>(y, w, x, bias, residual, m, n, k, activation);                                        \
    }
#define SKINNY_OF(T)                                                                                                 \
    SKINNY(skinny_8_##T, T, T, 1, false)                                                                             \
    SKINNY(skinny_gated_8_##T, T, T, 1, true)                                                                        \
    SKINNY(skinny_logits_8_##T, T, float, 1, false)
FOR_BF16(SKINNY_OF(bf16))
FOR_F16(SKINNY_OF(f16))

#ifdef OF_f32
extern "C" __global__ void __launch_bounds__(WARPS * 32)
    skinny_f32(float* y, const float* w, const float* x, const float* bias, const float* residual, int m, int n, int k,
               int activation) {
    skinny_f32<false>(y, w, x, bias, residual, m, n, k, activation);
}
extern "C" __global__ void __launch_bounds__(WARPS * 32)
    skinny_gated_f32(float* y, const float* w, const float* x, const float* bias, const float* residual, int m, int n,
                     int k, int activation) {
    skinny_f32<true>(y, w, x, bias, residual, m, n, k, activation);
}
#endif
