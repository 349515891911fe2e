// Quantised weights of GGUF in the order in which a warp multiplies them.
//
// A tile is 16 rows times 4 or 8 groups of 32 columns: the codes of the 32 lanes, then the scales of the 16 rows. A lane holds what the integer
// tensor cores want of it: of the rows `lane / 4` and `lane / 4 + 8`, in each group, columns 4·(lane % 4) to + 3, and the same 16 columns on. A code is cut into
// planes of bits, so that four codes come out of a word with a shift and a mask. The bytes are as many as in the file, or a few more for scales that
// the file packs more tightly.
//
// A weight is scale · code + offset, by group or by half a group.
#pragma once

#include "common.cuh"

using f32 = float;
constexpr int TILE_ROWS = 16;
constexpr int WARPS = 8;
constexpr int THREADS = WARPS * 32;
constexpr int GROUP = 32;
// Weights as halves are times this: those of many models are so small that halves of them would lose bits.
constexpr float LIFT = 16.f;

// The types, as `Format` in blocks.rs numbers them.
enum Format { Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K, IQ4NL, IQ4XS, MXFP4 };

template <Format F> struct Layout {
    static constexpr bool LARGE = F == Q2K || F == Q3K || F == Q4K || F == Q5K || F == Q6K || F == IQ4XS;
    static constexpr int GROUPS = LARGE ? 8 : 4;
    static constexpr int COLUMNS = GROUPS * GROUP;
    // Bits of the codes in the two planes.
    static constexpr int LOW_BITS = F == Q8_0 ? 8 : F == Q2K || F == Q3K ? 2 : 4;
    static constexpr int HIGH_BITS = F == Q5_0 || F == Q5_1 || F == Q5K || F == Q3K ? 1 : F == Q6K ? 2 : 0;
    // Words of a lane: of the low plane and of the high one for each of its two rows.
    static constexpr int LOW = GROUPS * LOW_BITS / 4, HIGH = GROUPS * HIGH_BITS / 4, WORDS = 2 * (LOW + HIGH);
    // Each half of a group has a scale of its own.
    static constexpr bool HALVES = F == Q2K || F == Q3K || F == Q6K;
    static constexpr bool IS_SIGNED = F == Q8_0 || F == IQ4NL || F == IQ4XS || F == MXFP4;
    static constexpr bool HAS_OFFSET = !IS_SIGNED;
    // Bytes of a row's scales: small ones, then half floats.
    static constexpr int SMALL = F == Q4K || F == Q5K ? 12 : HALVES ? 16 : F == IQ4XS ? 8 : 0;
    static constexpr int FLOATS = F == Q4_1 || F == Q5_1 ? 8 : F == Q4K || F == Q5K || F == Q2K ? 2 : LARGE ? 1 : 4;
    static constexpr int SMALL_WORDS = SMALL / 4, FLOAT_WORDS = (FLOATS + 1) / 2;
    static constexpr int CODES_BYTES = 32 * WORDS * 4;
    static constexpr int BYTES = CODES_BYTES + TILE_ROWS * (SMALL + 2 * FLOATS);
    // Of a block in the file.
    static constexpr int BLOCK_GROUPS = LARGE ? 8 : 1;
    static constexpr int BLOCK_BYTES = F == Q4_0 || F == IQ4NL ? 18 : F == Q4_1 ? 20 : F == Q5_0 ? 22 : F == Q5_1 ? 24
                                     : F == Q8_0 ? 34 : F == Q2K ? 84 : F == Q3K ? 110 : F == Q4K ? 144 : F == Q5K ? 176
                                     : F == Q6K ? 210 : F == IQ4XS ? 136 : 17;
};

// What a lane has of a tile.
template <Format F> struct Span {
    using L = Layout<F>;
    uint32_t codes[L::WORDS];
    uint32_t small[2][L::SMALL_WORDS > 0 ? L::SMALL_WORDS : 1];
    uint32_t floats[2][L::FLOAT_WORDS];
};

// As `load_once`, of eight bytes.
__device__ __forceinline__ uint2 load_once_8(const void* at) {
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(at));
    return v;
}

// Reads a lane's part of a tile, which is in shared memory or in global memory.
template <Format F, bool SHARED> __device__ __forceinline__ void fetch(Span<F>& span, const uint8_t* tile, int lane) {
    using L = Layout<F>;
#pragma unroll
    for (int i = 0; i < L::WORDS / 4; i++) {
        const uint8_t* at = tile + i * 512 + lane * 16;
        uint4 v = SHARED ? *reinterpret_cast<const uint4*>(at) : load_once(at);
        span.codes[4 * i] = v.x; span.codes[4 * i + 1] = v.y; span.codes[4 * i + 2] = v.z; span.codes[4 * i + 3] = v.w;
    }
    if (L::WORDS % 4) {
        const uint8_t* at = tile + L::WORDS / 4 * 512 + lane * 8;
        uint2 v = SHARED ? *reinterpret_cast<const uint2*>(at) : load_once_8(at);
        span.codes[L::WORDS - 2] = v.x; span.codes[L::WORDS - 1] = v.y;
    }
    const uint8_t* scales = tile + L::CODES_BYTES;
    const uint8_t* floats = scales + TILE_ROWS * L::SMALL;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = lane / 4 + 8 * r;
        const uint32_t* small = reinterpret_cast<const uint32_t*>(scales + row * L::SMALL);
        if (L::SMALL == 16) {
            uint4 v = *reinterpret_cast<const uint4*>(small);
            span.small[r][0] = v.x; span.small[r][1] = v.y; span.small[r][2] = v.z; span.small[r][3] = v.w;
        } else {
#pragma unroll
            for (int i = 0; i < L::SMALL_WORDS; i++) span.small[r][i] = small[i];
        }
        if (L::FLOATS == 1) {
            span.floats[r][0] = reinterpret_cast<const uint16_t*>(floats)[row];
        } else {
#pragma unroll
            for (int i = 0; i < L::FLOAT_WORDS; i++) span.floats[r][i] = reinterpret_cast<const uint32_t*>(floats)[row * L::FLOAT_WORDS + i];
        }
    }
}

// Copies bytes that are read once into shared memory, 16 at a time, while the warp goes on.
__device__ __forceinline__ void copy_ahead(uint8_t* to, const uint8_t* from) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until all but the last `ahead` groups of copies have arrived; 0 to 2.
__device__ __forceinline__ void wait_for_copies(int ahead) {
    if (ahead == 0) asm volatile("cp.async.wait_group 0;" ::: "memory");
    else if (ahead == 1) asm volatile("cp.async.wait_group 1;" ::: "memory");
    else asm volatile("cp.async.wait_group 2;" ::: "memory");
    __syncwarp();
}

// A warp's tiles: those of every eighth place in each strip of its block. It copies `ahead` of them ahead into a ring of its own, and goes on to
// the block's next strip without a pause.
template <Format F> struct Copier {
    const uint8_t* from;
    uint8_t* ring;
    int strip, strips, step, tiles, stride, warp, lane, ahead;
    int tile = warp, to_copy = 0, to_read = 0;
    __device__ __forceinline__ void next() {
        using L = Layout<F>;
        if (strip < strips && tile < tiles) {
            const uint8_t* at = from + ((size_t)strip * stride + tile) * L::BYTES;
            uint8_t* to = ring + to_copy * L::BYTES;
#pragma unroll
            for (int i = 0; i < (L::BYTES + 511) / 512; i++) {
                int byte = i * 512 + lane * 16;
                if (byte < L::BYTES) copy_ahead(to + byte, at + byte);
            }
        }
        end_copies();
        to_copy = to_copy == ahead ? 0 : to_copy + 1;
        tile += WARPS;
        if (tile >= tiles) {
            tile = warp;
            strip += step;
        }
    }
    // The oldest tile, which has arrived. Every lane is done with the one before it, which is overwritten now.
    __device__ __forceinline__ const uint8_t* oldest() {
        wait_for_copies(ahead - 1);
        next();
        const uint8_t* at = ring + to_read * Layout<F>::BYTES;
        to_read = to_read == ahead ? 0 : to_read + 1;
        return at;
    }
};

// The sixteen weights of IQ4 or those of MXFP4, four to a word.
template <Format F> __device__ __forceinline__ uint32_t looked_up(uint32_t nibbles) {
    constexpr uint32_t T0 = F == MXFP4 ? 0x03020100 : 0xbfad9881, T1 = F == MXFP4 ? 0x0c080604 : 0xf6eaddcf;
    constexpr uint32_t T2 = F == MXFP4 ? 0xfdfeff00 : 0x26190d01, T3 = F == MXFP4 ? 0xf4f8fafc : 0x71594535;
    // `prmt` takes selectors of four bits whose upper bit replicates the sign: selectors of three bits, and a choice by the fourth.
    uint32_t even = nibbles | nibbles >> 4;
    uint32_t selector = (even & 0xff) | (even >> 8 & 0xff00);
    uint32_t low = __byte_perm(T0, T1, selector & 0x7777), high = __byte_perm(T2, T3, selector & 0x7777);
    uint32_t upper = (nibbles & 0x08080808) >> 3;
    uint32_t mask = upper * 0xff;
    return (high & mask) | (low & ~mask);
}

// The codes of row `r` in group `j`, of the two halves.
template <Format F>
__device__ __forceinline__ void codes(const Span<F>& span, int r, int j, uint32_t& first, uint32_t& second) {
    using L = Layout<F>;
    if (L::LOW_BITS == 8) {
        first = span.codes[r * L::LOW + 2 * j];
        second = span.codes[r * L::LOW + 2 * j + 1];
        return;
    }
    if (L::LOW_BITS == 4) {
        uint32_t word = span.codes[r * L::LOW + j];
        first = word & 0x0f0f0f0f;
        second = word >> 4 & 0x0f0f0f0f;
    } else {
        uint32_t word = span.codes[r * L::LOW + j / 2] >> (4 * (j % 2));
        first = word & 0x03030303;
        second = word >> 2 & 0x03030303;
    }
    if (L::HIGH_BITS == 1) {
        uint32_t word = span.codes[2 * L::LOW + r * L::HIGH + j / 4] >> (2 * (j % 4));
        first |= (word & 0x01010101) << L::LOW_BITS;
        second |= (word >> 1 & 0x01010101) << L::LOW_BITS;
    }
    if (L::HIGH_BITS == 2) {
        uint32_t word = span.codes[2 * L::LOW + r * L::HIGH + j / 2] >> (4 * (j % 2));
        first |= (word & 0x03030303) << 4;
        second |= (word >> 2 & 0x03030303) << 4;
    }
    if (F == IQ4NL || F == IQ4XS || F == MXFP4) {
        first = looked_up<F>(first);
        second = looked_up<F>(second);
    }
}

// One of some words; without a branch where the index is not known.
template <int N> __device__ __forceinline__ uint32_t pick(const uint32_t* words, int i) {
    uint32_t found = words[0];
#pragma unroll
    for (int at = 1; at < N; at++) found = i == at ? words[at] : found;
    return found;
}

__device__ __forceinline__ float half_of(uint32_t word, int i) {
    return __half2float(__ushort_as_half((uint16_t)(i ? word >> 16 : word)));
}

struct Scale {
    float scale, offset;
};

// Of row `r` in group `j`, and in half `h` of it where halves differ.
template <Format F> __device__ __forceinline__ Scale scale_of(const Span<F>& span, int r, int j, int h) {
    using L = Layout<F>;
    const uint32_t* floats = span.floats[r];
    if (F == Q4_1 || F == Q5_1) {
        uint32_t word = pick<L::FLOAT_WORDS>(floats, j);
        return {half_of(word, 0), half_of(word, 1)};
    }
    if (!L::LARGE) {
        float d = half_of(pick<L::FLOAT_WORDS>(floats, j / 2), j % 2);
        return {d, F == Q4_0 ? -8.f * d : F == Q5_0 ? -16.f * d : 0.f};
    }
    float d = half_of(floats[0], 0);
    const uint32_t* small = span.small[r];
    if (F == Q4K || F == Q5K) {
        // Twelve bytes: six bits of scales 0 to 3, of minima 0 to 3, four bits of both of 4 to 7; the upper two of those are above the first.
        uint32_t scales = j < 4 ? small[0] & 0x3f3f3f3f : (small[2] & 0x0f0f0f0f) | (small[0] >> 2 & 0x30303030);
        uint32_t minima = j < 4 ? small[1] & 0x3f3f3f3f : (small[2] >> 4 & 0x0f0f0f0f) | (small[1] >> 2 & 0x30303030);
        int shift = 8 * (j % 4);
        return {d * (float)(scales >> shift & 0xff), -half_of(floats[0], 1) * (float)(minima >> shift & 0xff)};
    }
    if (F == IQ4XS) return {d * (float)(int8_t)(pick<L::SMALL_WORDS>(small, j / 4) >> (8 * (j % 4))), 0.f};
    uint32_t byte = pick<L::SMALL_WORDS>(small, j / 2) >> (16 * (j % 2) + 8 * h);
    if (F == Q2K) return {d * (float)(byte & 15), -half_of(floats[0], 1) * (float)(byte >> 4 & 15)};
    float scale = d * (float)(int8_t)byte;
    return {scale, (F == Q3K ? -4.f : -32.f) * scale};
}

// The two-dimensional place of a lane's rows: the row of the matrix that is row `row` of a tile in strip `strip`. A gated matrix has n rows of the gate
// and n of up; a strip has eight of each.
__device__ __forceinline__ size_t matrix_row(int strip, int row, int n, bool gated) {
    if (!gated) return (size_t)strip * TILE_ROWS + row;
    return (row < 8 ? 0 : (size_t)n) + (size_t)strip * 8 + row % 8;
}
// Whether that row exists.
__device__ __forceinline__ bool has_row(int strip, int row, int n, bool gated) {
    return gated ? strip * 8 + row % 8 < n : strip * TILE_ROWS + row < n;
}
