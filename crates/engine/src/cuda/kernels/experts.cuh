// The choice of experts for a row, which several kernels make, and the router of one row.
#pragma once

#include "common.cuh"

constexpr int MAX_EXPERTS = 512;
constexpr int MAX_ACTIVE = 32;

// Numbers in the order of floats.
__device__ __forceinline__ uint32_t ordered(float x) {
    uint32_t bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float from_ordered(uint32_t key) {
    return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

// Chooses the `active` experts with the highest scores of a row, and their weights: shares of the softmax of all scores, or of its sum over the chosen ones. By one
// warp, whose lanes have EACH scores. `touched` gets a bit for each chosen expert, `tally` a count. Of equal scores the first is chosen.
template <int EACH>
__device__ __forceinline__ void choose(const float* scores, int* ids, float* weights, uint32_t* touched, uint32_t* tally,
                                       int experts, int active, int normalised) {
    const int lane = threadIdx.x % 32;
    // No score has the key 0: it marks what is not there.
    uint32_t keys[EACH], best = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int expert = lane + 32 * i;
        float score = expert < experts ? __ldcg(scores + expert) : 0.f;
        keys[i] = expert < experts ? max(ordered(score), 1u) : 0;
        best = max(best, keys[i]);
    }
    const float highest = from_ordered(__reduce_max_sync(ALL_LANES, best));
    float sum = 0.f, of_chosen = 0.f, weight = 0.f;
    if (!normalised) {
#pragma unroll
        for (int i = 0; i < EACH; i++) sum += keys[i] ? __expf(from_ordered(keys[i]) - highest) : 0.f;
        sum = warp_sum(sum);
    }
    // Each lane has its keys in order, the highest first; of equal ones the first. So the next one is at the head of a lane.
    uint32_t experts_of[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) experts_of[i] = lane + 32 * i;
#pragma unroll
    for (int end = EACH - 1; end > 0; end--) {
#pragma unroll
        for (int i = 0; i < end; i++) {
            const bool swap = keys[i] < keys[i + 1];
            const uint32_t key = keys[i], expert = experts_of[i];
            keys[i] = swap ? keys[i + 1] : key, keys[i + 1] = swap ? key : keys[i + 1];
            experts_of[i] = swap ? experts_of[i + 1] : expert, experts_of[i + 1] = swap ? expert : experts_of[i + 1];
        }
    }
    int chosen = 0;
    for (int slot = 0; slot < active; slot++) {
        const uint32_t most = __reduce_max_sync(ALL_LANES, keys[0]);
        // Equal keys are rare: then the lowest number of an expert decides.
        uint32_t lanes = __ballot_sync(ALL_LANES, keys[0] == most);
        if (lanes & (lanes - 1)) {
            const uint32_t lowest = __reduce_min_sync(ALL_LANES, keys[0] == most ? experts_of[0] : 0xffffffffu);
            lanes = __ballot_sync(ALL_LANES, keys[0] == most && experts_of[0] == lowest);
        }
        const int of_lane = __ffs(lanes) - 1;
        const uint32_t at = min(__shfl_sync(ALL_LANES, experts_of[0], of_lane), (uint32_t)experts - 1);
        if (lane == of_lane) {
#pragma unroll
            for (int i = 0; i + 1 < EACH; i++) keys[i] = keys[i + 1], experts_of[i] = experts_of[i + 1];
            keys[EACH - 1] = 0;
        }
        float share = __expf(from_ordered(most) - highest);
        of_chosen += share;
        if (lane == slot) chosen = at, weight = share;
    }
    if (lane >= active) return;
    ids[lane] = chosen;
    weights[lane] = weight / (normalised ? of_chosen : sum);
    if (!tally) return;
    atomicAdd(tally + chosen, 1);
    atomicOr(touched + chosen / 32, 1u << chosen % 32);
}

__device__ __forceinline__ void choose(const float* scores, int* ids, float* weights, uint32_t* touched, uint32_t* tally,
                                       int experts, int active, int normalised) {
    if (experts <= 64) choose<2>(scores, ids, weights, touched, tally, experts, active, normalised);
    else if (experts <= 128) choose<4>(scores, ids, weights, touched, tally, experts, active, normalised);
    else choose<MAX_EXPERTS / 32>(scores, ids, weights, touched, tally, experts, active, normalised);
}

// What the products of few rows need for the choice of experts from scores, which every block makes for itself: that takes less time than to wait
// for another kernel. The first block of `expert_gated` writes ids and weights, and counts them.
struct Choice {
    const float* scores; // (rows, stride)
    int* ids;
    float* weights;
    uint32_t* tally;
    int rows, stride, experts, active, normalised;
};
constexpr int MAX_PAIRS = 8 * MAX_ACTIVE;
struct Chosen {
    int ids[MAX_PAIRS];
    float weights[MAX_PAIRS];
    uint32_t touched[MAX_EXPERTS / 32];
};
// A warp for each row. All threads of the block; those of `is_first` count.
__device__ __forceinline__ void choose_all(Chosen& chosen, const Choice& c, bool is_first) {
    const int warp = threadIdx.x / 32;
    uint32_t* tally = is_first ? c.tally : nullptr;
    if (is_first) {
        if (threadIdx.x < MAX_EXPERTS / 32) chosen.touched[threadIdx.x] = 0;
        __syncthreads();
    }
    if (warp < c.rows) {
        choose(c.scores + (size_t)warp * c.stride, chosen.ids + warp * c.active, chosen.weights + warp * c.active, chosen.touched,
               tally, c.experts, c.active, c.normalised);
    }
    __syncthreads();
    if (!is_first) return;
    for (int i = threadIdx.x; i < c.rows * c.active; i += blockDim.x) {
        c.ids[i] = chosen.ids[i];
        c.weights[i] = chosen.weights[i];
    }
    if (!tally) return;
    if (threadIdx.x < MAX_EXPERTS / 32 && chosen.touched[threadIdx.x]) atomicAdd(tally + c.experts, __popc(chosen.touched[threadIdx.x]));
    if (threadIdx.x == 0) {
        atomicAdd(tally + c.experts + 1, c.rows);
        atomicAdd(tally + c.experts + 2, 1);
    }
}

// The router of one row within the product that follows it. All blocks of a grid run at once: each computes the scores of some experts, and waits for those of the others.
constexpr uint32_t NO_SCORE = 0xffffffff; // a score that has not come yet
template <typename T> struct Router {
    const T* x; // one row
    const float* norm;
    float eps;
    const T* weights; // (stride, columns of x)
    const float* bias;
    T* normed;        // norm(x)
    uint32_t* posted; // `stride` scores, NO_SCORE before and after
    float* scores;    // the same for the next kernel
};
__device__ __forceinline__ void post(uint32_t* to, float score) {
    const uint32_t value = min(__float_as_uint(score), NO_SCORE - 1);
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ __forceinline__ float posted(const uint32_t* from) {
    uint32_t value;
    do asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    while (value == NO_SCORE);
    return __uint_as_float(value);
}

// Two sums over a block of THREADS.
template <int THREADS> __device__ __forceinline__ float2 block_sums(float a, float b) {
    __shared__ float2 parts[THREADS / 32];
    a = warp_sum(a), b = warp_sum(b);
    // Those of an earlier sum have been read.
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = make_float2(a, b);
    __syncthreads();
    float2 sum = parts[0];
#pragma unroll
    for (int i = 1; i < THREADS / 32; i++) sum.x += parts[i].x, sum.y += parts[i].y;
    return sum;
}

// Scores by a norm whose factor is known at the end: score = factor · Σ router · weight · x + bias. `to` gets norm(x). Waits for the previous kernel.
template <typename T, bool BIASED, int THREADS> __device__ __forceinline__ void post_scores(const Router<T>& r, const Choice& c, int k, T* to) {
    constexpr int ALL = THREADS * 8;
    const int first = threadIdx.x * 8, own = blockIdx.x;
    // Weights do not depend on the previous kernel.
    float of_norm[8] = {}, of_router[8] = {}, values[8] = {}, factor;
    if (first < k) load8(r.norm + first, of_norm);
    if (first < k && own < c.stride) load8(r.weights + (size_t)own * k + first, of_router);
    wait_for_previous();
    if (first < k) load8(r.x + first, values);
    int score = own;
    do {
        float squares = 0.f, sum = 0.f;
        auto add = [&](const float (&x)[8], const float (&weights)[8], const float (&of_score)[8]) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                squares += x[i] * x[i];
                sum += x[i] * weights[i] * of_score[i];
            }
        };
        add(values, of_norm, of_router);
#pragma unroll 1
        for (int at = first + ALL; at < k; at += ALL) {
            float x[8], weights[8], of_score[8] = {};
            load8(r.x + at, x);
            load8(r.norm + at, weights);
            if (score < c.stride) load8(r.weights + (size_t)score * k + at, of_score);
            add(x, weights, of_score);
        }
        const float2 sums = block_sums<THREADS>(squares, sum);
        factor = rsqrtf(sums.x / k + r.eps);
        if (score >= c.stride) break;
        const float value = sums.y * factor + (BIASED && score < c.experts ? r.bias[score] : 0.f);
        if (threadIdx.x == 0) post(r.posted + score, value);
        if (threadIdx.x == THREADS - 1) {
            // For the next kernel, which may start before this one has ended.
            r.scores[score] = value;
            __threadfence();
        }
        score += gridDim.x;
        if (first < k && score < c.stride) load8(r.weights + (size_t)score * k + first, of_router);
    } while (score < c.stride);
    auto keep = [&](const float (&weights)[8], int at) {
#pragma unroll
        for (int i = 0; i < 8; i++) values[i] *= factor * weights[i];
        store8(to + at, values);
        if (own == 0) store8(r.normed + at, values);
    };
    if (first < k) keep(of_norm, first);
#pragma unroll 1
    for (int at = first + ALL; at < k; at += ALL) {
        float weights[8];
        load8(r.x + at, values);
        load8(r.norm + at, weights);
        keep(weights, at);
    }
}

// Chooses the experts of one row by the places of their scores: two threads compare one with all others. Of equal scores the first is chosen.
struct Places {
    __align__(16) uint32_t keys[MAX_EXPERTS];
    int ids[MAX_ACTIVE];
    float weights[MAX_ACTIVE]; // scores until `weigh`
};
template <int THREADS, typename Score> __device__ __forceinline__ void choose_by_place(Places& places, const Choice& c, const Score& score_of) {
    // The experts of whole warps, a lane of a pair for each half of the keys.
    const int width = (c.experts + 15) / 16 * 16, half = threadIdx.x % 2, first = half * width / 2;
    for (int i = threadIdx.x; i < width; i += THREADS) places.keys[i] = i < c.experts ? max(ordered(score_of(i)), 1u) : 0;
    __syncthreads();
#pragma unroll 1
    for (int expert = threadIdx.x / 2; expert < width; expert += THREADS / 2) {
        const uint32_t key = places.keys[expert];
        int place = 0;
#pragma unroll 4
        for (int i = 0; i < width / 2; i += 4) {
            const uint4 four = *reinterpret_cast<const uint4*>(places.keys + first + i);
            const int before = expert - first - i;
            place += (four.x > key - (before > 0)) + (four.y > key - (before > 1)) + (four.z > key - (before > 2)) + (four.w > key - (before > 3));
        }
        place += __shfl_xor_sync(ALL_LANES, place, 1);
        if (half == 0 && expert < c.experts && place < c.active) {
            places.ids[place] = expert;
            places.weights[place] = from_ordered(key);
        }
    }
    __syncthreads();
}

// Scores become weights. The first warp.
__device__ __forceinline__ void weigh(Places& places, const Choice& c) {
    const int lane = threadIdx.x;
    if (lane >= 32) return;
    const float highest = places.weights[0], own = lane < c.active ? __expf(places.weights[lane] - highest) : 0.f;
    float sum = own;
    if (!c.normalised) {
        sum = 0.f;
        for (int i = lane; i < c.experts; i += 32) sum += __expf(from_ordered(places.keys[i]) - highest);
    }
    sum = warp_sum(sum);
    if (lane < c.active) places.weights[lane] = own / sum;
    __syncwarp();
}

// Writes ids and weights, and counts the experts. The first warp.
__device__ __forceinline__ void publish(const Places& places, const Choice& c) {
    const int lane = threadIdx.x;
    if (lane >= c.active) return;
    c.ids[lane] = places.ids[lane];
    c.weights[lane] = places.weights[lane];
    if (!c.tally) return;
    atomicAdd(c.tally + places.ids[lane], 1);
    if (lane) return;
    atomicAdd(c.tally + c.experts, c.active);
    atomicAdd(c.tally + c.experts + 1, 1);
    atomicAdd(c.tally + c.experts + 2, 1);
}

template <bool ALONE> struct ChosenBy {
    using Type = Chosen;
};
template <> struct ChosenBy<true> {
    using Type = Places;
};
