// Puts the blocks of a GGUF file into tiles (quantised.cuh), once, when a model is loaded.
#include "quantised.cuh"

// Code `i` of group `g` in a block, as blocks.rs defines it.
template <Format F> __device__ uint32_t code(const uint8_t* block, int g, int i) {
    auto nibble = [&](int at) { return (uint32_t)(block[at + i % 16] >> (4 * (i / 16)) & 15); };
    auto bit = [&](int at) { return (uint32_t)(block[at + i / 8] >> (i % 8) & 1); };
    // Of 128 weights: two bits each in 32 bytes.
    auto two = [&](int at) { return (uint32_t)(block[at + 32 * (g / 4) + i] >> (2 * (g % 4)) & 3); };
    switch (F) {
    case Q4_0: case IQ4NL: return nibble(2);
    case MXFP4: return nibble(1);
    case Q4_1: return nibble(4);
    case Q5_0: return nibble(6) | bit(2) << 4;
    case Q5_1: return nibble(8) | bit(4) << 4;
    case Q8_0: return block[2 + i];
    case IQ4XS: return nibble(8 + 16 * g);
    case Q2K: return two(16);
    case Q3K: return two(32) | (block[i] >> g & 1) << 2;
    case Q4K: return block[16 + 32 * (g / 2) + i] >> (4 * (g % 2)) & 15;
    case Q5K: return (block[48 + 32 * (g / 2) + i] >> (4 * (g % 2)) & 15) | (block[16 + i] >> g & 1) << 4;
    case Q6K: return (block[64 * (g / 4) + 32 * (g % 2) + i] >> (4 * (g % 4 / 2)) & 15) | two(128) << 4;
    }
    return 0;
}

// Where a block has its half floats.
template <Format F> __device__ int floats_at() { return F == Q2K ? 80 : F == Q3K ? 108 : F == Q6K ? 208 : 0; }

// A thread a lane of a tile. `blocks` has the rows of the matrix, in rows; with `gated` first n of the gate, then n of up.
template <Format F> __device__ void tiled(uint8_t* out, const uint8_t* blocks, int n, int k, int gated) {
    using L = Layout<F>;
    const int tiles = (k + L::COLUMNS - 1) / L::COLUMNS, rows = gated ? 8 : 16, strips = (n + rows - 1) / rows;
    const size_t all = (size_t)strips * tiles * 32, row_bytes = (size_t)(k / (GROUP * L::BLOCK_GROUPS)) * L::BLOCK_BYTES;
    for (size_t at = blockIdx.x * (size_t)blockDim.x + threadIdx.x; at < all; at += gridDim.x * (size_t)blockDim.x) {
        int lane = at % 32, strip = at / 32 / tiles, tile = at / 32 % tiles, quad = lane % 4;
        uint32_t words[L::WORDS] = {};
        uint8_t* to = out + at / 32 * L::BYTES;
        for (int r = 0; r < 2; r++) {
            int row = lane / 4 + 8 * r;
            bool exists = has_row(strip, row, n, gated);
            const uint8_t* from = blocks + (exists ? matrix_row(strip, row, n, gated) : 0) * row_bytes;
            uint8_t* small = to + L::CODES_BYTES + row * L::SMALL;
            uint8_t* floats = to + L::CODES_BYTES + TILE_ROWS * L::SMALL + row * 2 * L::FLOATS;
            if (quad == 0)
                for (int i = 0; i < L::SMALL; i++) small[i] = 0;
            for (int j = 0; j < L::GROUPS; j++) {
                int group = tile * L::GROUPS + j;
                bool inside = exists && group * GROUP < k;
                const uint8_t* block = from + (size_t)(inside ? group / L::BLOCK_GROUPS : 0) * L::BLOCK_BYTES;
                int g = L::LARGE ? j : 0;
                for (int h = 0; inside && h < 2; h++) {
                    for (int b = 0; b < 4; b++) {
                        uint32_t c = code<F>(block, g, 16 * h + 4 * quad + b);
                        uint32_t low = c & ((1 << L::LOW_BITS) - 1), high = c >> L::LOW_BITS;
                        if (L::LOW_BITS == 8) words[r * L::LOW + 2 * j + h] |= low << (8 * b);
                        if (L::LOW_BITS == 4) words[r * L::LOW + j] |= low << (8 * b + 4 * h);
                        if (L::LOW_BITS == 2) words[r * L::LOW + j / 2] |= low << (8 * b + 4 * (j % 2) + 2 * h);
                        if (L::HIGH_BITS == 1) words[2 * L::LOW + r * L::HIGH + j / 4] |= high << (8 * b + 2 * (j % 4) + h);
                        if (L::HIGH_BITS == 2) words[2 * L::LOW + r * L::HIGH + j / 2] |= high << (8 * b + 4 * (j % 2) + 2 * h);
                    }
                }
                if (quad) continue;
                // The scales of the row: once a block.
                if (L::LARGE && j) continue;
                constexpr int EACH = L::LARGE ? 2 * L::FLOATS : 2 * L::FLOATS / L::GROUPS;
                // MXFP4's is an exponent: half of 2 to the power of it less 127, as blocks.rs has it.
                uint16_t power = F == MXFP4 ? __half_as_ushort(__float2half_rn(exp2f((float)min((int)block[0], 143) - 128.f))) : 0;
                for (int i = 0; i < EACH; i++) floats[(L::LARGE ? 0 : j * EACH) + i] =
                        !inside ? 0 : F == MXFP4 ? (uint8_t)(power >> (8 * i)) : block[floats_at<F>() + i];
                if (!inside) continue;
                for (int i = 0; i < L::SMALL; i++) {
                    if (F == Q4K || F == Q5K) small[i] = block[4 + i];
                    if (F == Q2K) small[i] = block[i];
                    if (F == Q6K) small[i] = block[192 + i];
                    if (F == Q3K) {
                        // Sixteen numbers of six bits: the lower four in the first eight bytes, the upper two in the last four.
                        const uint8_t* packed = block + 96;
                        int value = (packed[i % 8] >> (4 * (i / 8)) & 15) | (packed[8 + i % 4] >> (2 * (i / 4)) & 3) << 4;
                        small[i] = (uint8_t)(value - 32);
                    }
                    if (F == IQ4XS) {
                        int low = block[4 + i / 2] >> (4 * (i % 2)) & 15, high = (block[2] | block[3] << 8) >> (2 * i) & 3;
                        small[i] = (uint8_t)((low | high << 4) - 32);
                    }
                }
            }
        }
        for (int i = 0; i < L::WORDS / 4; i++)
            *reinterpret_cast<uint4*>(to + i * 512 + lane * 16) = make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
        if (L::WORDS % 4)
            *reinterpret_cast<uint2*>(to + L::WORDS / 4 * 512 + lane * 8) = make_uint2(words[L::WORDS - 2], words[L::WORDS - 1]);
    }
}

#define TILED(F)                                                                                                     \
    extern "C" __global__ void tiled_##F(uint8_t* out, const uint8_t* blocks, int n, int k, int gated) {               \
        tiled<F>(out, blocks, n, k, gated);                                                                          \
    }
TILED(Q4_0) TILED(Q4_1) TILED(Q5_0) TILED(Q5_1) TILED(Q8_0) TILED(Q2K)
TILED(Q3K) TILED(Q4K) TILED(Q5K) TILED(Q6K) TILED(IQ4NL) TILED(IQ4XS) TILED(MXFP4)
