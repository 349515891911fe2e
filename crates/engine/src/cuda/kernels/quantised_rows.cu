// Quantised weights times two to 32 rows of activations.
//
// Weights are read once and copied ahead as for one row. They become halves in registers, already in the order that the tensor cores want, and each is
// multiplied with all rows. Activations come from `ordered_rows`: the blocks of a multiprocessor read the same ones again for each strip, mostly from its L1.
// That may not have old ones: after `wait_for_previous`, plain loads see all that the kernels before have written.
#include "few_rows.cuh"
#include "quantised.cuh"

__device__ __forceinline__ __half2 as_halves(uint32_t word) { return *reinterpret_cast<__half2*>(&word); }
__device__ __forceinline__ uint32_t as_word(__half2 halves) { return *reinterpret_cast<uint32_t*>(&halves); }
// Half `i` of a word, twice.
__device__ __forceinline__ __half2 twice(uint32_t word, int i) { return as_halves(__byte_perm(word, 0, i ? 0x3232 : 0x1010)); }

// A byte b in the lower bits of the half 1024 is the number 1024 + b. With the upper bit of a signed one turned over, it is 1152 + b.
constexpr uint32_t OF_1024 = 0x64646464;
__device__ __forceinline__ __half2 byte_twice(uint32_t word, int i, float less) {
    __half2 more = as_halves(__byte_perm(word, OF_1024, 0x4040 | i << 8 | i));
    return __hsub2(more, __float2half2_rn(less));
}

// Scale and offset of a group, or of half a group, times LIFT; of formats whose codes have a middle the offset is in the codes.
struct Scales {
    __half2 scale, offset;
};
template <Format F> constexpr bool OFFSETS = F == Q4_1 || F == Q5_1 || F == Q2K || F == Q4K || F == Q5K;
template <Format F> constexpr float MIDDLE = F == Q4_0 ? 8.f : F == Q5_0 ? 16.f : F == Q3K ? 4.f : F == Q6K ? 32.f : Layout<F>::IS_SIGNED ? 128.f : 0.f;

template <Format F> __device__ __forceinline__ Scales scales_of(const Span<F>& span, int r, int j, int h) {
    using L = Layout<F>;
    const uint32_t* floats = span.floats[r];
    const uint32_t* small = span.small[r];
    const __half2 lift = __float2half2_rn(LIFT), none = __float2half2_rn(0.f);
    if (F == Q4_1 || F == Q5_1) return {__hmul2(twice(floats[j], 0), lift), __hmul2(twice(floats[j], 1), lift)};
    if (!L::LARGE) return {__hmul2(twice(floats[j / 2], j % 2), lift), none};
    const __half2 d = __hmul2(twice(floats[0], 0), lift);
    if (F == Q4K || F == Q5K) {
        uint32_t scales = j < 4 ? small[0] & 0x3f3f3f3f : (small[2] & 0x0f0f0f0f) | (small[0] >> 2 & 0x30303030);
        uint32_t minima = j < 4 ? small[1] & 0x3f3f3f3f : (small[2] >> 4 & 0x0f0f0f0f) | (small[1] >> 2 & 0x30303030);
        __half2 of_minima = __hmul2(twice(floats[0], 1), __float2half2_rn(-LIFT));
        return {__hmul2(byte_twice(scales, j % 4, 1024.f), d), __hmul2(byte_twice(minima, j % 4, 1024.f), of_minima)};
    }
    if (F == Q2K) {
        uint32_t scales = small[j / 2] & 0x0f0f0f0f, minima = small[j / 2] >> 4 & 0x0f0f0f0f;
        __half2 of_minima = __hmul2(twice(floats[0], 1), __float2half2_rn(-LIFT));
        return {__hmul2(byte_twice(scales, j % 2 * 2 + h, 1024.f), d), __hmul2(byte_twice(minima, j % 2 * 2 + h, 1024.f), of_minima)};
    }
    // Signed bytes: of a group, or of half a group.
    int byte = F == IQ4XS ? j : 2 * j + h;
    return {__hmul2(byte_twice(small[byte / 4] ^ 0x80808080, byte % 4, 1152.f), d), none};
}

// Four codes as two pairs of weights.
template <Format F> __device__ __forceinline__ void weights(uint32_t four, const Scales& s, uint32_t& low, uint32_t& high) {
    if (Layout<F>::IS_SIGNED) four ^= 0x80808080;
    const __half2 less = __float2half2_rn(1024.f + MIDDLE<F>);
    __half2 a = __hsub2(as_halves(__byte_perm(four, OF_1024, 0x4140)), less);
    __half2 b = __hsub2(as_halves(__byte_perm(four, OF_1024, 0x4342)), less);
    low = as_word(OFFSETS<F> ? __hfma2(a, s.scale, s.offset) : __hmul2(a, s.scale));
    high = as_word(OFFSETS<F> ? __hfma2(b, s.scale, s.offset) : __hmul2(b, s.scale));
}

// EIGHTS: groups of eight rows of activations.
template <Format F, int EIGHTS> __device__ void quantised_rows(const uint8_t* w, int ahead, const FewRows p) {
    using L = Layout<F>;
    const int rows = p.gated ? 8 : 16;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4, quad = lane % 4;
    const int tiles = (p.k + L::COLUMNS - 1) / L::COLUMNS, strips = (p.n + rows - 1) / rows;
    extern __shared__ uint4 dynamic[];
    uint8_t* ring = reinterpret_cast<uint8_t*>(dynamic) + warp * (ahead + 1) * L::BYTES;
    __shared__ float parts[WARPS][16][EIGHTS * 8 + 1];
    Copier<F> copier{w, ring, (int)blockIdx.x, strips, (int)gridDim.x, tiles, tiles, warp, lane, ahead};
    for (int i = 0; i < ahead; i++) copier.next();
    let_next_start();
    wait_for_previous();

    // Activations of some groups are loaded ahead.
    constexpr int EARLY = EIGHTS == 1 ? L::GROUPS : EIGHTS == 2 ? 4 : 1;
    for (int strip = blockIdx.x; strip < strips; strip += gridDim.x) {
        float sums[EIGHTS][2][4] = {};
        for (int tile = warp; tile < tiles; tile += WARPS) {
            const uint4* x = p.x + (size_t)tile * L::GROUPS * 32 + lane;
            uint4 early[EARLY][EIGHTS];
            auto load = [&](int j) {
#pragma unroll
                for (int e = 0; e < EIGHTS; e++) early[j % EARLY][e] = x[((size_t)e * p.groups + j) * 32];
            };
#pragma unroll
            for (int j = 0; j < EARLY; j++) load(j);
            Span<F> current;
            fetch<F, true>(current, copier.oldest(), lane);
#pragma unroll
            for (int j = 0; j < L::GROUPS; j++) {
                uint32_t of_half[2][4];
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    uint32_t first, second;
                    codes(current, r, j, first, second);
                    Scales s = scales_of(current, r, j, 0);
                    weights<F>(first, s, of_half[0][r], of_half[0][2 + r]);
                    weights<F>(second, L::HALVES ? scales_of(current, r, j, 1) : s, of_half[1][r], of_half[1][2 + r]);
                }
#pragma unroll
                for (int e = 0; e < EIGHTS; e++) {
                    const uint4& b = early[j % EARLY][e];
                    mma<f16>(sums[e][0], of_half[0][0], of_half[0][1], of_half[0][2], of_half[0][3], b.x, b.y);
                    mma<f16>(sums[e][EIGHTS == 1], of_half[1][0], of_half[1][1], of_half[1][2], of_half[1][3], b.z, b.w);
                }
                if (j + EARLY < L::GROUPS) load(j + EARLY);
            }
        }
        // Every thread has read the sums of the strip before.
        __syncthreads();
#pragma unroll
        for (int e = 0; e < EIGHTS; e++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                parts[warp][row + i / 2 * 8][e * 8 + 2 * quad + i % 2] = sums[e][0][i] + (EIGHTS == 1 ? sums[e][1][i] : 0.f);
        }
        __syncthreads();
        p.finish(parts, strip);
    }
}

// Rows of one expert: those of tile blockIdx.y of a plan, as `sort_pairs` in experts.cu makes it. False where there is no such tile.
template <int EIGHTS> __device__ __forceinline__ bool of_tile(const uint8_t*& w, FewRows& p, const int* plan, size_t expert_bytes) {
    wait_for_previous();
    const int tile = blockIdx.y;
    if (tile >= __ldcg(plan)) return false;
    const int* own = plan + 1 + 3 * tile;
    const int expert = __ldcg(own), first = __ldcg(own + 1), end = __ldcg(own + 2);
    w += expert * expert_bytes;
    p.x += (size_t)tile * EIGHTS * p.groups * 32;
    p.factors += tile * EIGHTS * 8;
    p.first = first;
    p.m = min(end - first, EIGHTS * 8);
    p.of_bias = (size_t)expert * (p.gated ? 2 * p.n : p.n);
    return true;
}

#define KERNEL(F, EIGHTS)                                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                         \
        quantised_rows_##EIGHTS##_##F(const uint8_t* w, int ahead, const int* plan, size_t expert_bytes,             \
                                      FEW_ROWS_PARAMETERS) {                                                         \
        FewRows p = FEW_ROWS;                                                                                        \
        if (plan && !of_tile<EIGHTS>(w, p, plan, expert_bytes)) return;                                              \
        quantised_rows<F, EIGHTS>(w, ahead, p);                                                                      \
    }
#define KERNELS(F) KERNEL(F, 1) KERNEL(F, 2) KERNEL(F, 4)
KERNELS(Q4_0) KERNELS(Q4_1) KERNELS(Q5_0) KERNELS(Q5_1) KERNELS(Q8_0) KERNELS(Q2K)
KERNELS(Q3K) KERNELS(Q4K) KERNELS(Q5K) KERNELS(Q6K) KERNELS(IQ4NL) KERNELS(IQ4XS) KERNELS(MXFP4)
