// Attention of one key/value head by the workers of a cluster (`layers_block.cuh`): q, k and v, rotation, the cache, the output product.
#pragma once

#include "layers_product.cuh"

namespace layers {

constexpr float LOWEST = -1e30f; // below every score, and finite

template <class B> struct Attention : Products<B> {
    using W = Products<B>;
    using W::b, W::group, W::quad, W::scale;
    using M = typename B::Of;
    static constexpr int DIM = M::DIM, GROUP = M::GROUP, CLUSTER = M::CLUSTER;
    const int warp, lane;
    unsigned attentions = 0; // messages that came
    int past = 0;
    float cosines[DIM / 64], sines[DIM / 64];

    __device__ __forceinline__ explicit Attention(const B& b) : W(b), warp(b.warp), lane(b.lane) {}

    __device__ __forceinline__ void load_position() {
        past = b.position();
#pragma unroll
        for (int i = 0; i < DIM / 64; i++) {
            const size_t from = (size_t)past * (DIM / 2) + i * 32 + lane;
            cosines[i] = ops::early(b.p.cosines + from);
            sines[i] = ops::early(b.p.sines + from);
        }
    }

    // Layer `l`, of the residual vector's normed values, for which the first head of the cluster waits.
    __device__ __forceinline__ void attention(int l, int kv, bool is_first) {
        constexpr int HEADS_CHUNKS = GROUP * DIM / CHUNK, NUMBERS = W::NUMBERS;
        const Layer& layer = b.p.layers[l];
        auto& a = b.a;
        // What is needed between the products, before there is anything to wait for.
        constexpr int BIASES = (B::QKV_ROWS / 2 + NUMBERS - 1) / NUMBERS;
        uint32_t bias[BIASES];
        float query_norm[DIM / 32], key_norm[DIM / 32];
        const bf16* biases = layer.bias;
        const bool has_norms = layer.query_norm != nullptr;
#pragma unroll
        for (int i = 0; i < BIASES; i++) {
            const int row = (this->first_number() + i * NUMBERS) * 2;
            const bf16* from = biases + B::qkv_row(kv, b.rank * B::QKV_ROWS + row);
            bias[i] = biases && row < B::QKV_ROWS ? ops::early(reinterpret_cast<const uint32_t*>(from)) : 0;
        }
#pragma unroll
        for (int i = 0; i < DIM / 32; i++) {
            query_norm[i] = has_norms ? ops::early(layer.query_norm + i * 32 + lane) : 1.f;
            key_norm[i] = has_norms ? ops::early(layer.key_norm + i * 32 + lane) : 1.f;
        }
        const size_t row = ((size_t)kv * b.p.slots + past) * DIM;
        bf16 *const key = layer.keys + row, *const value = layer.values + row;

        if (is_first) this->wait_for_normed();
        {
            uint4 x[W::CHUNKS_OF_WARP];
            this->load_x(x, b.s.normed, W::CHUNKS);
            this->product(x, W::CHUNKS, B::QKV_ROWS, false, B::FULL_PITCH);
        }
        // Rounded as the other kernels do, after the product and after the sum.
        this->for_blocks([&](int block) {
#pragma unroll
            for (int j = 0; j < BIASES; j++) {
                const int i = this->first_number() + j * NUMBERS;
                if (i >= B::QKV_ROWS / 2) break;
                uint32_t two = pack(this->result(2 * i) * this->scale, this->result(2 * i + 1) * this->scale);
                if (biases) two = pack(low_of(two) + low_of(bias[j]), high_of(two) + high_of(bias[j]));
                const uint32_t to = ops::address(&a.qkv[b.rank * B::QKV_ROWS + 2 * i]);
                ops::send(ops::remote(to, block), two, ops::remote(ops::address(&b.s.qkv_came), block));
            }
        });
        if (this->thread() == 0) ops::expect(ops::address(&b.s.qkv_came), (GROUP + 2) * DIM * 2);
        b.wait_for_cluster(b.s.qkv_came, attentions);

        // One block attends to the new position: the one that would have the next tile.
        const int mine = b.own_cache_tiles(past);
        const bool has_new = B::cache_tiles(past) % CLUSTER == b.rank;
        const int tasks = mine + (has_new ? 1 : 0);
        for (int head = warp; head < GROUP + (has_new ? 2 : 0); head += WORKERS) {
            rotate(head, query_norm, key_norm, has_norms, key, value);
        }
        this->sync();
        attend(mine, tasks);
        this->tile += mine;
        this->at = b.wrapped(this->at + (unsigned)mine * 2 * B::CACHE_PITCH);
        this->sync();
        exchange(min(tasks, WORKERS));
        this->sync();
        {
            uint4 x[(HEADS_CHUNKS + SPLIT - 1) / SPLIT];
            this->load_x(x, a.attended, HEADS_CHUNKS);
            this->product(x, HEADS_CHUNKS, B::SLICE, false, B::HEADS_PITCH);
        }
        this->add_result(2 * l);
    }

    // Norm and rotation of a head of this key/value head: its queries, then the new key and value.
    __device__ __forceinline__ void rotate(int head, const float (&query_norm)[DIM / 32], const float (&key_norm)[DIM / 32],
                                           bool has_norms, bf16* key, bf16* value) const {
        constexpr int HALF = DIM / 2, PAIRS = DIM / 64; // of a lane
        const bool is_query = head < GROUP, is_value = head == GROUP + 1;
        float low[PAIRS], high[PAIRS];
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            low[i] = wide(b.a.qkv[head * DIM + i * 32 + lane]);
            high[i] = wide(b.a.qkv[head * DIM + HALF + i * 32 + lane]);
        }
        if (has_norms && !is_value) {
            float squares = 0.f;
#pragma unroll
            for (int i = 0; i < PAIRS; i++) squares += low[i] * low[i] + high[i] * high[i];
            const float by = ops::inverse_root(sum_of_warp(squares) / DIM + b.p.eps);
#pragma unroll
            for (int i = 0; i < PAIRS; i++) {
                low[i] = rounded(low[i] * by * (is_query ? query_norm[i] : key_norm[i]));
                high[i] = rounded(high[i] * by * (is_query ? query_norm[PAIRS + i] : key_norm[PAIRS + i]));
            }
        }
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            float x = low[i], y = high[i];
            if (!is_value) {
                x = low[i] * cosines[i] - high[i] * sines[i];
                y = high[i] * cosines[i] + low[i] * sines[i];
            }
            const bf16 first = narrow<bf16>(x), second = narrow<bf16>(y);
            bf16* to = is_query ? b.a.queries + head * DIM : b.a.fresh[is_value];
            to[i * 32 + lane] = first;
            to[HALF + i * 32 + lane] = second;
            if (is_query) continue;
            bf16* kept = is_value ? value : key;
            kept[i * 32 + lane] = first;
            kept[HALF + i * 32 + lane] = second;
        }
    }

    // Each warp attends to some tiles of 16 positions, with all query heads at once; the last task is the new position.
    // Scores are transposed, positions × heads: the eight columns of a product are the heads. As in the products of
    // weights the order of the summed dimension is arbitrary, so a lane's eight neighbours may be any eight of it.
    __device__ __forceinline__ void attend(int mine, int tasks) {
        constexpr int K_CHUNKS = DIM / 32, V_CHUNKS = DIM / 64;
        const uint4 nothing = make_uint4(0, 0, 0, 0);
        uint4 query[K_CHUNKS];
#pragma unroll
        for (int c = 0; c < K_CHUNKS; c++) {
            query[c] = group < GROUP ? ops::load_shared(ops::address(b.a.queries + group * DIM + c * 32 + quad * 8)) : nothing;
        }
        // Rows of the result are dimensions, columns heads: this lane's are the heads 2·quad and 2·quad + 1.
        float acc[V_CHUNKS][4][4] = {};
        float top[2] = {LOWEST, LOWEST}, sum[2] = {0.f, 0.f};
        for (int task = warp; task < tasks; task += WORKERS) {
            const bool is_new = task == mine;
            const unsigned slot = (this->tile + task) % SLOTS;
            const unsigned tile_at = b.wrapped(this->at + (unsigned)task * 2 * B::CACHE_PITCH);
            uint32_t keys_at = b.ring_at + tile_at, values_at = b.ring_at + b.wrapped(tile_at + B::CACHE_PITCH);
            int count = min(TILE, past - (task * CLUSTER + b.rank) * TILE);
            if (is_new) {
                keys_at = ops::address(b.a.fresh[0]);
                values_at = ops::address(b.a.fresh[1]);
                count = 1;
            } else {
                b.wait(b.s.full[slot], (this->tile + task) / SLOTS);
            }
            uint4 low[K_CHUNKS], high[K_CHUNKS], value[V_CHUNKS][4];
#pragma unroll
            for (int c = 0; c < K_CHUNKS; c++) {
                const uint32_t from = keys_at + group * DIM * 2 + c * 64 + quad * 16;
                low[c] = group < count ? ops::load_shared(from) : nothing;
                high[c] = group + 8 < count ? ops::load_shared(from + 8 * DIM * 2) : nothing;
            }
#pragma unroll
            for (int c = 0; c < V_CHUNKS; c++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int here = quad * 2 + i % 2 + i / 2 * 8;
                    value[c][i] = here < count ? ops::load_shared(values_at + here * DIM * 2 + c * 128 + group * 16) : nothing;
                }
            }
            ops::sync_warp();
            if (lane == 0 && !is_new) ops::arrive(ops::address(&b.s.empty[slot]), SPLIT);
            float score[4] = {};
#pragma unroll
            for (int c = 0; c < K_CHUNKS; c++) {
                ops::mma(score, low[c].x, high[c].x, low[c].y, high[c].y, query[c].x, query[c].y);
                ops::mma(score, low[c].z, high[c].z, low[c].w, high[c].w, query[c].z, query[c].w);
            }
            float keep[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const bool sees_low = group < count, sees_high = group + 8 < count;
                const float x = sees_low ? score[h] * b.p.score_scale : LOWEST;
                const float y = sees_high ? score[2 + h] * b.p.score_scale : LOWEST;
                float now = fmaxf(x, y);
#pragma unroll
                for (int step = 4; step < 32; step <<= 1) now = fmaxf(now, ops::shuffled(now, step));
                now = fmaxf(now, top[h]);
                keep[h] = ops::exp(top[h] - now);
                top[h] = now;
                score[h] = sees_low ? ops::exp(x - now) : 0.f;
                score[2 + h] = sees_high ? ops::exp(y - now) : 0.f;
                // Each lane sums over its own positions.
                sum[h] = sum[h] * keep[h] + score[h] + score[2 + h];
            }
            const uint32_t b0 = ops::transposed(pack(score[0], score[1])), b1 = ops::transposed(pack(score[2], score[3]));
#pragma unroll
            for (int c = 0; c < V_CHUNKS; c++) {
                const uint32_t* p0 = &value[c][0].x; // positions 2·quad, …
                const uint32_t* p1 = &value[c][1].x; // 2·quad + 1, …
                const uint32_t* p8 = &value[c][2].x; // 2·quad + 8, …
                const uint32_t* p9 = &value[c][3].x; // 2·quad + 9: eight dimensions of each
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    acc[c][i][0] *= keep[0];
                    acc[c][i][1] *= keep[1];
                    acc[c][i][2] *= keep[0];
                    acc[c][i][3] *= keep[1];
                }
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    // Row `group` is dimension group·8 + 2i, or the next; row group + 8 the same, four further.
                    ops::mma(acc[c][2 * i], ops::lower_halves(p0[i], p1[i]), ops::lower_halves(p0[i + 2], p1[i + 2]),
                             ops::lower_halves(p8[i], p9[i]), ops::lower_halves(p8[i + 2], p9[i + 2]), b0, b1);
                    ops::mma(acc[c][2 * i + 1], ops::upper_halves(p0[i], p1[i]), ops::upper_halves(p0[i + 2], p1[i + 2]),
                             ops::upper_halves(p8[i], p9[i]), ops::upper_halves(p8[i + 2], p9[i + 2]), b0, b1);
                }
            }
        }
        if (warp >= tasks) return;
#pragma unroll
        for (int h = 0; h < 2; h++) {
#pragma unroll
            for (int step = 4; step < 32; step <<= 1) sum[h] += ops::shuffled(sum[h], step);
            const int head = quad * 2 + h;
            if (head >= GROUP) continue;
            if (group == 0) {
                b.a.warp_scale[warp][head][0] = top[h];
                b.a.warp_scale[warp][head][1] = sum[h];
            }
#pragma unroll
            for (int c = 0; c < V_CHUNKS; c++) {
                float* to = &b.a.warp_result[warp][head][c * 64 + group * 8];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    to[i] = acc[c][i][h];
                    to[4 + i] = acc[c][i][2 + h];
                }
            }
        }
    }

    // The results of this block's first `warps` warps become one, all blocks get it, and each combines those of all.
    __device__ __forceinline__ void exchange(int warps) {
        auto& a = b.a;
        const uint32_t barrier = ops::address(&b.s.attended_came);
        for (int i = this->thread(); i < GROUP * DIM / 4; i += B::WORKER_THREADS) {
            const int h = i / (DIM / 4), d = i % (DIM / 4) * 4;
            float now = LOWEST, all[4] = {}, total = 0.f;
            for (int from = 0; from < warps; from++) now = fmaxf(now, a.warp_scale[from][h][0]);
            for (int from = 0; from < warps; from++) {
                const float by = ops::exp(a.warp_scale[from][h][0] - now);
                const float4 four = *reinterpret_cast<const float4*>(&a.warp_result[from][h][d]);
                total += by * a.warp_scale[from][h][1];
                all[0] += by * four.x, all[1] += by * four.y, all[2] += by * four.z, all[3] += by * four.w;
            }
            const uint32_t to = ops::address(&a.block_result[b.rank][h * DIM + d]);
            const uint4 four = make_uint4(bits_of(all[0]), bits_of(all[1]), bits_of(all[2]), bits_of(all[3]));
#pragma unroll
            for (int i = 0; i < CLUSTER; i++) {
                const int there = (b.rank + i) % CLUSTER;
                ops::send(ops::remote(to, there), four, ops::remote(barrier, there));
            }
            if (d != 0) continue;
            const uint32_t scale_to = ops::address(a.block_scale[b.rank][h]);
#pragma unroll
            for (int there = 0; there < CLUSTER; there++) {
                ops::send(ops::remote(scale_to, there), make_uint2(bits_of(now), bits_of(total)), ops::remote(barrier, there));
            }
        }
        if (this->thread() == 0) ops::expect(barrier, CLUSTER * GROUP * (DIM + 2) * 4);
        b.wait_for_cluster(b.s.attended_came, attentions++);
        for (int i = this->thread(); i < GROUP * DIM / 2; i += B::WORKER_THREADS) {
            const int h = i / (DIM / 2), d = i % (DIM / 2) * 2;
            float now = LOWEST, x = 0.f, y = 0.f, total = 0.f;
#pragma unroll
            for (int from = 0; from < CLUSTER; from++) now = fmaxf(now, a.block_scale[from][h][0]);
#pragma unroll
            for (int from = 0; from < CLUSTER; from++) {
                const float by = ops::exp(a.block_scale[from][h][0] - now);
                const float2 two = *reinterpret_cast<const float2*>(&a.block_result[from][h * DIM + d]);
                total += by * a.block_scale[from][h][1];
                x += by * two.x;
                y += by * two.y;
            }
            *reinterpret_cast<uint32_t*>(&a.attended[h * DIM + d]) = pack(x / total, y / total);
        }
    }
};

}  // namespace layers
