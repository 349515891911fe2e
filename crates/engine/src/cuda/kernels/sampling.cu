// Chooses the next token of each sequence on the device, then updates the state for the next step.
#include "common.cuh"

// The state on the device that a step leaves for the next one.
struct Progress {
    int position;  // of the next step's tokens
    unsigned step; // finished steps
};

// Copies the chosen ids to the host's ring, then counts the step. The host sees the count after the ids. One thread.
__device__ void move_on(const uint32_t* tokens, Progress* progress, volatile uint32_t* ring, volatile unsigned* done,
                        int batch, int slots, int advance) {
    unsigned step = progress->step;
    for (int i = 0; i < batch; i++) ring[(size_t)(step % slots) * batch + i] = tokens[i];
    progress->step = step + 1;
    progress->position += advance;
    __threadfence_system();
    *done = step + 1;
}

struct Best {
    float value;
    int at;
};
// The first of equal values.
__device__ __forceinline__ Best better(Best a, Best b) {
    return b.value > a.value || (b.value == a.value && b.at < a.at) ? b : a;
}
__device__ __forceinline__ Best block_best(Best best) {
    __shared__ Best parts[32];
    for (int step = 16; step > 0; step >>= 1) {
        Best other;
        other.value = __shfl_xor_sync(ALL_LANES, best.value, step);
        other.at = __shfl_xor_sync(ALL_LANES, best.at, step);
        best = better(best, other);
    }
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    if (lane == 0) parts[warp] = best;
    __syncthreads();
    best = parts[0];
    for (int i = 1; i < warps; i++) best = better(best, parts[i]);
    __syncthreads();
    return best;
}

// The most likely token of each row of logits (batch, vocab). Grid: (blocks, batch); the last block to end chooses.
extern "C" __global__ void __launch_bounds__(256)
    pick_likeliest(uint32_t* tokens, const float* logits, Best* parts, unsigned* arrived, Progress* progress,
                   volatile uint32_t* ring, volatile unsigned* done, int batch, int vocab, int slots, int advance) {
    let_next_start();
    wait_for_previous();
    const float* row = logits + (size_t)blockIdx.y * vocab;
    Best best = {-INFINITY, 0x7fffffff};
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < vocab; i += gridDim.x * blockDim.x) {
        best = better(best, Best{__ldcg(row + i), i});
    }
    best = block_best(best);
    __shared__ bool is_last;
    if (threadIdx.x == 0) {
        parts[blockIdx.y * gridDim.x + blockIdx.x] = best;
        __threadfence();
        unsigned blocks = gridDim.x * gridDim.y;
        is_last = atomicAdd(arrived, 1u) == blocks - 1;
        if (is_last) *arrived = 0;
    }
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    for (int sequence = threadIdx.x; sequence < batch; sequence += blockDim.x) {
        best = {-INFINITY, 0x7fffffff};
        for (int i = 0; i < gridDim.x; i++) {
            const Best* part = parts + sequence * gridDim.x + i;
            best = better(best, Best{__ldcg(&part->value), __ldcg(&part->at)});
        }
        // A row of NaN has no maximum: any token of the vocabulary is taken.
        tokens[sequence] = best.at < vocab ? best.at : 0;
    }
    __syncthreads();
    if (threadIdx.x == 0) move_on(tokens, progress, ring, done, batch, slots, advance);
}

// Order of floats as order of unsigned integers.
__device__ __forceinline__ uint32_t ordered(float x) {
    uint32_t bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
// A well-mixed value for the n-th draw of a seed (splitmix64).
__device__ __forceinline__ uint64_t mixed(uint64_t seed, uint64_t n) {
    uint64_t z = seed + (n + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

// Draws a token of each row: among the top_k most likely (0: all), and of those among the smallest set with at least top_p
// of the probability, with weights exp(logit / temperature). Tokens as likely as the last of the set belong to it.
// One block for each sequence. The number of the step makes each draw different.
extern "C" __global__ void __launch_bounds__(1024)
    draw(uint32_t* tokens, const float* logits, const Progress* progress, int vocab, float temperature, int top_k,
         float top_p, uint64_t seed) {
    // Weights are summed as integers, so that their order does not matter.
    constexpr float UNIT = 1099511627776.f; // 2^40
    __shared__ unsigned long long bins[256];
    __shared__ uint32_t prefix_shared;
    __shared__ unsigned long long left_shared;
    wait_for_previous();
    const float* row = logits + (size_t)blockIdx.x * vocab;
    Best best = {-INFINITY, 0x7fffffff};
    for (int i = threadIdx.x; i < vocab; i += blockDim.x) best = better(best, Best{__ldcg(row + i), i});
    best = block_best(best);
    const float by = 1.f / temperature;
    auto mass_of = [&](float logit) { return (unsigned long long)(__expf((logit - best.value) * by) * UNIT); };

    // The minimum key of the set: the one at which the count, or the sum of weights, from the top reaches `wanted`.
    auto cut = [&](unsigned long long wanted, bool by_mass, uint32_t least) -> uint32_t {
        uint32_t prefix = 0;
        unsigned long long left = wanted;
        for (int shift = 24; shift >= 0; shift -= 8) {
            for (int i = threadIdx.x; i < 256; i += blockDim.x) bins[i] = 0;
            __syncthreads();
            for (int i = threadIdx.x; i < vocab; i += blockDim.x) {
                float logit = __ldcg(row + i);
                uint32_t key = ordered(logit);
                if (key < least || (shift < 24 && (key >> (shift + 8)) != (prefix >> (shift + 8)))) continue;
                atomicAdd(&bins[(key >> shift) & 255], by_mass ? mass_of(logit) : 1ull);
            }
            __syncthreads();
            if (threadIdx.x == 0) {
                int bin = 255;
                while (bin > 0 && bins[bin] < left) left -= bins[bin--];
                prefix_shared = prefix | (uint32_t)bin << shift;
                left_shared = left;
            }
            __syncthreads();
            prefix = prefix_shared;
            left = left_shared;
            __syncthreads();
        }
        return prefix;
    };
    uint32_t least = 0;
    if (top_k > 0 && top_k < vocab) least = cut(top_k, false, 0);
    if (top_p < 1.f) {
        __shared__ unsigned long long total;
        if (threadIdx.x == 0) total = 0;
        __syncthreads();
        unsigned long long mine = 0;
        for (int i = threadIdx.x; i < vocab; i += blockDim.x) {
            float logit = __ldcg(row + i);
            if (ordered(logit) >= least) mine += mass_of(logit);
        }
        atomicAdd(&total, mine);
        __syncthreads();
        least = max(least, cut((unsigned long long)((double)total * top_p), true, least));
    }
    // The argmax of logit / temperature + Gumbel noise is each token with its probability.
    const uint64_t key = mixed(seed, (uint64_t)progress->step * gridDim.x + blockIdx.x);
    Best drawn = {-INFINITY, 0x7fffffff};
    for (int i = threadIdx.x; i < vocab; i += blockDim.x) {
        float logit = __ldcg(row + i);
        if (ordered(logit) < least) continue;
        // 23 bits and a half: never 0 and never 1, whose logarithms are infinite.
        float unit = ((float)(mixed(key, i) >> 41) + 0.5f) * (1.f / 8388608.f);
        drawn = better(drawn, Best{(logit - best.value) * by - logf(-logf(unit)), i});
    }
    drawn = block_best(drawn);
    if (threadIdx.x == 0) tokens[blockIdx.x] = drawn.at < vocab ? drawn.at : 0;
}

// After `draw`, or with tokens that the host has copied there.
extern "C" __global__ void step_done(const uint32_t* tokens, Progress* progress, volatile uint32_t* ring,
                                     volatile unsigned* done, int batch, int slots, int advance) {
    wait_for_previous();
    move_on(tokens, progress, ring, done, batch, slots, advance);
}
