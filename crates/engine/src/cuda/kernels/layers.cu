// All layers of a decode step as one kernel, for the models below (`layers_block.cuh` says how). The launch is cooperative: blocks
// wait for each other, so all of them must run.
#include "layers_attention.cuh"
#include "layers_copier.cuh"
#include "layers_keeper.cuh"

namespace layers {

// One object for all parts: one that refers to another would be kept in memory, not in registers.
template <class B> struct Worker : Attention<B> {
    using M = typename B::Of;
    using W = Products<B>;
    using W::b, W::scale;
    unsigned gateds = 0; // messages that came

    __device__ __forceinline__ explicit Worker(const B& b) : Attention<B>(b) {}

    __device__ __forceinline__ void work() {
        ops::wait_for_previous();
        this->sums = b.sums();
        this->clear_sums();
        if (b.share.kvs) this->load_position();
        for (int l = 0; l < b.p.layer_count; l++) {
            for (int i = 0; i < b.share.kvs; i++) this->attention(l, b.share.first_kv + i, i == 0);
            if (b.share.columns) mlp(l);
        }
    }

    __device__ __forceinline__ void mlp(int l) {
        const int columns = b.share.columns, pairs = columns / M::CLUSTER;
        this->wait_for_normed();
        {
            uint4 x[W::CHUNKS_OF_WARP];
            this->load_x(x, b.s.normed, W::CHUNKS);
            this->product(x, W::CHUNKS, 2 * pairs, true, B::FULL_PITCH);
        }
        this->for_blocks([&](int block) {
            for (int i = this->first_number(); i < pairs / 2; i += W::NUMBERS) {
                float both[2];
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const int pair = 2 * i + j, row = pair / 8 * 16 + pair % 8;
                    const float gate = rounded(this->result(row) * this->scale), up = rounded(this->result(row + 8) * this->scale);
                    both[j] = gate / (1.f + ops::exp(-gate)) * up;
                }
                const uint32_t to = ops::address(&b.s.gated[b.rank * pairs + 2 * i]);
                ops::send(ops::remote(to, block), pack(both[0], both[1]), ops::remote(ops::address(&b.s.gated_came), block));
            }
        });
        if (this->thread() == 0) ops::expect(ops::address(&b.s.gated_came), columns * 2);
        b.wait_for_cluster(b.s.gated_came, gateds++);
        // As many registers as the share needs.
        const int chunks = columns / CHUNK;
        switch ((chunks + SPLIT - 1) / SPLIT) {
            case 1: down<1>(chunks); break;
            case 2: down<2>(chunks); break;
            case 3: down<3>(chunks); break;
            case 4: down<4>(chunks); break;
            case 5: down<5>(chunks); break;
            case 6: down<6>(chunks); break;
            case 7: down<7>(chunks); break;
            default: down<8>(chunks); break;
        }
        this->add_result(2 * l + 1);
    }
    static_assert(MOST_COLUMNS / CHUNK <= 8 * SPLIT);

    template <int COUNT> __device__ __forceinline__ void down(int chunks) {
        uint4 x[COUNT];
        this->load_x(x, b.s.gated, chunks);
        this->product(x, chunks, B::SLICE, false, pitch_of(chunks * CHUNK * 2));
    }
};

template <class M> __device__ __forceinline__ void decode_layers(const Parameters& p) {
    using B = Block<M>;
    const B b(p);
    b.init_barriers();
    ops::let_next_start();
    if (b.warp == B::COPIER) {
        Copier<B>(b).copy_all();
    } else if (b.warp == B::KEEPER) {
        Keeper<B>(b).keep();
    } else {
        Worker<B>(b).work();
    }
    b.finish();
}

}  // namespace layers

// As `layers.rs` lists them.
#define DECODE_LAYERS(HIDDEN, HEADS, KV_HEADS, DIM, INTERMEDIATE, CLUSTER)                                           \
    extern "C" __global__ void __launch_bounds__((layers::WORKERS + 2) * 32, 1)                                      \
        decode_layers_##HIDDEN##_##INTERMEDIATE##_##CLUSTER##_bf16(                                                  \
            const layers::Layer* of_layers, const layers::Share* shares, bf16* x, const int* position,               \
            const float* cosines, const float* sines, uint64_t* sums, unsigned* state, int layer_count, int slots,   \
            int mlp_clusters, float eps, float score_scale) {                                                        \
        const layers::Parameters p = {of_layers, shares, x,     position,     cosines, sines,      sums,             \
                                      state,     layer_count, slots, mlp_clusters, eps,     score_scale};                  \
        layers::decode_layers<layers::Model<HIDDEN, HEADS, KV_HEADS, DIM, INTERMEDIATE, CLUSTER>>(p);                \
    }
// Qwen2.5-0.5B; clusters of eight where the GPU has no room for clusters of 16.
FOR_BF16(DECODE_LAYERS(896, 14, 2, 64, 4864, 16))
FOR_BF16(DECODE_LAYERS(896, 14, 2, 64, 4864, 8))
// Qwen3-0.6B
FOR_BF16(DECODE_LAYERS(1024, 16, 8, 128, 3072, 8))
// SmolLM2-360M
FOR_BF16(DECODE_LAYERS(960, 15, 5, 64, 2560, 16))
FOR_BF16(DECODE_LAYERS(960, 15, 5, 64, 2560, 8))
// SmolLM2-135M
FOR_BF16(DECODE_LAYERS(576, 9, 3, 64, 1536, 16))
FOR_BF16(DECODE_LAYERS(576, 9, 3, 64, 1536, 8))
