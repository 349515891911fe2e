// Weights of eight bits (e4m3) times two to 32 rows of activations: as `quantised_rows.cu`, with a scale for each 128 columns.
#include "few_rows.cuh"
#include "fp8_tiles.cuh"

// EIGHTS: groups of eight rows of activations.
template <int EIGHTS> __device__ void fp8_rows(const Weights& w, int ahead, const FewRows& p) {
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ float parts[WARPS][16][EIGHTS * 8 + 1];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
    const int tiles = w.columns(), strips = w.strips();
    uint8_t* ring = shared + warp * (ahead + 1) * ROOM;
    Copier copier{w, ring, warp, lane, ahead};
    for (int i = 0; i < ahead; i++) copier.next();
    let_next_start();
    wait_for_previous();

    float sums[EIGHTS][4] = {};
    auto finish = [&](int strip) {
        // Every thread has read the sums of the strip before.
        __syncthreads();
#pragma unroll
        for (int e = 0; e < EIGHTS; e++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                parts[warp][group + i / 2 * 8][e * 8 + quad * 2 + i % 2] = sums[e][i];
                sums[e][i] = 0.f;
            }
        }
        __syncthreads();
        p.finish(parts, strip);
    };
    // Activations of some 32 columns are loaded ahead.
    constexpr int UNITS = SCALED / 32, EARLY = EIGHTS == 4 ? 1 : UNITS;
    Walk at{(int)blockIdx.x, warp};
    at.wrap(tiles);
    int current = blockIdx.x, to_read = 0;
    while (at.strip < strips) {
        const uint4* x = p.x + (size_t)at.tile * UNITS * 32 + lane;
        uint4 early[EARLY][EIGHTS];
        auto load = [&](int unit) {
#pragma unroll
            for (int e = 0; e < EIGHTS; e++) early[unit % EARLY][e] = x[((size_t)e * p.groups + unit) * 32];
        };
#pragma unroll
        for (int unit = 0; unit < EARLY; unit++) load(unit);
        // Every lane is done with the tile before, which is overwritten.
        __syncwarp();
        copier.next();
        while (current < at.strip) finish(current), current += gridDim.x;
        at.tile += WARPS;
        at.wrap(tiles);
        wait_for_copies(ahead);
        const uint8_t* from = ring + to_read * ROOM;
        to_read = to_read == ahead ? 0 : to_read + 1;
        float part[EIGHTS][4] = {};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint4 low = *reinterpret_cast<const uint4*>(from + half * 1024 + lane * 16);
            const uint4 high = *reinterpret_cast<const uint4*>(from + half * 1024 + 512 + lane * 16);
            const uint32_t *of_low = &low.x, *of_high = &high.x;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int unit = half * 2 + i / 2;
                uint32_t a0, a1, a2, a3;
                halves(of_low[i], a0, a2);
                halves(of_high[i], a1, a3);
#pragma unroll
                for (int e = 0; e < EIGHTS; e++) {
                    const uint4& b = early[unit % EARLY][e];
                    mma<f16>(part[e], a0, a1, a2, a3, i % 2 ? b.z : b.x, i % 2 ? b.w : b.y);
                }
                if (i % 2 && unit + EARLY < UNITS) load(unit + EARLY);
            }
        }
        const float* scales = reinterpret_cast<const float*>(from + TILE);
        const float of_rows[2] = {scales[group], scales[group + 8]};
#pragma unroll
        for (int e = 0; e < EIGHTS; e++) {
#pragma unroll
            for (int i = 0; i < 4; i++) sums[e][i] += part[e][i] * of_rows[i / 2];
        }
    }
    while (current < strips) finish(current), current += gridDim.x;
}

#define KERNEL(EIGHTS)                                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                         \
        fp8_rows_##EIGHTS(const uint8_t* tiles, const float* scales, int scale_rows, int ahead, FEW_ROWS_PARAMETERS) { \
        fp8_rows<EIGHTS>(Weights{tiles, scales, scale_rows, n, k, gated != 0}, ahead, FEW_ROWS);                     \
    }
KERNEL(1) KERNEL(2) KERNEL(4)
