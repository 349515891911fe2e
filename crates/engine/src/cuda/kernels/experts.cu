// Mixtures of experts: the choice of experts for each row, and products of rows with the experts that were chosen for them.
//
// A pair is a row and one of its experts. With few rows, each pair reads its expert's weights. With many, pairs are sorted by expert, and a block multiplies a tile of
// one expert's pairs, so that the weights of an expert are read once for all of them.
#include "experts.cuh"
#include "product.cuh"

constexpr int WARPS = 8;
constexpr int CHUNK = 32;            // columns of one pair of products
constexpr int UNROLL = 8;            // chunks in flight
constexpr int SPAN = UNROLL * CHUNK; // columns of one iteration of a warp

// The choice for each row, a warp for each.
extern "C" __global__ void __launch_bounds__(WARPS * 32)
    route(float* scores, const float* bias, int stride, int* ids, float* weights, int rows, int experts, int active, int normalised) {
    let_next_start();
    wait_for_previous();
    const size_t row = blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= rows) return;
    for (int i = threadIdx.x % 32; bias && i < experts; i += 32) scores[row * stride + i] += bias[i];
    __syncwarp();
    choose(scores + row * stride, ids + row * active, weights + row * active, nullptr, nullptr, experts, active, normalised);
}

// Norm, scores and choice for at most eight rows: normed = norm(x), scores = normed·routerᵀ with rows that are not rounded, where a warp computes the scores of one of `stride` rows of the router. The
// block that is last to finish chooses. `counter` is zero before and after. `tally`, where there is one: the rows of each expert, then the number of experts with
// rows, rows and steps. k is divisible by eight. Without `ids` there are scores alone.
template <typename T, bool BIASED>
__device__ void norm_and_route(T* normed, const T* x, const float* norm, float eps, const T* router, const float* bias, float* scores, int* ids,
                               float* weights, uint32_t* tally, uint32_t* counter, int rows, int stride, int experts, int active,
                               int normalised, int k) {
    constexpr int AHEAD = 8, STEP = 32 * 8, ALL = WARPS * 32 * 8;
    extern __shared__ __align__(128) unsigned char shared[];
    // The first four of every eight numbers of a row, then the others: neighbouring lanes read neighbours.
    float4 *first_fours = reinterpret_cast<float4*>(shared), *last_fours = first_fours + k / 8;
    __shared__ uint32_t touched[MAX_EXPERTS / 32];
    __shared__ bool is_last;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, own = blockIdx.x * WARPS + warp, first = threadIdx.x * 8;
    const T* of_expert = router + (size_t)min(own, stride - 1) * k;
    // Weights do not depend on the previous kernel.
    float ahead[AHEAD][8], first_norm[8];
#pragma unroll
    for (int u = 0; u < AHEAD; u++) {
        int at = u * STEP + lane * 8;
        if (at < k) load8(of_expert + at, ahead[u]);
    }
    if (first < k) load8(norm + first, first_norm);
    if (threadIdx.x < MAX_EXPERTS / 32) touched[threadIdx.x] = 0;
    let_next_start();
    wait_for_previous();
    for (int row = 0; row < rows; row++) {
        const T* of_row = x + (size_t)row * k;
        float squares = 0.f, values[8] = {};
        for (int at = threadIdx.x * 8 + ALL; at < k; at += ALL) {
            load8(of_row + at, values);
#pragma unroll
            for (int i = 0; i < 8; i++) squares += values[i] * values[i];
        }
        if (first < k) {
            load8(of_row + first, values);
#pragma unroll
            for (int i = 0; i < 8; i++) squares += values[i] * values[i];
        }
        const float scale = rsqrtf(block_sum(squares) / k + eps);
        auto keep = [&](const float (&weights)[8], int at) {
#pragma unroll
            for (int i = 0; i < 8; i++) values[i] *= scale * weights[i];
            first_fours[at / 8] = make_float4(values[0], values[1], values[2], values[3]);
            last_fours[at / 8] = make_float4(values[4], values[5], values[6], values[7]);
            if (blockIdx.x == row % gridDim.x) store8(normed + (size_t)row * k + at, values);
        };
        if (first < k) keep(first_norm, first);
        for (int at = first + ALL; at < k; at += ALL) {
            float weights[8];
            load8(of_row + at, values);
            load8(norm + at, weights);
            keep(weights, at);
        }
        __syncthreads();
        float sum = 0.f;
        auto add = [&](const float (&of_router)[8], int at) {
            const float4 low = first_fours[at / 8], high = last_fours[at / 8];
            sum += of_router[0] * low.x + of_router[1] * low.y + of_router[2] * low.z + of_router[3] * low.w;
            sum += of_router[4] * high.x + of_router[5] * high.y + of_router[6] * high.z + of_router[7] * high.w;
        };
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            int at = u * STEP + lane * 8;
            if (at < k) add(ahead[u], at);
        }
        for (int at = AHEAD * STEP + lane * 8; at < k; at += STEP) {
            float of_router[8];
            load8(of_expert + at, of_router);
            add(of_router, at);
        }
        sum = warp_sum(sum);
        if (lane == 0 && own < stride) scores[(size_t)row * stride + own] = BIASED && own < experts ? sum + bias[own] : sum;
        // The row is read before the next one overwrites it.
        __syncthreads();
    }
    if (!ids) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicAdd(counter, 1) == gridDim.x - 1;
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    if (warp < rows)
        choose(scores + (size_t)warp * stride, ids + warp * active, weights + warp * active, touched, tally, experts, active,
               normalised);
    if (threadIdx.x == 0) *counter = 0;
    if (!tally) return;
    __syncthreads();
    if (threadIdx.x < MAX_EXPERTS / 32 && touched[threadIdx.x]) atomicAdd(tally + experts, __popc(touched[threadIdx.x]));
    if (threadIdx.x == 0) {
        atomicAdd(tally + experts + 1, rows);
        atomicAdd(tally + experts + 2, 1);
    }
}

// Sorts pairs by expert: order[position] = pair and place[pair] = position. `plan` gets the number of tiles of at most `tile_rows` positions of one expert, and for each the
// expert, the first position and the end of the expert's. One block. `tally` as in `norm_and_route`.
extern "C" __global__ void __launch_bounds__(MAX_EXPERTS)
    sort_pairs(const int* ids, int* plan, int* order, int* place, uint32_t* tally, int pairs, int active, int experts,
               int tile_rows) {
    __shared__ int counts[MAX_EXPERTS], ends[MAX_EXPERTS], tile_ends[MAX_EXPERTS];
    let_next_start();
    wait_for_previous();
    const int own = threadIdx.x;
    counts[own] = 0;
    __syncthreads();
    for (int pair = own; pair < pairs; pair += MAX_EXPERTS) atomicAdd(counts + __ldcg(ids + pair), 1);
    __syncthreads();
    const int count = counts[own], tiles = (count + tile_rows - 1) / tile_rows;
    ends[own] = count;
    tile_ends[own] = tiles;
    for (int step = 1; step < MAX_EXPERTS; step *= 2) {
        __syncthreads();
        int before = own >= step ? ends[own - step] : 0, tiles_before = own >= step ? tile_ends[own - step] : 0;
        __syncthreads();
        ends[own] += before;
        tile_ends[own] += tiles_before;
    }
    const int end = ends[own];
    for (int tile = 0; tile < tiles; tile++) {
        int* to = plan + 1 + 3 * (tile_ends[own] - tiles + tile);
        to[0] = own;
        to[1] = end - count + tile * tile_rows;
        to[2] = end;
    }
    if (own == MAX_EXPERTS - 1) plan[0] = tile_ends[own];
    if (tally && count) {
        atomicAdd(tally + own, count);
        atomicAdd(tally + experts, 1);
    }
    if (tally && own == 0) {
        atomicAdd(tally + experts + 1, pairs / active);
        atomicAdd(tally + experts + 2, 1);
    }
    __syncthreads();
    counts[own] = end - count;
    __syncthreads();
    for (int pair = own; pair < pairs; pair += MAX_EXPERTS) {
        int position = atomicAdd(counts + __ldcg(ids + pair), 1);
        order[position] = pair;
        place[pair] = position;
    }
}

// y[pair] = activate(gate) · up of the pair's expert, each with its bias where BIASED, for k divisible by eight. The experts' matrices follow each other. As `skinny`, but blocks take strips of eight
// rows in turn: the next one is on its way while the sums of the last are added up. ALONE: of one row, whose norm and scores are computed here.
template <typename T, bool BIASED, bool ALONE>
__device__ void expert_gated(T* y, const T* w, const T* bias, const Router<T>& router, const Choice& choice, int n, int k, int activation) {
    constexpr int ROWS = 8, STRIDE = WARPS * SPAN;
    const int active = choice.active, pairs = ALONE ? active : choice.rows * active;
    extern __shared__ __align__(128) unsigned char shared[];
    const T* x = ALONE ? reinterpret_cast<const T*>(shared) : router.normed;
    __shared__ typename ChosenBy<ALONE>::Type chosen;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
    const int strips = (n + ROWS - 1) / ROWS, all = pairs * strips;
    const uint4 nothing = make_uint4(0, 0, 0, 0);
    uint4 low[UNROLL], high[UNROLL];
    auto fetch = [&](int item, int first) {
        const int pair = item / strips, row = min(item % strips * ROWS + group, n - 1), column = first + quad * 8;
        const T* at = w + ((size_t)chosen.ids[pair] * 2 * n + row) * k;
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            bool inside = column + u * CHUNK < k;
            low[u] = inside ? load_once(at + column + u * CHUNK) : nothing;
            high[u] = inside ? load_once(at + (size_t)n * k + column + u * CHUNK) : nothing;
        }
    };
    if constexpr (ALONE) {
        post_scores<T, BIASED, WARPS * 32>(router, choice, k, reinterpret_cast<T*>(shared));
        choose_by_place<WARPS * 32>(chosen, choice, [&](int expert) { return posted(router.posted + expert); });
    } else {
        wait_for_previous();
        choose_all(chosen, choice, blockIdx.x == 0);
    }
    if (blockIdx.x < all) fetch(blockIdx.x, warp * SPAN);
    let_next_start();
    if constexpr (ALONE) {
        if (blockIdx.x == 0) {
            weigh(chosen, choice);
            publish(chosen, choice);
        }
    }
    __shared__ float parts[2][WARPS][2 * ROWS];
    int buffer = 0;
    for (int item = blockIdx.x; item < all; item += gridDim.x, buffer ^= 1) {
        const int pair = item / strips;
        const T* row_of_x = x + (ALONE ? 0 : (size_t)(pair / active) * k) + quad * 8;
        float sums[4] = {};
        for (int column = warp * SPAN; column < k; column += STRIDE) {
            if (column >= STRIDE) fetch(item, column);
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                int at = column + u * CHUNK;
                const uint4* from = reinterpret_cast<const uint4*>(row_of_x + at);
                uint4 b = make_uint4(0, 0, 0, 0);
                if (group == 0 && at + quad * 8 < k) b = ALONE ? *from : __ldcg(from);
                mma<T>(sums, low[u].x, high[u].x, low[u].y, high[u].y, b.x, b.y);
                mma<T>(sums, low[u].z, high[u].z, low[u].w, high[u].w, b.z, b.w);
            }
        }
        if (item + gridDim.x < all) fetch(item + gridDim.x, warp * SPAN);
        if (quad == 0) {
            parts[buffer][warp][group] = sums[0];
            parts[buffer][warp][group + ROWS] = sums[2];
        }
        // The other buffer is written next, after every thread has read it: they all came here since.
        __syncthreads();
        const int row = item % strips * ROWS + threadIdx.x;
        if (threadIdx.x < ROWS && row < n) {
            float gate = 0.f, up = 0.f;
#pragma unroll
            for (int i = 0; i < WARPS; i++) {
                gate += parts[buffer][i][threadIdx.x];
                up += parts[buffer][i][threadIdx.x + ROWS];
            }
            if (BIASED) {
                const T* of_expert = bias + (size_t)chosen.ids[pair] * 2 * n + row;
                gate += wide(of_expert[0]), up += wide(of_expert[n]);
            }
            // Rounded as the results of separate products are.
            gate = wide(narrow<T>(gate)), up = wide(narrow<T>(up));
            y[(size_t)pair * n + row] = narrow<T>(BIASED ? gated_value(gate, up, activation) : activate(gate, activation) * up);
        }
    }
}

// The same without tensor cores: a warp for each number.
__device__ void expert_gated_f32(float* y, const float* w, const float* x, const float* bias, const Choice& choice, int n, int k,
                                    int activation) {
    const int active = choice.active, pairs = choice.rows * active;
    __shared__ Chosen chosen;
    wait_for_previous();
    choose_all(chosen, choice, blockIdx.x == 0);
    let_next_start();
    const int lane = threadIdx.x % 32;
    for (int item = blockIdx.x * WARPS + threadIdx.x / 32; item < pairs * n; item += gridDim.x * WARPS) {
        const int pair = item / n;
        const float *gate_row = w + ((size_t)chosen.ids[pair] * 2 * n + item % n) * k, *of_x = x + (size_t)(pair / active) * k;
        float gate = 0.f, up = 0.f;
        for (int i = lane; i < k; i += 32) {
            gate += gate_row[i] * __ldcg(of_x + i);
            up += gate_row[(size_t)n * k + i] * __ldcg(of_x + i);
        }
        gate = warp_sum(gate);
        up = warp_sum(up);
        if (bias) {
            const float* of_expert = bias + (size_t)chosen.ids[pair] * 2 * n + item % n;
            gate += of_expert[0], up += of_expert[n];
        }
        if (lane == 0) y[item] = gated_value(gate, up, activation);
    }
}

// y[row] += Σ weight · w·x[pair] over the pairs of a row. k is divisible by eight. A block has eight rows of the weights: a tile of 16 rows is theirs of two experts, whose
// activations are two columns. So its registers leave room for a block of the kernel before, and its first weights are on their way early.
// ALONE: of one row.
template <typename T, bool BIASED, bool ALONE>
__device__ void expert_down(T* y, const T* w, const T* x, const T* bias, const Choice& choice, uint32_t* posted, int n, int k, const Carry<T>& carry) {
    constexpr int ROWS = 8;
    const int active = choice.active;
    __shared__ typename ChosenBy<ALONE>::Type chosen;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
    const int first_row = blockIdx.x * ROWS, row = min(first_row + group, n - 1);
    const int spans = (k + SPAN - 1) / SPAN, couples = (active + 1) / 2, all = couples * spans, first_pair = ALONE ? 0 : blockIdx.y * active;
    const uint4 nothing = make_uint4(0, 0, 0, 0);
    uint4 low[UNROLL], high[UNROLL];
    auto fetch = [&](int item) {
        const int slot = item / spans * 2, column = item % spans * SPAN + quad * 8;
        const bool has_second = slot + 1 < active;
        const T* first = w + ((size_t)chosen.ids[first_pair + slot] * n + row) * k;
        const T* second = w + ((size_t)chosen.ids[first_pair + slot + (has_second ? 1 : 0)] * n + row) * k;
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const int at = column + u * CHUNK;
            low[u] = at < k ? load_once(first + at) : nothing;
            high[u] = at < k && has_second ? load_once(second + at) : nothing;
        }
    };
    // The scores are in L2 already: the kernel before this one lets it start after it has waited for them itself, or, ALONE, after its blocks have written them and have seen those of
    // all others.
    if constexpr (ALONE) choose_by_place<WARPS * 32>(chosen, choice, [&](int expert) { return __ldcg(choice.scores + expert); });
    else choose_all(chosen, choice, false);
    __shared__ __align__(16) float next_weights[ROWS];
    carry.copy(next_weights, first_row);
    if (warp < all) fetch(warp);
    let_next_start();
    if constexpr (ALONE) {
        weigh(chosen, choice);
        __syncthreads();
    }
    wait_for_previous();
    if constexpr (ALONE) {
        // Nobody waits for them any more.
        if (blockIdx.x == 0)
            for (int i = threadIdx.x; i < choice.stride; i += WARPS * 32) posted[i] = NO_SCORE;
    }
    float sum = 0.f;
    for (int item = warp; item < all; item += WARPS) {
        const int slot = item / spans * 2, column = item % spans * SPAN + quad * 8, own = slot + group;
        const T* of_x = x + (size_t)(first_pair + own) * k;
        float sums[4] = {};
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const int at = column + u * CHUNK;
            uint4 b = group < 2 && own < active && at < k ? __ldcg(reinterpret_cast<const uint4*>(of_x + at)) : nothing;
            mma<T>(sums, low[u].x, high[u].x, low[u].y, high[u].y, b.x, b.y);
            mma<T>(sums, low[u].z, high[u].z, low[u].w, high[u].w, b.z, b.w);
        }
        if (item + WARPS < all) fetch(item + WARPS);
        // The first expert's rows with its column, and the second's with its own.
        sum += chosen.weights[first_pair + slot] * sums[0];
        if (slot + 1 < active) sum += chosen.weights[first_pair + slot + 1] * sums[3];
    }
    __shared__ float parts[WARPS][ROWS];
    if (quad == 0) parts[warp][group] = sum;
    wait_for_copies_of_all();
    __syncthreads();
    const int at = first_row + threadIdx.x;
    if (threadIdx.x >= ROWS || at >= n) return;
    sum = 0.f;
#pragma unroll
    for (int i = 0; i < WARPS; i++) sum += parts[i][threadIdx.x];
    for (int slot = 0; BIASED && slot < active; slot++)
        sum += chosen.weights[first_pair + slot] * wide(bias[(size_t)chosen.ids[first_pair + slot] * n + at]);
    T* to = y + (size_t)blockIdx.y * n + at;
    const T result = narrow<T>(wide(narrow<T>(sum)) + wide(*to));
    *to = result;
    if (carry.weight) carry.put(result, next_weights[threadIdx.x], blockIdx.y, to - y, blockIdx.x, gridDim.x);
}

// The same without tensor cores: a warp for each number.
__device__ void expert_down_f32(float* y, const float* w, const float* x, const float* bias, const Choice& choice, int n, int k) {
    const int active = choice.active;
    __shared__ Chosen chosen;
    let_next_start();
    wait_for_previous();
    choose_all(chosen, choice, false);
    const int lane = threadIdx.x % 32, at = blockIdx.x * WARPS + threadIdx.x / 32;
    if (at >= n) return;
    float sum = 0.f;
    for (int slot = 0; slot < active; slot++) {
        const int pair = blockIdx.y * active + slot;
        const float *row = w + ((size_t)chosen.ids[pair] * n + at) * k, weight = chosen.weights[pair];
        for (int i = lane; i < k; i += 32) sum += weight * row[i] * __ldcg(x + (size_t)pair * k + i);
    }
    sum = warp_sum(sum);
    for (int slot = 0; bias && slot < active; slot++) {
        const int pair = blockIdx.y * active + slot;
        sum += chosen.weights[pair] * bias[(size_t)chosen.ids[pair] * n + at];
    }
    if (lane == 0) y[(size_t)blockIdx.y * n + at] += sum;
}

constexpr int THREADS = WARPS * 32;
constexpr int COLUMNS = 128;
constexpr int STAGES = 3;

__device__ __forceinline__ void load_fragments(uint32_t (&to)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from));
}

// y[position] = w·x of the position's expert, for a tile of the plan. The rows of x are those of the pairs in `order`, `active` of which share a row; without an `order`
// they are the positions. w has the experts from `first_expert` on. k is divisible by eight. Eight warps, each with 64 rows and 32 columns, or 16 and 16.
template <typename T, int ROWS>
__device__ void expert_product(T* y, const T* x, const T* w, const T* bias, const int* plan, const int* order, int active,
                               int first_expert, int experts, int n, int k) {
    constexpr int TILE_BYTES = (ROWS + COLUMNS) * ROW_BYTES;
    constexpr int WARP_ROWS = ROWS == 128 ? 64 : 16, ROW_WARPS = ROWS / WARP_ROWS, WARP_COLUMNS = COLUMNS * ROW_WARPS / WARPS;
    constexpr int I = WARP_ROWS / 16, J = WARP_COLUMNS / 8, PIECES = (ROWS + COLUMNS) * 8, EACH = (PIECES + THREADS - 1) / THREADS;
    extern __shared__ __align__(128) unsigned char shared[];
    let_next_start();
    wait_for_previous();
    if (blockIdx.y >= __ldcg(plan)) return;
    const int* of_tile = plan + 1 + 3 * blockIdx.y;
    const int expert = __ldcg(of_tile) - first_expert, first = __ldcg(of_tile + 1), end = __ldcg(of_tile + 2);
    if (expert < 0 || expert >= experts) return;
    const int first_column = blockIdx.x * COLUMNS, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row_of_warp = warp % ROW_WARPS * WARP_ROWS, column_of_warp = warp / ROW_WARPS * WARP_COLUMNS;
    const uint32_t base = shared_address(shared);
    const int tiles = (k + DEPTH - 1) / DEPTH;
    // Where a thread's pieces come from; null where there is no row.
    const T* sources[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int at = threadIdx.x + i * THREADS, row = at / 8;
        sources[i] = nullptr;
        if (row < ROWS) {
            int position = first + row;
            if (position < end) sources[i] = x + (size_t)(order ? __ldcg(order + position) / active : position) * k;
        } else if (at < PIECES && first_column + row - ROWS < n) {
            sources[i] = w + ((size_t)expert * n + first_column + row - ROWS) * k;
        }
    }
    auto copy = [&](int tile) {
        if (tile * DEPTH < k) {
            uint32_t to = base + tile % STAGES * TILE_BYTES;
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                int at = threadIdx.x + i * THREADS, row = at / 8, column = at % 8, from = tile * DEPTH + column * 8;
                if (PIECES % THREADS && at >= PIECES) break;
                bool inside = sources[i] && from < k;
                copy16(piece(to, row, column), inside ? sources[i] + from : x, inside);
            }
        }
        commit_copies();
    };
#pragma unroll
    for (int tile = 0; tile < STAGES - 1; tile++) copy(tile);
    float sums[I][J][4] = {};
    for (int tile = 0; tile < tiles; tile++) {
        wait_for_copies<STAGES - 2>();
        __syncthreads();
        copy(tile + STAGES - 1);
        uint32_t from = base + tile % STAGES * TILE_BYTES;
#pragma unroll
        for (int step = 0; step < 4; step++) {
            uint32_t a[I][4], b[J / 2][4];
#pragma unroll
            for (int i = 0; i < I; i++)
                load_fragments(a[i], piece(from, row_of_warp + i * 16 + lane % 16, step * 2 + lane / 16));
#pragma unroll
            for (int j = 0; j < J / 2; j++) {
                int row = ROWS + column_of_warp + j * 16 + lane % 8 + lane / 16 * 8;
                load_fragments(b[j], piece(from, row, step * 2 + lane / 8 % 2));
            }
#pragma unroll
            for (int i = 0; i < I; i++) {
#pragma unroll
                for (int j = 0; j < J; j++)
                    mma<T>(sums[i][j], a[i][0], a[i][1], a[i][2], a[i][3], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < I; i++) {
#pragma unroll
        for (int j = 0; j < J; j++) {
            int row = first + row_of_warp + i * 16 + lane / 4, column = first_column + column_of_warp + j * 8 + lane % 4 * 2;
            if (bias) {
                const T* of_expert = bias + (size_t)(first_expert + expert) * n;
                float left = column < n ? wide(of_expert[column]) : 0.f, right = column + 1 < n ? wide(of_expert[column + 1]) : 0.f;
                sums[i][j][0] += left, sums[i][j][1] += right, sums[i][j][2] += left, sums[i][j][3] += right;
            }
            store_pair<T>(y, end, n, row, column, sums[i][j][0], sums[i][j][1], false);
            store_pair<T>(y, end, n, row + 8, column, sums[i][j][2], sums[i][j][3], false);
        }
    }
}

// The same without tensor cores, a warp for each number.
__device__ void expert_product_f32(float* y, const float* x, const float* w, const float* bias, const int* plan, const int* order, int active,
                                   int first_expert, int experts, int n, int k) {
    constexpr int ROWS = 16;
    let_next_start();
    wait_for_previous();
    if (blockIdx.y >= __ldcg(plan)) return;
    const int* of_tile = plan + 1 + 3 * blockIdx.y;
    const int expert = __ldcg(of_tile) - first_expert, first = __ldcg(of_tile + 1), end = min(__ldcg(of_tile + 2), first + ROWS);
    const int lane = threadIdx.x % 32;
    if (expert < 0 || expert >= experts) return;
    for (int column = blockIdx.x * COLUMNS + threadIdx.x / 32; column < min(n, (int)(blockIdx.x + 1) * COLUMNS); column += WARPS) {
        const float* row = w + ((size_t)expert * n + column) * k;
        for (int position = first; position < end; position++) {
            const float* from = x + (size_t)(order ? __ldcg(order + position) / active : position) * k;
            float sum = 0.f;
            for (int i = lane; i < k; i += 32) sum += row[i] * __ldcg(from + i);
            sum = warp_sum(sum);
            if (bias) sum += bias[(size_t)(first_expert + expert) * n + column];
            if (lane == 0) y[(size_t)position * n + column] = sum;
        }
    }
}

// x[row] += Σ weight · y of the row's pairs, at their places, or in their own order without those. A thread a number.
template <typename T>
__device__ void combine(T* x, const T* y, const int* place, const float* weights, int active, int n) {
    let_next_start();
    wait_for_previous();
    const size_t row = blockIdx.x;
    const int at = blockIdx.y * blockDim.x + threadIdx.x;
    if (at >= n) return;
    const float before = wide(x[row * n + at]);
    float sum = 0.f;
    // Several loads in flight: each takes long.
#pragma unroll 8
    for (int slot = 0; slot < active; slot++) {
        size_t pair = row * active + slot, from = place ? __ldcg(place + pair) : pair;
        sum += __ldcg(weights + pair) * wide(y[from * n + at]);
    }
    x[row * n + at] = narrow<T>(before + sum);
}

// Multiplies each row of x with the sigmoid of its score.
template <typename T> __device__ void scale_rows(T* x, const float* scores, int stride, int n) {
    let_next_start();
    wait_for_previous();
    const size_t row = blockIdx.x;
    const float times = 1.f / (1.f + __expf(-__ldcg(scores + row * stride)));
    for (int at = threadIdx.x; at < n; at += blockDim.x) x[row * n + at] = narrow<T>(wide(x[row * n + at]) * times);
}

template <> __device__ void expert_gated<float, false, false>(float* y, const float* w, const float*, const Router<float>& router, const Choice& choice, int n, int k, int activation) {
    expert_gated_f32(y, w, router.normed, nullptr, choice, n, k, activation);
}
template <> __device__ void expert_gated<float, true, false>(float* y, const float* w, const float* bias, const Router<float>& router, const Choice& choice, int n, int k, int activation) {
    expert_gated_f32(y, w, router.normed, bias, choice, n, k, activation);
}
template <> __device__ void expert_down<float, false, false>(float* y, const float* w, const float* x, const float*, const Choice& choice, uint32_t*, int n, int k, const Carry<float>&) {
    expert_down_f32(y, w, x, nullptr, choice, n, k);
}
template <> __device__ void expert_down<float, true, false>(float* y, const float* w, const float* x, const float* bias, const Choice& choice, uint32_t*, int n, int k, const Carry<float>&) {
    expert_down_f32(y, w, x, bias, choice, n, k);
}

// For a model without biases there are kernels of its own: what is left out of them takes 1 % of a step.
#define EXPERTS_AS(T, NAME, BIASED, ALONE)                                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                         \
        expert_gated_##NAME(T* y, const T* w, const T* bias, const T* x, T* normed, const float* norm, float eps,    \
                            const T* router, const float* router_bias, uint32_t* posted, float* scores, int* ids,    \
                            float* weights, uint32_t* tally, int rows, int stride, int experts, int active,          \
                            int normalised, int n, int k, int activation) {                                          \
        const Choice choice{scores, ids, weights, tally, rows, stride, experts, active, normalised};                 \
        const Router<T> of_row{x, norm, eps, router, router_bias, normed, posted, scores};                           \
        expert_gated<T, BIASED, ALONE>(y, w, bias, of_row, choice, n, k, activation);                                \
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                         \
        expert_down_##NAME(T* y, const T* w, const T* x, const T* bias, const float* scores, uint32_t* posted,       \
                           int rows, int stride, int experts, int active, int normalised, int n, int k,              \
                           const float* next_weight, T* scaled, float* next_squares) {                               \
        const Choice choice{scores, nullptr, nullptr, nullptr, rows, stride, experts, active, normalised};           \
        expert_down<T, BIASED, ALONE>(y, w, x, bias, choice, posted, n, k,                                           \
                                      Carry<T>{next_weight, scaled, next_squares});                                  \
    }
#define ROUTER_AS(T, NAME, BIASED)                                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                            \
        norm_and_route_##NAME(T* normed, const T* x, const float* norm, float eps, const T* router,                  \
                              const float* bias, float* scores, int* ids, float* weights, uint32_t* tally,           \
                              uint32_t* counter, int rows, int stride, int experts, int active, int normalised,      \
                              int k) {                                                                               \
        norm_and_route<T, BIASED>(normed, x, norm, eps, router, bias, scores, ids, weights, tally, counter, rows,    \
                                  stride, experts, active, normalised, k);                                           \
    }
#define EXPERTS_OF(T, NAME)                                                                                          \
    EXPERTS_AS(T, NAME, false, false)                                                                                \
    EXPERTS_AS(T, biased_##NAME, true, false)                                                                        \
    ROUTER_AS(T, NAME, false)                                                                                        \
    ROUTER_AS(T, biased_##NAME, true)                                                                                \
    extern "C" __global__ void combine_##NAME(T* x, const T* y, const int* place, const float* weights, int active,  \
                                              int n) {                                                               \
        combine<T>(x, y, place, weights, active, n);                                                                 \
    }                                                                                                                \
    extern "C" __global__ void scale_rows_##NAME(T* x, const float* scores, int stride, int n) {                     \
        scale_rows<T>(x, scores, stride, n);                                                                         \
    }
#define EXPERTS_ALONE(T)                                                                                             \
    EXPERTS_AS(T, alone_##T, false, true)                                                                            \
    EXPERTS_AS(T, alone_biased_##T, true, true)
#define EXPERT_PRODUCT(T, ROWS, BLOCKS)                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                                                    \
        expert_product_##ROWS##_##T(T* y, const T* x, const T* w, const T* bias, const int* plan, const int* order, int active, \
                                    int first_expert, int experts, int n, int k) {                                   \
        expert_product<T, ROWS>(y, x, w, bias, plan, order, active, first_expert, experts, n, k);                          \
    }
FOR_BF16(EXPERTS_OF(bf16, bf16) EXPERTS_ALONE(bf16) EXPERT_PRODUCT(bf16, 16, 3) EXPERT_PRODUCT(bf16, 128, 1))
FOR_F16(EXPERTS_OF(f16, f16) EXPERTS_ALONE(f16) EXPERT_PRODUCT(f16, 16, 3) EXPERT_PRODUCT(f16, 128, 1))
FOR_F32(EXPERTS_OF(float, f32))
#ifdef OF_f32
extern "C" __global__ void __launch_bounds__(THREADS)
    expert_product_16_f32(float* y, const float* x, const float* w, const float* bias, const int* plan, const int* order, int active,
                          int first_expert, int experts, int n, int k) {
    expert_product_f32(y, x, w, bias, plan, order, active, first_expert, experts, n, k);
}
#endif
