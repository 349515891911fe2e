// Between the projections and the attention: bias, norm of each head, rotation, and the copy into the cache.
#include "rope.cuh"

// A warp computes one head of one row of qkv = [heads·dim | kv_heads·dim | kv_heads·dim]. Queries stay in place; keys and
// values go to the caches, (batch, kv_heads, capacity, dim). Row b·length + i is position `*start + i` of sequence b.
template <typename T>
__device__ void rope(T* qkv, T* keys, T* values, const Transform<T>& transform, const int* start, int rows, int length,
                     int heads, int kv_heads, int dim, int capacity) {
    let_next_start();
    const int all = heads + 2 * kv_heads;
    const int task = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    wait_for_previous();
    if (task >= rows * all) return;
    const int row = task / all, head = task % all;
    const int position = __ldcg(start) + row % length, sequence = row / length;
    T* from = qkv + ((size_t)row * all + head) * dim;
    const bool is_query = head < heads, is_value = head >= heads + kv_heads;
    T* to = from;
    if (!is_query) {
        int kv_head = (head - heads) % kv_heads;
        to = (is_value ? values : keys) + (((size_t)sequence * kv_heads + kv_head) * capacity + position) * dim;
    }
    rotate(to, from, transform, head, heads, kv_heads, dim, position);
}

#define ROPE_OF(T, NAME)                                                                                             \
    extern "C" __global__ void rope_##NAME(T* qkv, T* keys, T* values, const T* bias, const float* query_norm,       \
                                           const float* key_norm, const float* cosines, const float* sines,          \
                                           const int* start, int rows, int length, int heads, int kv_heads, int dim, \
                                           int capacity, float eps) {                                                \
        rope(qkv, keys, values, Transform<T>{bias, query_norm, key_norm, cosines, sines, eps}, start, rows, length,        \
             heads, kv_heads, dim, capacity);                                                                        \
    }
FOR_BF16(ROPE_OF(bf16, bf16))
FOR_F16(ROPE_OF(f16, f16))
FOR_F32(ROPE_OF(float, f32))
