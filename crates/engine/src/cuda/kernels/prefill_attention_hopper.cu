// Causal attention of a whole prompt on compute capability 9.0, whose tensor cores read tiles from shared memory
// themselves and work while the threads do something else.
//
// A block has GROUPS groups of four warps that compute, each with 64 queries, and one more group that copies tiles of
// keys and values to two rings in shared memory. A group that computes starts the scores of the next tile and the
// weighted sum of this one, and turns scores to weights meanwhile. The groups take turns to start products, so that
// the weights of one are computed under the products of another.
//
// A tile in shared memory has rows of 128 bytes, whose eight pieces are permuted by the row's number; a head of 128 is
// two such tiles, one after the other.
#include "common.cuh"

constexpr int GROUP_THREADS = 128;
constexpr int ROW_BYTES = 128;
constexpr float LOWEST = -1e30f;
constexpr float LOG2_E = 1.4426950408889634f;
// Weights are relative to a row's maximum, or to an earlier maximum that is at most 2^SLACK times less.
constexpr float SLACK = 8.f;

__device__ __forceinline__ uint32_t shared_address(const void* at) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

// Copies of 16 bytes to shared memory; zeros where `there` is false.
__device__ __forceinline__ void copy16(uint32_t to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void copy16(uint32_t to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// What threads have written to shared memory becomes visible to the tensor cores.
__device__ __forceinline__ void show_to_tensor_cores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Barriers in shared memory. A phase ends when `count` have arrived.
__device__ __forceinline__ void init_barrier(uint32_t at, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}
__device__ __forceinline__ void arrive(uint32_t at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
// This thread arrives when its copies so far have ended.
__device__ __forceinline__ void arrive_after_copies(uint32_t at) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(at) : "memory");
}
// Waits for the end of the phase of this parity. The phase before the first counts as ended.
__device__ __forceinline__ void wait_for_phase(uint32_t at, uint32_t parity) {
    uint32_t ended;
    do {
        asm volatile("{.reg .pred p;"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;"
                     "selp.u32 %0, 1, 0, p;}"
                     : "=r"(ended)
                     : "r"(at), "r"(parity)
                     : "memory");
    } while (!ended);
}

// A place in a ring of tiles.
template <int STAGES> struct Cursor {
    int stage = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

// Products on the tensor cores, by the four warps of a group. Sums and operands are in order only after
// `wait_for_products`.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
// The compiler must not move uses of these across this line.
template <int N> __device__ __forceinline__ void settle(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(x[i])::"memory");
}
template <int N> __device__ __forceinline__ void settle(uint32_t (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(x[i])::"memory");
}

// A tile as the tensor cores address it: groups of eight rows follow each other. `beyond`: bytes to the next 64
// columns, needed only where a product is along the rows.
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t at, uint32_t beyond = 16,
                                                    uint32_t next_rows = 8 * ROW_BYTES) {
    constexpr uint32_t PERMUTED_128 = 1u << 30;
    return static_cast<uint64_t>(next_rows >> 4 | PERMUTED_128) << 32 | (at >> 4 | beyond >> 4 << 16);
}
// The same, some bytes further on. An address in shared memory has at most 18 bits: nothing is carried.
__device__ __forceinline__ uint64_t further(uint64_t descriptor, uint32_t bytes) {
    const uint32_t low = static_cast<uint32_t>(descriptor) + (bytes >> 4);
    return descriptor >> 32 << 32 | low;
}

// c (+)= a·bᵀ, 64×N×16, a and b in shared memory.
template <typename T, int N>
__device__ void multiply_shared(float (&c)[N / 2], uint64_t a, uint64_t b, int accumulate);
// c += a·b, a in registers.
template <typename T, int N>
__device__ void multiply_held(float (&c)[N / 2], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b);

#define TEXT_32                                                                                                      \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29," \
    "%30,%31"
#define TEXT_64                                                                                                      \
    TEXT_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,"  \
            "%57,%58,%59,%60,%61,%62,%63"
#define SUMS_8(i)                                                                                                    \
    "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]),      \
        "+f"(c[i + 7])
#define SUMS_32 SUMS_8(0), SUMS_8(8), SUMS_8(16), SUMS_8(24)
#define SUMS_64 SUMS_32, SUMS_8(32), SUMS_8(40), SUMS_8(48), SUMS_8(56)

// The name of a type in C++ is its name in PTX. R = N / 2, then the numbers after it.
#define MULTIPLY_SHARED(T, N, R, R1, R2)                                                                             \
    template <>                                                                                                      \
    __device__ __forceinline__ void multiply_shared<T, N>(float (&c)[R], uint64_t a, uint64_t b, int accumulate) {   \
        asm volatile("{.reg .pred p; setp.ne.b32 p, %" #R2 ", 0;"                                                    \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #T "." #T " {" TEXT_##R "}, "                 \
                     "%" #R ", %" #R1 ", p, 1, 1, 0, 0;}"                                                            \
                     : SUMS_##R                                                                                      \
                     : "l"(a), "l"(b), "r"(accumulate));                                                             \
    }
#define MULTIPLY_HELD(T, N, R, R1, R2, R3, R4, R5)                                                                   \
    template <>                                                                                                      \
    __device__ __forceinline__ void multiply_held<T, N>(float (&c)[R], uint32_t a0, uint32_t a1, uint32_t a2,        \
                                                        uint32_t a3, uint64_t b) {                                   \
        asm volatile("{.reg .pred p; setp.ne.b32 p, %" #R5 ", 0;"                                                    \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #T "." #T " {" TEXT_##R "}, "                 \
                     "{%" #R ", %" #R1 ", %" #R2 ", %" #R3 "}, %" #R4 ", p, 1, 1, 1;}"                               \
                     : SUMS_##R                                                                                      \
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(1));                                          \
    }
#define MULTIPLY_OF(T)                                                                                               \
    MULTIPLY_SHARED(T, 128, 64, 65, 66)                                                                              \
    MULTIPLY_HELD(T, 64, 32, 33, 34, 35, 36, 37)                                                                     \
    MULTIPLY_HELD(T, 128, 64, 65, 66, 67, 68, 69)
FOR_BF16(MULTIPLY_OF(bf16))
FOR_F16(MULTIPLY_OF(f16))

__device__ __forceinline__ float power_of_2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// What a block computes: 64·GROUPS rows of one head, over tiles of keys first_tile..=last_tile.
struct Place {
    int first_row, head, kv_head, sequence, first_tile, last_tile;
};
template <int DIM, int ROWS, int TILE>
__device__ __forceinline__ Place place(int item, int length, int heads, int kv_heads, int batch, int window) {
    const int blocks = (length + ROWS - 1) / ROWS, sharing = heads / kv_heads;
    // The longest blocks of all heads first, in sections whose keys and values fit the L2 cache.
    constexpr long long CACHE = 32 << 20;
    const int pairs = kv_heads * batch;
    const int most = min(pairs, max(1, (int)(CACHE / ((long long)length * DIM * 4))));
    const int section = item / (most * sharing * blocks), at = item % (most * sharing * blocks);
    const int width = min(most, pairs - section * most) * sharing, block = at / width;
    const int pair = section * most + at % width / sharing;
    Place p;
    p.sequence = pair / kv_heads;
    p.kv_head = pair % kv_heads;
    p.head = p.kv_head * sharing + at % width % sharing;
    p.first_row = (blocks - 1 - block) * ROWS;
    p.first_tile = window > 0 ? max(0, p.first_row + 1 - window) / TILE : 0;
    p.last_tile = (min(length, p.first_row + ROWS) - 1) / TILE;
    return p;
}

// Starts this thread's part of the copy of COUNT rows from `first`; zeros beyond `length`.
template <typename T, int DIM, int COUNT, int THREADS>
__device__ __forceinline__ void fetch(uint32_t to, const T* from, size_t pitch, int first, int length, int thread) {
    constexpr int PIECES = DIM / 8, STEP = THREADS / PIECES, TIMES = (COUNT + STEP - 1) / STEP;
    static_assert(STEP % 8 == 0);
    const int row = thread / PIECES, piece = thread % PIECES;
    to += piece / 8 * (COUNT * ROW_BYTES) + row * ROW_BYTES + ((piece % 8 ^ row % 8) << 4);
    const T* at = from + (size_t)(first + row) * pitch + piece * 8;
    if (COUNT % STEP == 0 && first + COUNT <= length) {
#pragma unroll
        for (int i = 0; i < TIMES; i++) copy16(to + i * STEP * ROW_BYTES, at + i * STEP * pitch);
    } else {
#pragma unroll 1
        for (int i = 0; i < TIMES; i++) {
            const bool there = first + row + i * STEP < length;
            if (row + i * STEP < COUNT) copy16(to + i * STEP * ROW_BYTES, there ? at + i * STEP * pitch : from, there);
        }
    }
}

// 64 queries × TILE keys. The queries' halves of 64 columns are `query_rows` rows apart.
template <typename T, int DIM, int TILE>
__device__ __forceinline__ void start_scores(float (&score)[TILE / 2], uint32_t query, int query_rows, uint32_t keys) {
    const uint64_t a = tile_descriptor(query), b = tile_descriptor(keys);
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
        multiply_shared<T, TILE>(score, further(a, k / 4 * query_rows * ROW_BYTES + k % 4 * 32),
                                 further(b, k / 4 * TILE * ROW_BYTES + k % 4 * 32), k > 0);
    }
}
// The weights times the values, added to acc. A product is along the rows of the tile: 16 of them.
template <typename T, int DIM, int TILE>
__device__ __forceinline__ void start_sums(float (&acc)[DIM / 2], const uint32_t (&weight)[TILE / 4], uint32_t values) {
    const uint64_t b = tile_descriptor(values, TILE * ROW_BYTES);
#pragma unroll
    for (int k = 0; k < TILE / 16; k++) {
        multiply_held<T, DIM>(acc, weight[4 * k], weight[4 * k + 1], weight[4 * k + 2], weight[4 * k + 3],
                              further(b, k * 16 * ROW_BYTES));
    }
}

// The softmax of a thread's two rows, eight apart, over tiles.
struct Softmax {
    float top[2], sum[2], keep[2];
    int window;
    float scale, cap, to_log2;
    // Converts scores to units of log2, for exp2.
    __device__ __forceinline__ Softmax(int window, float scale, float cap)
        : window(window), scale(scale), cap(cap), to_log2(cap > 0.f ? LOG2_E : scale * LOG2_E) {}
    __device__ __forceinline__ void begin() { top[0] = top[1] = LOWEST, sum[0] = sum[1] = 0.f; }

    // Scores become weights. `row`: the first of the warp's 16. Where true is returned, what was summed with earlier
    // weights is to be multiplied by `keep`.
    template <int TILE>
    __device__ __forceinline__ bool weigh(float (&score)[TILE / 2], int row, int first_key) {
        const int lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
        if (cap > 0.f) {
            // cap·tanh(x / cap), where tanh(x) = 1 - 2 / (1 + exp(2·x)).
            const float by = 2.f * LOG2_E * scale / cap;
#pragma unroll
            for (int i = 0; i < TILE / 2; i++) {
                score[i] = cap - __fdividef(2.f * cap, 1.f + power_of_2(score[i] * by));
            }
        }
        if (first_key + TILE > row + 1 || (window > 0 && first_key + window <= row + 15)) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int last = row + group + half * 8 - first_key - quad * 2;
                const int before = window > 0 ? last - window : -0x40000000;
#pragma unroll
                for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const int column = n * 8 + i;
                        if (column > last || column <= before) score[n * 4 + half * 2 + i] = LOWEST;
                    }
                }
            }
        }
        float now[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float part[4] = {top[half], top[half], top[half], top[half]};
#pragma unroll
            for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float& most = part[n % 2 * 2 + i];
                    most = fmaxf(most, score[n * 4 + half * 2 + i]);
                }
            }
            now[half] = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
        }
#pragma unroll
        for (int half = 0; half < 2; half++) now[half] = fmaxf(now[half], __shfl_xor_sync(ALL_LANES, now[half], 1));
#pragma unroll
        for (int half = 0; half < 2; half++) now[half] = fmaxf(now[half], __shfl_xor_sync(ALL_LANES, now[half], 2));
        const float growth = fmaxf(now[0] - top[0], now[1] - top[1]) * to_log2;
        const bool changed = __any_sync(ALL_LANES, growth > SLACK);
        if (changed) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                keep[half] = power_of_2((top[half] - now[half]) * to_log2);
                sum[half] *= keep[half];
                top[half] = now[half];
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            // A row whose positions were all masked so far must not count them.
            const float base = top[half] == LOWEST ? 0.f : top[half] * to_log2;
            float part[4] = {sum[half], 0.f, 0.f, 0.f};
#pragma unroll
            for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float& s = score[n * 4 + half * 2 + i];
                    const float x = fmaf(s, to_log2, -base);
                    s = power_of_2(x);
                    part[n % 2 * 2 + i] += s;
                }
            }
            sum[half] = (part[0] + part[1]) + (part[2] + part[3]);
        }
        return changed;
    }
    // Never true: without a branch that needs all weights, the assembler computes them after the next wait.
    __device__ __forceinline__ void complete() {
        if (sum[0] + sum[1] < 0.f) asm volatile("nanosleep.u32 0;");
    }
    template <int DIM> __device__ __forceinline__ void rescale(float (&acc)[DIM / 2]) {
#pragma unroll
        for (int i = 0; i < DIM / 2; i++) acc[i] *= keep[i / 2 % 2];
    }
};

// Scores are where the next product wants its operand.
template <typename T, int TILE>
__device__ __forceinline__ void narrow_weights(uint32_t (&weight)[TILE / 4], const float (&score)[TILE / 2]) {
#pragma unroll
    for (int i = 0; i < TILE / 4; i++) weight[i] = pack<T>(score[2 * i], score[2 * i + 1]);
}

// Divides by the sums and stores the warp's 16 rows, in pieces of 16 bytes. `row`: the first of them.
template <typename T, int DIM>
__device__ __forceinline__ void store_rows(T* out, const float (&acc)[DIM / 2], const Softmax& softmax, const float* sinks,
                                           int row, int length, int heads, int head, int sequence) {
    const int lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float total = softmax.sum[half];
        total += __shfl_xor_sync(ALL_LANES, total, 1);
        total += __shfl_xor_sync(ALL_LANES, total, 2);
        const float by = 1.f / (total + of_sink(sinks, head, softmax.top[half] * softmax.to_log2 / LOG2_E));
        const int at = row + half * 8 + group;
        T* to = out + (((size_t)sequence * length + at) * heads + head) * DIM + quad * 8;
#pragma unroll
        for (int d = 0; d < DIM / 32; d++) {
            // Each of four threads has two columns of four pieces; then one piece.
            uint32_t piece[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int from = (d * 4 + i) * 4 + half * 2;
                piece[i] = pack<T>(acc[from] * by, acc[from + 1] * by);
            }
#pragma unroll
            for (int step = 1; step < 4; step *= 2) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    if (i & step) continue;
                    const bool upper = quad & step;
                    const uint32_t other = __shfl_xor_sync(ALL_LANES, upper ? piece[i] : piece[i + step], step);
                    if (upper) {
                        piece[i] = other;
                    } else {
                        piece[i + step] = other;
                    }
                }
            }
            if (at < length) *reinterpret_cast<uint4*>(to + d * 32) = make_uint4(piece[0], piece[1], piece[2], piece[3]);
        }
    }
}

// Bytes of dynamic shared memory: queries, then STAGES tiles of keys and of values, from a multiple of 1,024.
constexpr int shared_bytes(int dim, int tile, int groups, int stages) {
    return 1024 + (groups * 64 + 2 * stages * tile) * dim * 2;
}

// qkv: (batch·length, (heads + 2·kv_heads)·DIM), queries first and already rotated. Caches: (batch, kv_heads, capacity,
// DIM), filled from position 0. out: (batch·length, heads·DIM). window 0 means no window. The grid's z is the batch;
// with fewer blocks than there are parts of the work, a block computes several.
template <typename T, int DIM, int TILE, int GROUPS, int STAGES>
__device__ __forceinline__ void attention(T* out, const T* qkv, const T* keys, const T* values, int length, int heads,
                                          int kv_heads, int capacity, int window, float scale, float cap, const float* sinks) {
    constexpr int ROWS = GROUPS * 64, TILE_BYTES = TILE * DIM * 2;
    constexpr int COPIER_REGISTERS = GROUPS == 2 ? 40 : 32, REGISTERS = GROUPS == 2 ? 232 : 160;
    static_assert(GROUPS == 2 || GROUPS == 3);
    extern __shared__ unsigned char shared[];
    __shared__ __align__(8) uint64_t barriers[2 + 4 * STAGES];
    // The permutation counts rows from a multiple of 1,024 bytes.
    const uint32_t query_at = (shared_address(shared) + 1023) & ~1023u;
    const uint32_t keys_at = query_at + ROWS * DIM * 2, values_at = keys_at + STAGES * TILE_BYTES;
    const uint32_t query_there = shared_address(barriers), query_free = query_there + 8;
    const uint32_t keys_there = query_there + 16, keys_free = keys_there + STAGES * 8;
    const uint32_t values_there = keys_free + STAGES * 8, values_free = values_there + STAGES * 8;
    if (threadIdx.x == 0) {
        // Copied: all threads of the group that copies arrive. Free: all warps of those that compute.
        init_barrier(query_there, GROUP_THREADS);
        init_barrier(query_free, GROUPS * 4);
        for (int i = 0; i < STAGES; i++) {
            init_barrier(keys_there + i * 8, GROUP_THREADS);
            init_barrier(keys_free + i * 8, GROUPS * 4);
            init_barrier(values_there + i * 8, GROUP_THREADS);
            init_barrier(values_free + i * 8, GROUPS * 4);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();

    const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const int blocks = gridDim.x * gridDim.y * gridDim.z, batch = gridDim.z;
    const int items = (length + ROWS - 1) / ROWS * heads * batch;
    // Parts get shorter: forth and back over the blocks, so that each has about as much to do.
    auto item_of = [&](int turn) { return turn * blocks + (turn % 2 ? blocks - 1 - block : block); };
    // The shuffle tells the compiler that this is the same for a warp.
    const int group = __shfl_sync(ALL_LANES, threadIdx.x / GROUP_THREADS, 0), thread = threadIdx.x % GROUP_THREADS;
    Cursor<STAGES> key_at, value_at;

    if (group == GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COPIER_REGISTERS));
        const int stride = (heads + 2 * kv_heads) * DIM;
        for (int turn = 0; item_of(turn) < items; turn++) {
            const Place p = place<DIM, ROWS, TILE>(item_of(turn), length, heads, kv_heads, batch, window);
            const size_t cache_at = ((size_t)p.sequence * kv_heads + p.kv_head) * capacity * DIM;
            auto fetch_keys = [&](int tile) {
                wait_for_phase(keys_free + key_at.stage * 8, key_at.parity ^ 1);
                fetch<T, DIM, TILE, GROUP_THREADS>(keys_at + key_at.stage * TILE_BYTES, keys + cache_at, DIM,
                                                   tile * TILE, length, thread);
                arrive_after_copies(keys_there + key_at.stage * 8);
                key_at.advance();
            };
            wait_for_phase(query_free, turn % 2 ^ 1);
            fetch<T, DIM, ROWS, GROUP_THREADS>(query_at, qkv + (size_t)p.sequence * length * stride + p.head * DIM,
                                               stride, p.first_row, length, thread);
            arrive_after_copies(query_there);
            fetch_keys(p.last_tile);
#pragma unroll 1
            for (int tile = p.last_tile; tile >= p.first_tile; tile--) {
                if (tile > p.first_tile) fetch_keys(tile - 1);
                wait_for_phase(values_free + value_at.stage * 8, value_at.parity ^ 1);
                fetch<T, DIM, TILE, GROUP_THREADS>(values_at + value_at.stage * TILE_BYTES, values + cache_at, DIM,
                                                   tile * TILE, length, thread);
                arrive_after_copies(values_there + value_at.stage * 8);
                value_at.advance();
            }
        }
        asm volatile("cp.async.wait_all;" ::: "memory");
        return;
    }

    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
    const int warp = thread / 32, lane = thread % 32;
    // Barrier 1 + g: group g may start products.
    auto begin_turn = [&]() {
        asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory");
    };
    auto end_turn = [&]() {
        asm volatile("bar.arrive %0, 256;" ::"r"(1 + (group + 1) % GROUPS) : "memory");
    };
    auto free_tile = [&](uint32_t barrier) {
        if (lane == 0) arrive(barrier);
    };
    if (group == GROUPS - 1) end_turn();

    float acc[DIM / 2], score[TILE / 2];
    uint32_t weight[TILE / 4];
    Softmax softmax(window, scale, cap);
    const uint32_t own_query = query_at + group * 64 * ROW_BYTES;
    auto scores = [&]() {
        const uint32_t at = keys_at + key_at.stage * TILE_BYTES;
        start_scores<T, DIM, TILE>(score, own_query, ROWS, at);
        commit_products();
    };
    auto sums = [&]() {
        start_sums<T, DIM, TILE>(acc, weight, values_at + value_at.stage * TILE_BYTES);
        commit_products();
    };
    auto wait_for_keys = [&]() {
        wait_for_phase(keys_there + key_at.stage * 8, key_at.parity);
        show_to_tensor_cores();
    };
    auto wait_for_values = [&]() {
        wait_for_phase(values_there + value_at.stage * 8, value_at.parity);
        show_to_tensor_cores();
    };
    auto free_keys = [&]() {
        free_tile(keys_free + key_at.stage * 8);
        key_at.advance();
    };
    auto free_values = [&]() {
        free_tile(values_free + value_at.stage * 8);
        value_at.advance();
    };

    for (int turn = 0; item_of(turn) < items; turn++) {
        const Place p = place<DIM, ROWS, TILE>(item_of(turn), length, heads, kv_heads, batch, window);
        const int row = p.first_row + group * 64 + warp * 16;
        softmax.begin();
#pragma unroll
        for (int i = 0; i < DIM / 2; i++) acc[i] = 0.f;
        wait_for_phase(query_there, turn % 2);
        show_to_tensor_cores();
        wait_for_keys();
        begin_turn();
        begin_products();
        scores();
        end_turn();
        wait_for_products<0>();
        settle(score);
        free_keys();
        if (p.first_tile == p.last_tile) free_tile(query_free);
        softmax.weigh<TILE>(score, row, p.last_tile * TILE);
        narrow_weights<T, TILE>(weight, score);
#pragma unroll 1
        for (int tile = p.last_tile - 1; tile >= p.first_tile; tile--) {
            wait_for_keys();
            begin_turn();
            settle(acc);
            settle(weight);
            settle(score);
            begin_products();
            scores();
            wait_for_values();
            begin_products();
            sums();
            end_turn();
            wait_for_products<1>();
            settle(score);
            free_keys();
            if (tile == p.first_tile) free_tile(query_free);
            const bool changed = softmax.weigh<TILE>(score, row, tile * TILE);
            settle(score);
            softmax.complete();
            wait_for_products<0>();
            settle(acc);
            free_values();
            if (changed) softmax.rescale<DIM>(acc);
            narrow_weights<T, TILE>(weight, score);
        }
        wait_for_values();
        settle(acc);
        settle(weight);
        begin_products();
        sums();
        wait_for_products<0>();
        settle(acc);
        free_values();
        store_rows<T, DIM>(out, acc, softmax, sinks, row, length, heads, p.head, p.sequence);
    }
    // The last turn was passed on to the first group.
    if (group == 0) begin_turn();
}

#define PREFILL_HOPPER(T, DIM, TILE, GROUPS, STAGES)                                                                 \
    extern "C" __global__ void __launch_bounds__((GROUPS + 1) * GROUP_THREADS, 1) prefill_attention_hopper_##DIM##_##T( \
        T* out, const T* qkv, const T* keys, const T* values, int length, int heads, int kv_heads, int capacity,     \
        int window, float scale, float cap, const float* sinks, int) {                                               \
        attention<T, DIM, TILE, GROUPS, STAGES>(out, qkv, keys, values, length, heads, kv_heads, capacity,      \
                                                     window, scale, cap, sinks);                                     \
    }
FOR_BF16(PREFILL_HOPPER(bf16, 64, 128, 3, 2) PREFILL_HOPPER(bf16, 128, 128, 2, 2))
FOR_F16(PREFILL_HOPPER(f16, 64, 128, 3, 2) PREFILL_HOPPER(f16, 128, 128, 2, 2))
