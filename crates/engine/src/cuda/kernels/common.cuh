// Shared by all kernels: number types, wide loads, reductions, and the start before the previous kernel has ended.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

using bf16 = __nv_bfloat16;
using f16 = __half;

// A file is compiled once for each type of numbers, with OF_bf16, OF_f16 or OF_f32: a GPU that needs the kernels compiled by its
// driver gets those of the run's type alone.
#ifdef OF_bf16
#define FOR_BF16(...) __VA_ARGS__
#else
#define FOR_BF16(...)
#endif
#ifdef OF_f16
#define FOR_F16(...) __VA_ARGS__
#else
#define FOR_F16(...)
#endif
#ifdef OF_f32
#define FOR_F32(...) __VA_ARGS__
#else
#define FOR_F32(...)
#endif

constexpr unsigned ALL_LANES = 0xffffffffu;

__device__ __forceinline__ float wide(float x) { return x; }
__device__ __forceinline__ float wide(f16 x) { return __half2float(x); }
__device__ __forceinline__ float wide(bf16 x) { return __bfloat162float(x); }

template <typename T> __device__ __forceinline__ T narrow(float x);
template <> __device__ __forceinline__ float narrow<float>(float x) { return x; }
template <> __device__ __forceinline__ f16 narrow<f16>(float x) { return __float2half_rn(x); }
template <> __device__ __forceinline__ bf16 narrow<bf16>(float x) { return __float2bfloat16_rn(x); }

// Two floats as one register of halves.
template <typename T> __device__ __forceinline__ uint32_t pack(float low, float high);
template <> __device__ __forceinline__ uint32_t pack<bf16>(float low, float high) {
    __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t*>(&both);
}
template <> __device__ __forceinline__ uint32_t pack<f16>(float low, float high) {
    __half2 both = __floats2half2_rn(low, high);
    return *reinterpret_cast<uint32_t*>(&both);
}

// Eight neighbours, widened. `at` is aligned to eight elements. Through L2: the data may have been written while this
// kernel was already running.
template <typename T> __device__ __forceinline__ void load8(const T* at, float (&out)[8]) {
    uint4 raw = __ldcg(reinterpret_cast<const uint4*>(at));
    const T* values = reinterpret_cast<const T*>(&raw);
#pragma unroll
    for (int i = 0; i < 8; i++) out[i] = wide(values[i]);
}
template <> __device__ __forceinline__ void load8<float>(const float* at, float (&out)[8]) {
    float4 a = __ldcg(reinterpret_cast<const float4*>(at)), b = __ldcg(reinterpret_cast<const float4*>(at) + 1);
    out[0] = a.x; out[1] = a.y; out[2] = a.z; out[3] = a.w;
    out[4] = b.x; out[5] = b.y; out[6] = b.z; out[7] = b.w;
}

template <typename T> __device__ __forceinline__ void store8(T* at, const float (&in)[8]) {
    uint4 raw;
    T* values = reinterpret_cast<T*>(&raw);
#pragma unroll
    for (int i = 0; i < 8; i++) values[i] = narrow<T>(in[i]);
    *reinterpret_cast<uint4*>(at) = raw;
}
template <> __device__ __forceinline__ void store8<float>(float* at, const float (&in)[8]) {
    reinterpret_cast<float4*>(at)[0] = make_float4(in[0], in[1], in[2], in[3]);
    reinterpret_cast<float4*>(at)[1] = make_float4(in[4], in[5], in[6], in[7]);
}

// Programmatic dependent launch. A kernel may start while the previous one still runs: until `wait_for_previous` it
// reads only weights. After `let_next_start` of every block the next kernel may start.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

__device__ __forceinline__ void copy_16_bytes(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void wait_for_copies_of_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Sums of squares of a row, at most.
constexpr int MOST_CARRIED = 512;
// A norm in two parts, so that no kernel is needed for it alone. The kernel that completes rows of x writes scaled = x ∘ weight, and for each of its
// blocks the sum of squares of eight numbers of a row; without a weight it does nothing.
template <typename T> struct Carry {
    const float* weight;
    T* scaled;
    float* squares; // (rows, blocks)
    // Starts to copy the weights of a block's numbers, from `first` on; by all threads of the block.
    __device__ __forceinline__ void copy(float* to, int first) const {
        if (weight && threadIdx.x < 2) copy_16_bytes(to + threadIdx.x * 4, weight + first + threadIdx.x * 4);
    }
    // A number of row `row`, which is number `to` of all; the eight of a block are those of neighbouring lanes.
    __device__ __forceinline__ void put(T x, float weight_at, int row, size_t to, int block, int blocks) const {
        scaled[to] = narrow<T>(wide(x) * weight_at);
        float square = wide(x) * wide(x);
#pragma unroll
        for (int step = 4; step > 0; step >>= 1) square += __shfl_xor_sync(__activemask(), square, step);
        if (threadIdx.x % 8 == 0) squares[(size_t)row * blocks + block] = square;
    }
};
// The kernel that multiplies such rows multiplies its results with one divided by the root of the mean square. Without squares, the rows are normed already. The sums
// are copied to shared memory meanwhile: registers are few where weights are loaded.
struct Carried {
    const float* squares;
    int blocks; // a multiple of four
    float eps;
    // Starts to copy the sums of `rows` rows, after the previous kernel; by all threads of the block.
    __device__ __forceinline__ void copy(float* to, int rows) const {
        for (int i = threadIdx.x * 4; squares && i < rows * blocks; i += blockDim.x * 4) copy_16_bytes(to + i, squares + i);
    }
    // Of a row, by LANES neighbouring lanes, after `wait_for_copies_of_all` and a barrier.
    template <int LANES> __device__ __forceinline__ float factor(const float* copied, int row, int k) const {
        float sum = 0.f;
        for (int i = threadIdx.x % LANES; i < blocks; i += LANES) sum += copied[row * blocks + i];
#pragma unroll
        for (int step = LANES / 2; step > 0; step >>= 1) sum += __shfl_xor_sync(__activemask(), sum, step);
        return rsqrtf(sum / k + eps);
    }
};

// The sum over a block of at most 1,024 threads, returned to all of them.
__device__ __forceinline__ float block_sum(float x) {
    __shared__ float parts[32];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = (blockDim.x + 31) / 32;
    x = warp_sum(x);
    if (lane == 0) parts[warp] = x;
    __syncthreads();
    x = lane < warps ? parts[lane] : 0.f;
    x = warp_sum(x);
    // A second sum must not overwrite parts that are still read.
    __syncthreads();
    return x;
}

// c += a·b, 16×8×16.
template <typename T>
__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                    uint32_t b1);
template <>
__device__ __forceinline__ void mma<bf16>(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                          uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma<f16>(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                         uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The activation of the gate: 0 SiLU, 1 GELU by tanh, 2 GELU by the error function.
__device__ __forceinline__ float activate(float x, int activation) {
    if (activation == 0) return x / (1.f + __expf(-x));
    if (activation == 2) return 0.5f * x * (1.f + erff(x * 0.7071067811865476f));
    float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
    return 0.5f * x * (1.f + tanhf(inner));
}

// activate(gate) · up; with 3 that of gpt-oss: both limited to 7, SiLU by 1.702, and up plus one.
__device__ __forceinline__ float gated_value(float gate, float up, int activation) {
    if (activation != 3) return activate(gate, activation) * up;
    gate = fminf(gate, 7.f);
    return (fminf(fmaxf(up, -7.f), 7.f) + 1.f) * gate / (1.f + __expf(-1.702f * gate));
}

// Limited to ±cap; 0 means no limit.
__device__ __forceinline__ float softcapped(float x, float cap) { return cap > 0.f ? cap * tanhf(x / cap) : x; }

// What the learned score for no position adds to a sum of weights that are relative to `top`; nothing without sinks.
__device__ __forceinline__ float of_sink(const float* sinks, int head, float top) {
    return sinks ? __expf(__ldg(sinks + head) - top) : 0.f;
}

// Weights are read once: not cached in L1, and in full lines of L2.
__device__ __forceinline__ uint4 load_once(const void* at) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at));
    return v;
}
