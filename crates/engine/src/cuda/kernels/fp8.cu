// Weights of eight bits with four of them for the exponent (e4m3), times one row of activations, and as plain numbers for products of many rows; a few rows are in
// fp8_rows.cu. A scale belongs to 128 columns of one row or of several.
//
// Each warp copies its tiles ahead into a ring of its own in shared memory, the first ones before the previous kernel has ended, and goes on to the
// block's next strip without a pause. Codes become halves, exactly; activations are halves too, each 128 of them times a power of two.
#include "fp8_tiles.cuh"

// A row of activations in shared memory: halves, each 128 columns times a power of two, and its inverse.
template <typename T> __device__ __forceinline__ void stage(uint8_t* values, float* factors, const T* x, int k, int padded) {
    constexpr int FLIGHT = 10; // loads of a thread that come first
    const int total = padded / 8;
    for (int first = threadIdx.x; (first & ~31) < total; first += FLIGHT * THREADS) {
        uint4 raw[FLIGHT];
#pragma unroll
        for (int u = 0; u < FLIGHT; u++) {
            const int i = first + u * THREADS, column = i * 8;
            raw[u] = make_uint4(0, 0, 0, 0);
            if (i < total && column < k) raw[u] = __ldcg(reinterpret_cast<const uint4*>(x + column));
        }
#pragma unroll
        for (int u = 0; u < FLIGHT; u++) {
            const int i = first + u * THREADS, column = i * 8;
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
            *reinterpret_cast<uint4*>(values + column * 2) = make_uint4(packed[0], packed[1], packed[2], packed[3]);
            if (threadIdx.x % 16 == 0) factors[column / SCALED] = __uint_as_float((uint32_t)(127 - up) << 23);
        }
    }
}

// y = w·x + bias + residual, or the product of gate and up. A warp copies `ahead` tiles ahead. k is divisible by 16.
template <typename T, bool GATED>
__device__ void fp8(T* y, const Weights& w, const T* x, const T* bias, const T* residual, int activation, int ahead) {
    constexpr int ROWS = GATED ? 8 : 16;
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ float parts[2][WARPS][16];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
    const int n = w.n, tiles = w.columns(), strips = w.strips();
    uint8_t* ring = shared + warp * (ahead + 1) * ROOM;
    Copier copier{w, ring, warp, lane, ahead};
    for (int i = 0; i < ahead; i++) copier.next();
    let_next_start();
    wait_for_previous();

    // A thread has at most one result of each strip, and what is added to it comes early. Two buffers in turn: a barrier for each strip is enough.
    const int row = threadIdx.x;
    int buffer = 0;
    float of_bias = 0.f, of_residual = 0.f;
    auto has = [&](int strip) { return row < ROWS && strip * ROWS + row < n; };
    auto prepare = [&](int strip) {
        if (GATED || !has(strip)) return;
        if (bias) of_bias = wide(bias[strip * ROWS + row]);
        if (residual) of_residual = wide(__ldcg(residual + strip * ROWS + row));
    };
    float sums[2] = {};
    auto finish = [&](int strip) {
        if (quad == 0) parts[buffer][warp][group] = sums[0], parts[buffer][warp][group + 8] = sums[1];
        __syncthreads();
        auto total = [&](int at) {
            float sum = 0.f;
#pragma unroll
            for (int i = 0; i < WARPS; i++) sum += parts[buffer][i][at];
            return sum;
        };
        if (has(strip)) {
            float sum = total(row);
            if (GATED) {
                // Rounded as the result of a separate product is.
                sum = gated_value(wide(narrow<T>(sum)), wide(narrow<T>(total(row + 8))), activation);
            } else {
                sum += of_bias;
                if (residual) sum = wide(narrow<T>(sum)) + of_residual;
            }
            y[strip * ROWS + row] = narrow<T>(sum);
        }
        prepare(strip + gridDim.x);
        buffer ^= 1;
        sums[0] = sums[1] = 0.f;
    };

    prepare(blockIdx.x);
    const uint8_t* staged = shared + WARPS * (ahead + 1) * ROOM;
    const float* factors = reinterpret_cast<const float*>(staged + tiles * SCALED * 2);
    stage(const_cast<uint8_t*>(staged), const_cast<float*>(factors), x, w.k, tiles * SCALED);
    __syncthreads();
    // A lane's numbers of x: 16 columns in each half of a tile, for lanes 0 to 3; the others keep their zeros.
    uint4 b[4] = {};
    int current = blockIdx.x, to_read = 0;
    Walk at{(int)blockIdx.x, warp};
    at.wrap(tiles);
    while (at.strip < strips) {
        // Every lane is done with the tile before, which is overwritten.
        __syncwarp();
        copier.next();
        const int tile = at.tile;
        while (current < at.strip) finish(current), current += gridDim.x;
        at.tile += WARPS;
        at.wrap(tiles);
        wait_for_copies(ahead);
        const uint8_t* from = ring + to_read * ROOM;
        to_read = to_read == ahead ? 0 : to_read + 1;
        if (group == 0) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint4* of_x = reinterpret_cast<const uint4*>(staged + (tile * SCALED + half * 64 + quad * EACH) * 2);
                b[2 * half] = of_x[0];
                b[2 * half + 1] = of_x[1];
            }
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
                uint32_t a0, a1, a2, a3;
                halves(of_low[i], a0, a2);
                halves(of_high[i], a1, a3);
                mma<f16>(part[i % 2], a0, a1, a2, a3, i % 2 ? of_x.z : of_x.x, i % 2 ? of_x.w : of_x.y);
            }
        }
        const float* scales = reinterpret_cast<const float*>(from + TILE);
#pragma unroll
        for (int i = 0; i < 2; i++) sums[i] += (part[0][2 * i] + part[1][2 * i]) * (scales[group + 8 * i] * factors[tile]);
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
        if (GATED) sum = gated_value(sum, warp_sum(up), activation);
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

#define FP8(NAME, T, GATED)                                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS, 3)                                                         \
        NAME(T* y, const uint8_t* tiles, const float* scales, int scale_rows, const T* x, const T* bias,             \
             const T* residual, int n, int k, int activation, int ahead) {                                           \
        fp8<T, GATED>(y, Weights{tiles, scales, scale_rows, n, k, GATED}, x, bias, residual, activation, ahead);     \
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
    FP8(fp8_one_##T, T, false) FP8(fp8_one_gated_##T, T, true) FP8_OF(T, T)
FOR_BF16(FP8_ALL(bf16))
FOR_F16(FP8_ALL(f16))
FOR_F32(FP8_F32(fp8_f32, false) FP8_F32(fp8_gated_f32, true) FP8_OF(float, f32))
