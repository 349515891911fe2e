// Causal attention of a whole prompt: tiles of keys and values stream through shared memory under an online softmax, on
// the tensor cores. The matrix of scores is never stored.
//
// A block computes 64·M_TILES queries of one head, each of its four warps 16·M_TILES of them, so that a load from
// shared memory is used by M_TILES products. Keys and values are double-buffered: the next tile is loaded while this one
// is computed. Rows are padded by 16 bytes, so that `ldmatrix` has no bank conflicts.
#include "common.cuh"

constexpr int WARPS = 4;
constexpr float LOWEST = -1e30f;
constexpr float LOG2_E = 1.4426950408889634f;

__device__ __forceinline__ uint32_t shared_address(const void* at) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}
// An asynchronous copy of 16 bytes to shared memory; zeros where `there` is false.
__device__ __forceinline__ void copy16(void* to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(there ? 16 : 0));
}
__device__ __forceinline__ void copies_end_here() { asm volatile("cp.async.commit_group;"); }
template <int PENDING> __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void* at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(at)));
}
__device__ __forceinline__ void load_transposed(uint32_t (&r)[4], const void* at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(at)));
}

// qkv: (batch·length, (heads + 2·kv_heads)·DIM), queries first and already rotated. Caches: (batch, kv_heads, capacity,
// DIM), filled from position 0. out: (batch·length, heads·DIM). window 0 means no window.
template <typename T, int DIM, int M_TILES, int TILE>
__device__ void prefill_attention(T* out, const T* qkv, const T* keys, const T* values, int length, int heads,
                                  int kv_heads, int capacity, int window, float scale, float cap, const float* sinks) {
    constexpr int ROWS = WARPS * M_TILES * 16, PITCH = DIM + 8, CHUNKS = DIM / 8, N_TILES = TILE / 8;
    extern __shared__ __align__(16) unsigned char shared[];
    T* query_tile = reinterpret_cast<T*>(shared);
    T* key_tiles = query_tile + ROWS * PITCH;
    T* value_tiles = key_tiles + 2 * TILE * PITCH;

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
    // The longest first, so that the last blocks are short.
    const int first_row = (gridDim.x - 1 - blockIdx.x) * ROWS, head = blockIdx.y, sequence = blockIdx.z;
    const int kv_head = head / (heads / kv_heads), stride = (heads + 2 * kv_heads) * DIM;
    const T* query_at = qkv + (size_t)sequence * length * stride + head * DIM;
    const size_t cache_at = ((size_t)sequence * kv_heads + kv_head) * capacity * DIM;
    const T* key_at = keys + cache_at;
    const T* value_at = values + cache_at;

    auto fetch = [&](T* to, const T* from, size_t pitch, int first, int count) {
        for (int i = threadIdx.x; i < count * CHUNKS; i += WARPS * 32) {
            int row = i / CHUNKS, chunk = i % CHUNKS;
            bool there = first + row < length;
            copy16(to + row * PITCH + chunk * 8, from + (size_t)(there ? first + row : 0) * pitch + chunk * 8, there);
        }
    };
    const int end = min(length, first_row + ROWS);
    const int begin = window > 0 ? max(0, first_row + 1 - window) / TILE * TILE : 0;
    const int tiles = (end - begin + TILE - 1) / TILE;

    fetch(query_tile, query_at, stride, first_row, ROWS);
    fetch(key_tiles, key_at, DIM, begin, TILE);
    copies_end_here();
    fetch(value_tiles, value_at, DIM, begin, TILE);
    copies_end_here();

    float acc[M_TILES][DIM / 8][4] = {};
    float top[M_TILES][2], sum[M_TILES][2];
#pragma unroll
    for (int m = 0; m < M_TILES; m++) top[m][0] = top[m][1] = LOWEST, sum[m][0] = sum[m][1] = 0.f;
    const int warp_row = warp * M_TILES * 16;
    // Converts scores to units of log2, for exp2.
    const float to_log2 = cap > 0.f ? LOG2_E : scale * LOG2_E;

    for (int tile = 0; tile < tiles; tile++) {
        const int first_key = begin + tile * TILE;
        const T* key_tile = key_tiles + (tile % 2) * TILE * PITCH;
        const T* value_tile = value_tiles + (tile % 2) * TILE * PITCH;
        wait_for_copies<1>();
        __syncthreads();
        if (tile + 1 < tiles) fetch(key_tiles + ((tile + 1) % 2) * TILE * PITCH, key_at, DIM, first_key + TILE, TILE);
        copies_end_here();

        float score[M_TILES][N_TILES][4] = {};
#pragma unroll
        for (int k = 0; k < DIM / 16; k++) {
            uint32_t a[M_TILES][4];
#pragma unroll
            for (int m = 0; m < M_TILES; m++) {
                load_matrices(a[m], query_tile + (warp_row + m * 16 + lane % 16) * PITCH + k * 16 + lane / 16 * 8);
            }
#pragma unroll
            for (int n = 0; n < N_TILES; n += 2) {
                uint32_t b[4];
                int row = n * 8 + lane % 8 + lane / 16 * 8;
                load_matrices(b, key_tile + row * PITCH + k * 16 + lane / 8 % 2 * 8);
#pragma unroll
                for (int m = 0; m < M_TILES; m++) {
                    mma<T>(score[m][n], a[m][0], a[m][1], a[m][2], a[m][3], b[0], b[1]);
                    mma<T>(score[m][n + 1], a[m][0], a[m][1], a[m][2], a[m][3], b[2], b[3]);
                }
            }
        }
        const bool edge = first_key + TILE > first_row + warp_row || first_key + TILE > length ||
                          (window > 0 && first_key + window <= first_row + ROWS);
        if (cap > 0.f) {
#pragma unroll
            for (int m = 0; m < M_TILES; m++) {
#pragma unroll
                for (int n = 0; n < N_TILES; n++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) score[m][n][i] = softcapped(score[m][n][i] * scale, cap);
                }
            }
        }
        if (edge) {
#pragma unroll
            for (int m = 0; m < M_TILES; m++) {
#pragma unroll
                for (int n = 0; n < N_TILES; n++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const int row = first_row + warp_row + m * 16 + i / 2 * 8 + group;
                        const int key = first_key + n * 8 + quad * 2 + i % 2;
                        if (key > row || (window > 0 && key <= row - window)) score[m][n][i] = LOWEST;
                    }
                }
            }
        }
#pragma unroll
        for (int m = 0; m < M_TILES; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float now = top[m][half];
#pragma unroll
                for (int n = 0; n < N_TILES; n++) {
                    now = fmaxf(now, fmaxf(score[m][n][half * 2], score[m][n][half * 2 + 1]));
                }
                now = fmaxf(now, __shfl_xor_sync(ALL_LANES, now, 1));
                now = fmaxf(now, __shfl_xor_sync(ALL_LANES, now, 2));
                // The maximum of a row rarely changes after the first tiles.
                if (__any_sync(ALL_LANES, now != top[m][half])) {
                    float keep = exp2f((top[m][half] - now) * to_log2);
                    sum[m][half] *= keep;
#pragma unroll
                    for (int d = 0; d < DIM / 8; d++) {
                        acc[m][d][half * 2] *= keep;
                        acc[m][d][half * 2 + 1] *= keep;
                    }
                }
                top[m][half] = now;
                // A row whose positions were all masked so far must not count them.
                float base = now == LOWEST ? 0.f : now * to_log2, added = 0.f;
#pragma unroll
                for (int n = 0; n < N_TILES; n++) {
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        float& s = score[m][n][half * 2 + i];
                        s = exp2f(fmaf(s, to_log2, -base));
                        added += s;
                    }
                }
                sum[m][half] += added;
            }
        }
        wait_for_copies<1>();
        __syncthreads();
        if (tile + 1 < tiles) fetch(value_tiles + ((tile + 1) % 2) * TILE * PITCH, value_at, DIM, first_key + TILE, TILE);
        copies_end_here();
#pragma unroll
        for (int k = 0; k < TILE / 16; k++) {
            uint32_t a[M_TILES][4];
#pragma unroll
            for (int m = 0; m < M_TILES; m++) {
                const float(&left)[4] = score[m][2 * k];
                const float(&right)[4] = score[m][2 * k + 1];
                a[m][0] = pack<T>(left[0], left[1]);
                a[m][1] = pack<T>(left[2], left[3]);
                a[m][2] = pack<T>(right[0], right[1]);
                a[m][3] = pack<T>(right[2], right[3]);
            }
#pragma unroll
            for (int d = 0; d < DIM / 8; d += 2) {
                uint32_t b[4];
                load_transposed(b, value_tile + (k * 16 + lane % 16) * PITCH + d * 8 + lane / 16 * 8);
#pragma unroll
                for (int m = 0; m < M_TILES; m++) {
                    mma<T>(acc[m][d], a[m][0], a[m][1], a[m][2], a[m][3], b[0], b[1]);
                    mma<T>(acc[m][d + 1], a[m][0], a[m][1], a[m][2], a[m][3], b[2], b[3]);
                }
            }
        }
    }
#pragma unroll
    for (int m = 0; m < M_TILES; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float total = sum[m][half];
            total += __shfl_xor_sync(ALL_LANES, total, 1);
            total += __shfl_xor_sync(ALL_LANES, total, 2);
            const int row = first_row + warp_row + m * 16 + half * 8 + group;
            if (row >= length) continue;
            T* to = out + (((size_t)sequence * length + row) * heads + head) * DIM + quad * 2;
            total += of_sink(sinks, head, top[m][half] * to_log2 / LOG2_E);
            float by = 1.f / total;
#pragma unroll
            for (int d = 0; d < DIM / 8; d++) {
                *reinterpret_cast<uint32_t*>(to + d * 8) =
                    pack<T>(acc[m][d][half * 2] * by, acc[m][d][half * 2 + 1] * by);
            }
        }
    }
}

// Any number type and head dimension, without tensor cores: a warp computes one query. dim is at most 256.
template <typename T>
__device__ void plain_attention(T* out, const T* qkv, const T* keys, const T* values, int length, int heads,
                                int kv_heads, int capacity, int window, float scale, float cap, const float* sinks, int dim) {
    constexpr int MOST = 8;
    const int lane = threadIdx.x % 32, row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= length) return;
    const int head = blockIdx.y, sequence = blockIdx.z, kv_head = head / (heads / kv_heads);
    const T* query_at = qkv + ((size_t)sequence * length + row) * (heads + 2 * kv_heads) * dim + head * dim;
    const size_t cache_at = ((size_t)sequence * kv_heads + kv_head) * capacity * dim;
    float query[MOST], acc[MOST] = {}, top = LOWEST, sum = 0.f;
#pragma unroll
    for (int i = 0; i < MOST; i++) query[i] = lane + 32 * i < dim ? wide(query_at[lane + 32 * i]) * scale : 0.f;
    for (int key = window > 0 ? max(0, row + 1 - window) : 0; key <= row; key++) {
        const T* key_at = keys + cache_at + (size_t)key * dim;
        const T* value_at = values + cache_at + (size_t)key * dim;
        float score = 0.f;
#pragma unroll
        for (int i = 0; i < MOST; i++) {
            if (lane + 32 * i < dim) score += query[i] * wide(key_at[lane + 32 * i]);
        }
        score = warp_sum(score);
        score = softcapped(score, cap);
        float now = fmaxf(top, score), keep = expf(top - now), share = expf(score - now);
        top = now;
        sum = sum * keep + share;
#pragma unroll
        for (int i = 0; i < MOST; i++) {
            if (lane + 32 * i < dim) acc[i] = acc[i] * keep + share * wide(value_at[lane + 32 * i]);
        }
    }
    T* to = out + (((size_t)sequence * length + row) * heads + head) * dim;
    sum += of_sink(sinks, head, top);
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        if (lane + 32 * i < dim) to[lane + 32 * i] = narrow<T>(acc[i] / sum);
    }
}

#define PREFILL(T, DIM, M_TILES, TILE)                                                                               \
    extern "C" __global__ void __launch_bounds__(WARPS * 32)                                                         \
        prefill_attention_##DIM##_##T(T* out, const T* qkv, const T* keys, const T* values, int length, int heads,   \
                                      int kv_heads, int capacity, int window, float scale, float cap,                \
                                      const float* sinks, int) {                                                     \
        prefill_attention<T, DIM, M_TILES, TILE>(out, qkv, keys, values, length, heads, kv_heads, capacity, window,  \
                                                 scale, cap, sinks);                                                 \
    }
#define PREFILL_OF(T)                                                                                                \
    PREFILL(T, 64, 2, 64)                                                                                            \
    PREFILL(T, 80, 2, 64)                                                                                            \
    PREFILL(T, 96, 2, 64)                                                                                            \
    PREFILL(T, 128, 2, 64)                                                                                           \
    PREFILL(T, 256, 1, 32)
FOR_BF16(PREFILL_OF(bf16))
FOR_F16(PREFILL_OF(f16))
#define PLAIN_OF(T, NAME)                                                                                            \
    extern "C" __global__ void plain_attention_##NAME(T* out, const T* qkv, const T* keys, const T* values,          \
                                                      int length, int heads, int kv_heads, int capacity, int window, \
                                                      float scale, float cap, const float* sinks, int dim) {         \
        plain_attention(out, qkv, keys, values, length, heads, kv_heads, capacity, window, scale, cap, sinks, dim);  \
    }
FOR_BF16(PLAIN_OF(bf16, bf16))
FOR_F16(PLAIN_OF(f16, f16))
FOR_F32(PLAIN_OF(float, f32))
