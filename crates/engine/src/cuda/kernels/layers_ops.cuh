// The instructions that `layers.cu` is made of (compute capability 9.0).
#pragma once

#include "common.cuh"

namespace ops {

// Places in the grid.
__device__ __forceinline__ int thread_index() { return threadIdx.x; }
__device__ __forceinline__ int block_index() { return blockIdx.x; }
__device__ __forceinline__ int block_count() { return gridDim.x; }
__device__ __forceinline__ int cluster_rank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ __forceinline__ int cluster_index() {
    unsigned index;
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(index));
    return index;
}
__device__ __forceinline__ unsigned char* shared() {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    return shared_memory;
}
__device__ __forceinline__ uint32_t address(const void* at) { return (uint32_t)__cvta_generic_to_shared(at); }

// Barriers in shared memory (mbarrier). A phase ends when `count` arrivals and all expected bytes have come.
__device__ __forceinline__ void init_barrier(uint32_t barrier, unsigned count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
// After the last `init_barrier`: for the other blocks of the cluster and for the copy engine.
__device__ __forceinline__ void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
}
__device__ __forceinline__ void arrive(uint32_t barrier, unsigned count) {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
// One arrival, and `bytes` that this phase has to wait for.
__device__ __forceinline__ void expect(uint32_t barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
// Whether the phase of this parity has ended; waits a moment for it.
__device__ __forceinline__ bool ended(uint32_t barrier, unsigned parity) {
    uint32_t done;
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done;
}
// As `ended`, of a barrier that other blocks of the cluster send to.
__device__ __forceinline__ bool ended_in_cluster(uint32_t barrier, unsigned parity) {
    uint32_t done;
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done;
}

// Memory to shared memory by the copy engine; both aligned to 16 bytes. The bytes count for `barrier`.
__device__ __forceinline__ void copy(uint32_t to, const void* from, unsigned bytes, uint32_t barrier, uint64_t policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
                 : "memory");
}
// For what is read once in a step: weights leave L2 first, what is small stays there.
__device__ __forceinline__ uint64_t leaves_first() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
// For what may still be in L2 at the next step: the KV cache.
__device__ __forceinline__ uint64_t stays() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Messages to a block of the cluster: they count for a barrier there.
__device__ __forceinline__ uint32_t remote(uint32_t address, int rank) {
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
__device__ __forceinline__ void send(uint32_t to, uint32_t value, uint32_t barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to), "r"(value),
                 "r"(barrier)
                 : "memory");
}
__device__ __forceinline__ void send(uint32_t to, uint2 value, uint32_t barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(to),
                 "r"(value.x), "r"(value.y), "r"(barrier)
                 : "memory");
}
__device__ __forceinline__ void send(uint32_t to, uint4 value, uint32_t barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
                 "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(barrier)
                 : "memory");
}

// All threads of the block; the first `threads` threads of it; all threads of the cluster.
__device__ __forceinline__ void sync_block() { __syncthreads(); }
template <int THREADS> __device__ __forceinline__ void sync_first() {
    __syncwarp();
    asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
}
__device__ __forceinline__ void sync_cluster() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// Numbers that all blocks add to: through L2, each word on its own.
__device__ __forceinline__ void add(uint64_t* to, uint64_t value) {
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
__device__ __forceinline__ ulonglong2 load_two(const uint64_t* from) {
    ulonglong2 two;
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(two.x), "=l"(two.y) : "l"(from) : "memory");
    return two;
}
__device__ __forceinline__ void bring_to_l2(const void* at) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}
// Counts the caller; whether it is the last of `all`, which also resets the counter.
__device__ __forceinline__ bool is_last(unsigned* counter, unsigned all) {
    return atomicInc(counter, all - 1) == all - 1;
}

// Loads that stay where they are written: early, to be there when they are needed. Of what earlier kernels wrote, through L2:
// this kernel may have started before they ended.
__device__ __forceinline__ float early(const float* from) {
    float value;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(from) : "memory");
    return value;
}
__device__ __forceinline__ float4 early4(const float* from) {
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from) : "memory");
    return v;
}
__device__ __forceinline__ uint32_t early(const uint32_t* from) {
    uint32_t value;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}
__device__ __forceinline__ uint2 early2(const void* from) {
    uint2 v;
    asm volatile("ld.global.cg.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from) : "memory");
    return v;
}

// 16 bytes of shared memory.
__device__ __forceinline__ uint4 load_shared(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
    return v;
}

// c += a·b, 16×8×16.
__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                    uint32_t b1) {
    ::mma<bf16>(c, a0, a1, a2, a3, b0, b1);
}
// An 8×8 matrix of halves over the warp, transposed.
__device__ __forceinline__ uint32_t transposed(uint32_t x) {
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(x));
    return x;
}
__device__ __forceinline__ uint32_t lower_halves(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x5410); }
__device__ __forceinline__ uint32_t upper_halves(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x7632); }
__device__ __forceinline__ float shuffled(float x, int step) { return __shfl_xor_sync(ALL_LANES, x, step); }
__device__ __forceinline__ bool all_of_warp(bool x) { return __all_sync(ALL_LANES, x); }
__device__ __forceinline__ void sync_warp() { __syncwarp(); }

__device__ __forceinline__ float exp(float x) { return __expf(x); }
__device__ __forceinline__ float inverse_root(float x) { return rsqrtf(x); }
__device__ __forceinline__ int64_t to_integer(float x) { return __float2ll_rn(x); }
__device__ __forceinline__ float to_float(int64_t x) { return __ll2float_rn(x); }

__device__ __forceinline__ void wait_for_previous() { ::wait_for_previous(); }
__device__ __forceinline__ void let_next_start() { ::let_next_start(); }

}  // namespace ops
