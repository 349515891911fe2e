// Weights of eight bits with four of them for the exponent (e4m3), times a few rows of activations, and as plain numbers for products of many rows. A scale belongs to
// 128 columns of one row or of several.
//
// A tile is 16 rows × 128 columns, of a gated matrix 8 rows of the gate and the same 8 of up. Its bytes lie in the order in which a warp reads them, and tiles of the same rows, a
// strip, are neighbours. Each warp copies its tiles ahead into a ring of its own in shared memory, the first ones before the previous kernel has ended, and goes on to the
// block's next strip without a pause. Codes become halves, exactly; activations are halves too, each 128 of them times a power of two.
#include "fp8.cuh"

constexpr int WARPS = 8;
constexpr int THREADS = WARPS * 32;
constexpr int SCALED = 128;          // columns of a scale, and of a tile
constexpr int TILE = 16 * SCALED;    // bytes of its codes
constexpr int ROOM = TILE + 16 * 4;  // with the scales of its rows, in a ring
constexpr int EACH = 16;             // neighbours that a thread loads

__device__ __forceinline__ uint32_t address(const void* at) { return (uint32_t)__cvta_generic_to_shared(at); }
__device__ __forceinline__ void copy_ahead(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(address(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_scale(void* to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most `ahead` groups of copies have not arrived; 1 or 2.
__device__ __forceinline__ void wait_for_copies(int ahead) {
    if (ahead == 1) asm volatile("cp.async.wait_group 1;" ::: "memory");
    else asm volatile("cp.async.wait_group 2;" ::: "memory");
    __syncwarp();
}

// Four codes as two pairs of halves.
__device__ __forceinline__ void halves(uint32_t four, uint32_t& low, uint32_t& high) {
#if __CUDA_ARCH__ >= 890
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(low) : "h"((uint16_t)(four & 0xffff)));
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(high) : "h"((uint16_t)(four >> 16)));
#else
    widened<f16>(four, low, high);
#endif
}

// The matrix, (n, k), or (2n, k) where it is gated.
struct Weights {
    const uint8_t* tiles;
    const float* scales;
    int scale_rows, n, k;
    bool gated;
    __device__ __forceinline__ int columns() const { return (k + SCALED - 1) / SCALED; } // tiles of a strip
    __device__ __forceinline__ int strips() const { return gated ? (n + 7) / 8 : (n + 15) / 16; }
    // The row of the matrix that is row `slot` of a strip; -1 without one.
    __device__ __forceinline__ int row(int strip, int slot) const {
        int at = gated ? strip * 8 + slot % 8 : strip * 16 + slot;
        return at >= n ? -1 : gated && slot >= 8 ? at + n : at;
    }
    // Of 16 neighbours of a row, from a column that is divisible by 16.
    __device__ __forceinline__ const uint8_t* codes(int row, int column) const {
        const int up = gated && row >= n, of = up ? row - n : row;
        const int strip = gated ? of / 8 : of / 16, slot = gated ? of % 8 + 8 * up : of % 16, c = column % SCALED;
        return tiles + ((size_t)strip * columns() + column / SCALED) * TILE + (c / 64 * 2 + slot / 8) * 512 +
               (slot % 8 * 4 + c % 64 / 16) * 16;
    }
    __device__ __forceinline__ const float* scales_of(int row) const { return scales + (size_t)(row / scale_rows) * columns(); }
    __device__ __forceinline__ float scale(int row, int column) const { return __ldg(scales_of(row) + column / SCALED); }
};

// Where x is: one row of it or several in shared memory, or several in L2.
enum Mode { ONE, STAGED, MANY };

// Rows of x in shared memory: halves, each 128 columns times a power of two, and its inverse.
template <Mode MODE> struct Staged {
    uint8_t* values;
    float* factors;
    int stride;
    // 16 bytes between rows: eight lanes of two rows read from different banks.
    __device__ Staged(uint8_t* at, int m, int padded) : values(at), stride(MODE == STAGED ? padded * 2 + 16 : 0) {
        factors = reinterpret_cast<float*>(at + (MODE == STAGED ? m * stride : padded * 2));
    }
    template <typename T> __device__ __forceinline__ void fill(const T* x, int m, int k, int padded) {
        constexpr int FLIGHT = 10; // loads of a thread that come first
        const int pieces = padded / 8, total = MODE == STAGED ? m * pieces : pieces;
        for (int first = threadIdx.x; (first & ~31) < total; first += FLIGHT * THREADS) {
            uint4 raw[FLIGHT];
#pragma unroll
            for (int u = 0; u < FLIGHT; u++) {
                const int i = first + u * THREADS, row = MODE == STAGED ? i / pieces : 0, column = (i - row * pieces) * 8;
                raw[u] = make_uint4(0, 0, 0, 0);
                if (i < total && column < k) raw[u] = __ldcg(reinterpret_cast<const uint4*>(x + (size_t)row * k + column));
            }
#pragma unroll
            for (int u = 0; u < FLIGHT; u++) {
                const int i = first + u * THREADS, row = MODE == STAGED ? i / pieces : 0, column = (i - row * pieces) * 8;
                if ((i & ~31) >= total) break;
                // Positive numbers are ordered as their bits are.
                uint32_t most = __vmaxu2(__vmaxu2(raw[u].x & 0x7fff7fffu, raw[u].y & 0x7fff7fffu),
                                         __vmaxu2(raw[u].z & 0x7fff7fffu, raw[u].w & 0x7fff7fffu));
#pragma unroll
                for (int step = 8; step > 0; step >>= 1) most = __vmaxu2(most, __shfl_xor_sync(ALL_LANES, most, step));
                const T* of_most = reinterpret_cast<const T*>(&most);
                const float largest = fmaxf(wide(of_most[0]), wide(of_most[1]));
                // The largest gets the exponent of 2^14.
                const int up = min(14 + 127 - (int)(__float_as_uint(largest) >> 23), 120);
                const float times = __uint_as_float((uint32_t)(up + 127) << 23);
                const T* v = reinterpret_cast<const T*>(&raw[u]);
                uint32_t packed[4];
#pragma unroll
                for (int j = 0; j < 4; j++) packed[j] = pack<f16>(wide(v[2 * j]) * times, wide(v[2 * j + 1]) * times);
                if (i >= total) continue;
                *reinterpret_cast<uint4*>(values + row * stride + column * 2) = make_uint4(packed[0], packed[1], packed[2], packed[3]);
                if (threadIdx.x % 16 == 0)
                    factors[MODE == STAGED ? column / SCALED * 8 + row : column / SCALED] = __uint_as_float((uint32_t)(127 - up) << 23);
            }
        }
    }
};

// y = w·x + bias + residual, or the product of gate and up. A warp copies `ahead` tiles ahead. k is divisible by 16, m ≤ 8.
template <typename T, Mode MODE, bool GATED>
__device__ void fp8(T* y, const Weights& w, const T* x, const T* bias, const T* residual, int m, int activation, int ahead) {
    constexpr int ROWS = GATED ? 8 : 16, OF = MODE == ONE ? 1 : 9;
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ float parts[2][WARPS][16][OF];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
    const int n = w.n, k = w.k, tiles = w.columns(), strips = w.strips();
    uint8_t* ring = shared + warp * (ahead + 1) * ROOM;

    // A warp's tiles are counted through all strips of its block, so that no warp has more than another.
    struct Walk {
        int strip, tile;
        __device__ __forceinline__ void wrap(int tiles) {
            while (tile >= tiles) tile -= tiles, strip += gridDim.x;
        }
    };
    Walk next{(int)blockIdx.x, warp};
    next.wrap(tiles);
    int to_copy = 0, scales_of = -1;
    const float* own_scales = nullptr;
    auto copy_next = [&]() {
        if (next.strip < strips) {
            const uint8_t* from = w.tiles + ((size_t)next.strip * tiles + next.tile) * TILE;
            uint8_t* to = ring + to_copy * ROOM;
#pragma unroll
            for (int i = 0; i < TILE / 512; i++) copy_ahead(to + i * 512 + lane * 16, from + i * 512 + lane * 16);
            if (scales_of != next.strip) {
                scales_of = next.strip;
                // Without a row: zeros times any scale.
                own_scales = w.scales_of(max(w.row(next.strip, lane % 16), 0));
            }
            if (lane < 16) copy_scale(to + TILE + lane * 4, own_scales + next.tile);
            next.tile += WARPS;
            next.wrap(tiles);
        }
        end_copies();
        to_copy = to_copy == ahead ? 0 : to_copy + 1;
    };
    for (int i = 0; i < ahead; i++) copy_next();
    let_next_start();
    wait_for_previous();

    // A thread has at most one result of each strip, and what is added to it comes early. Two buffers in turn: a barrier for each strip is enough.
    const int row = threadIdx.x % ROWS, of = threadIdx.x / ROWS;
    int buffer = 0;
    float of_bias = 0.f, of_residual = 0.f;
    auto has = [&](int strip) { return of < (MODE == ONE ? 1 : m) && strip * ROWS + row < n; };
    auto prepare = [&](int strip) {
        if (GATED || !has(strip)) return;
        if (bias) of_bias = wide(bias[strip * ROWS + row]);
        if (residual) of_residual = wide(__ldcg(residual + (size_t)of * n + strip * ROWS + row));
    };
    float sums[4] = {};
    auto finish = [&](int strip) {
        if (MODE == ONE) {
            if (quad == 0) parts[buffer][warp][group][0] = sums[0], parts[buffer][warp][group + 8][0] = sums[2];
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) parts[buffer][warp][group + 8 * (i / 2)][MODE == ONE ? 0 : quad * 2 + i % 2] = sums[i];
        }
        __syncthreads();
        auto total = [&](int at) {
            float sum = 0.f;
#pragma unroll
            for (int i = 0; i < WARPS; i++) sum += parts[buffer][i][at][of];
            return sum;
        };
        if (has(strip)) {
            float sum = total(row);
            if (GATED) {
                // Rounded as the result of a separate product is.
                sum = activate(wide(narrow<T>(sum)), activation) * wide(narrow<T>(total(row + 8)));
            } else {
                sum += of_bias;
                if (residual) sum = wide(narrow<T>(sum)) + of_residual;
            }
            y[(size_t)of * n + strip * ROWS + row] = narrow<T>(sum);
        }
        prepare(strip + gridDim.x);
        buffer ^= 1;
#pragma unroll
        for (int i = 0; i < 4; i++) sums[i] = 0.f;
    };

    prepare(blockIdx.x);
    Staged<MODE> staged(shared + WARPS * (ahead + 1) * ROOM, m, tiles * SCALED);
    if constexpr (MODE != MANY) {
        staged.fill(x, m, k, tiles * SCALED);
        __syncthreads();
    }
    // A lane's numbers of x: 16 columns in each half of a tile, of row lane / 4. Of a single row: for lanes 0 to 3; the others keep their zeros.
    auto load_x = [&](uint4 (&to)[4], int tile) {
        const uint4 nothing = make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = tile * SCALED + half * 64 + quad * EACH;
            if constexpr (MODE == MANY) {
                const bool inside = group < m && at < k;
                const uint4* from = reinterpret_cast<const uint4*>(x + (size_t)group * k + at);
                to[2 * half] = inside ? __ldcg(from) : nothing;
                to[2 * half + 1] = inside ? __ldcg(from + 1) : nothing;
            } else if (MODE == STAGED || group == 0) {
                // Beyond the last row: it again. Nobody reads what comes of it.
                const int from_row = MODE == STAGED ? min(group, m - 1) * staged.stride : 0;
                const uint4* from = reinterpret_cast<const uint4*>(staged.values + from_row + at * 2);
                to[2 * half] = from[0];
                to[2 * half + 1] = from[1];
            }
        }
    };
    int current = blockIdx.x, to_read = 0;
    uint4 b[4] = {}, next_b[4] = {};
    Walk at{(int)blockIdx.x, warp};
    at.wrap(tiles);
    // Several rows of x come from L2, and thus a tile earlier.
    if constexpr (MODE == MANY) load_x(next_b, at.tile);
    while (at.strip < strips) {
        // Every lane is done with the tile before, which is overwritten.
        __syncwarp();
        copy_next();
        const int tile = at.tile;
        while (current < at.strip) finish(current), current += gridDim.x;
        at.tile += WARPS;
        at.wrap(tiles);
        wait_for_copies(ahead);
        const uint8_t* from = ring + to_read * ROOM;
        to_read = to_read == ahead ? 0 : to_read + 1;
        if constexpr (MODE == MANY) {
#pragma unroll
            for (int i = 0; i < 4; i++) b[i] = next_b[i];
            load_x(next_b, at.tile);
        } else {
            load_x(b, tile);
        }
        float part[2][4] = {};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint4 low = *reinterpret_cast<const uint4*>(from + half * 1024 + lane * 16);
            const uint4 high = *reinterpret_cast<const uint4*>(from + half * 1024 + 512 + lane * 16);
            const uint32_t *of_low = &low.x, *of_high = &high.x;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint4& of_x = b[2 * half + i / 2];
                const uint32_t b0 = i % 2 ? of_x.z : of_x.x, b1 = i % 2 ? of_x.w : of_x.y;
                uint32_t a0, a1, a2, a3;
                if constexpr (MODE == MANY) {
                    widened<T>(of_low[i], a0, a2);
                    widened<T>(of_high[i], a1, a3);
                    mma<T>(part[i % 2], a0, a1, a2, a3, b0, b1);
                } else {
                    halves(of_low[i], a0, a2);
                    halves(of_high[i], a1, a3);
                    mma<f16>(part[i % 2], a0, a1, a2, a3, b0, b1);
                }
            }
        }
        const float* scales = reinterpret_cast<const float*>(from + TILE);
        const float of_rows[2] = {scales[group], scales[group + 8]};
        float factors[2] = {1.f, 1.f};
        if (MODE == ONE) factors[0] = staged.factors[tile];
        if (MODE == STAGED) factors[0] = staged.factors[tile * 8 + quad * 2], factors[1] = staged.factors[tile * 8 + quad * 2 + 1];
#pragma unroll
        for (int i = 0; i < 4; i++) sums[i] += (part[0][i] + part[1][i]) * (of_rows[i / 2] * factors[i % 2]);
    }
    while (current < strips) finish(current), current += gridDim.x;
}

// Without tensor cores: a warp computes a row of the weights.
template <bool GATED>
__device__ void fp8_f32(float* y, const Weights& w, const float* x, const float* bias, const float* residual, int m,
                        int activation) {
    let_next_start();
    wait_for_previous();
    const int lane = threadIdx.x % 32, row = blockIdx.x * WARPS + threadIdx.x / 32, n = w.n, k = w.k;
    if (row >= n) return;
    auto weight = [&](int of, int column) {
        return number(w.codes(of, column / EACH * EACH)[column % EACH]) * w.scale(of, column);
    };
    for (int of = 0; of < m; of++) {
        float sum = 0.f, up = 0.f;
        for (int i = lane; i < k; i += 32) {
            float value = __ldcg(x + (size_t)of * k + i);
            sum += weight(row, i) * value;
            if (GATED) up += weight(n + row, i) * value;
        }
        sum = warp_sum(sum);
        if (GATED) sum = activate(sum, activation) * warp_sum(up);
        if (lane) continue;
        size_t to = (size_t)of * n + row;
        if (!GATED && bias) sum += bias[row];
        if (!GATED && residual) sum += residual[to];
        y[to] = sum;
    }
}

// out (rows, k) = w.
template <typename T> __device__ void fp8_plain(T* out, const Weights& w) {
    let_next_start();
    wait_for_previous();
    const int rows = w.gated ? 2 * w.n : w.n, k = w.k;
    const size_t pieces = (size_t)rows * (k / EACH);
    for (size_t piece = (size_t)blockIdx.x * blockDim.x + threadIdx.x; piece < pieces; piece += (size_t)gridDim.x * blockDim.x) {
        const int row = piece / (k / EACH), column = piece % (k / EACH) * EACH;
        const uint4 codes = load_once(w.codes(row, column));
        const uint8_t* bytes = reinterpret_cast<const uint8_t*>(&codes);
        const float scale = w.scale(row, column);
#pragma unroll
        for (int i = 0; i < EACH; i += 8) {
            float eight[8];
#pragma unroll
            for (int j = 0; j < 8; j++) eight[j] = number(bytes[i + j]) * scale;
            store8(out + (size_t)row * k + column + i, eight);
        }
    }
}

// The codes of rows of k as tiles; zeros where there is no row or column. A thread 16 of them at a time.
__device__ void fp8_arrange(uint8_t* tiles, const uint8_t* codes, int n, int k, int gated) {
    const Weights w{tiles, nullptr, 1, n, k, gated != 0};
    const size_t pieces = (size_t)w.strips() * w.columns() * (TILE / EACH);
    for (size_t piece = (size_t)blockIdx.x * blockDim.x + threadIdx.x; piece < pieces; piece += (size_t)gridDim.x * blockDim.x) {
        const int lane = piece % 32, part = piece / 32 % 4, tile = piece / 128 % w.columns(), strip = piece / 128 / w.columns();
        const int row = w.row(strip, lane / 4 + part % 2 * 8), column = tile * SCALED + part / 2 * 64 + lane % 4 * EACH;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (row >= 0 && column < k) v = *reinterpret_cast<const uint4*>(codes + (size_t)row * k + column);
        reinterpret_cast<uint4*>(tiles)[piece] = v;
    }
}

// The codes of n numbers times `times`.
template <typename T> __device__ void fp8_from(uint8_t* codes, const T* x, size_t n, float times) {
    let_next_start();
    wait_for_previous();
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        codes[i] = code_of(wide(x[i]) * times);
}

// Several rows of x need more registers, and fewer blocks.
#define FP8(NAME, T, MODE, GATED)                                                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS, MODE == ONE ? 3 : 2)                                       \
        NAME(T* y, const uint8_t* tiles, const float* scales, int scale_rows, const T* x, const T* bias,             \
             const T* residual, int m, int n, int k, int activation, int ahead) {                                    \
        fp8<T, MODE, GATED>(y, Weights{tiles, scales, scale_rows, n, k, GATED}, x, bias, residual, m, activation,    \
                            ahead);                                                                                  \
    }
#define FP8_F32(NAME, GATED)                                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                            \
        NAME(float* y, const uint8_t* tiles, const float* scales, int scale_rows, const float* x, const float* bias, \
             const float* residual, int m, int n, int k, int activation) {                                           \
        fp8_f32<GATED>(y, Weights{tiles, scales, scale_rows, n, k, GATED}, x, bias, residual, m, activation);        \
    }
#define FP8_OF(T, NAME)                                                                                              \
    extern "C" __global__ void fp8_plain_##NAME(T* out, const uint8_t* tiles, const float* scales, int scale_rows,   \
                                                int n, int k, int gated) {                                           \
        fp8_plain<T>(out, Weights{tiles, scales, scale_rows, n, k, gated != 0});                                     \
    }                                                                                                                \
    extern "C" __global__ void fp8_arrange_##NAME(uint8_t* tiles, const uint8_t* codes, int n, int k, int gated) {   \
        fp8_arrange(tiles, codes, n, k, gated);                                                                      \
    }                                                                                                                \
    extern "C" __global__ void fp8_from_##NAME(uint8_t* codes, const T* x, size_t n, float times) {                  \
        fp8_from<T>(codes, x, n, times);                                                                             \
    }
#define FP8_ALL(T)                                                                                                   \
    FP8(fp8_one_##T, T, ONE, false)                                                                                  \
    FP8(fp8_one_gated_##T, T, ONE, true)                                                                             \
    FP8(fp8_staged_##T, T, STAGED, false)                                                                            \
    FP8(fp8_staged_gated_##T, T, STAGED, true)                                                                       \
    FP8(fp8_many_##T, T, MANY, false) FP8(fp8_many_gated_##T, T, MANY, true) FP8_OF(T, T)
FOR_BF16(FP8_ALL(bf16))
FOR_F16(FP8_ALL(f16))
FOR_F32(FP8_F32(fp8_f32, false) FP8_F32(fp8_gated_f32, true) FP8_OF(float, f32))
