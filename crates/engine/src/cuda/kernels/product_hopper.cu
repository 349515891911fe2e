// Products of many rows on compute capability 9.0, whose tensor cores read tiles from shared memory themselves. Other
// capabilities do not have these instructions.
#include "product.cuh"

constexpr int ROWS = 128;
constexpr int COLUMNS = 256;
constexpr int THREADS = 256; // two groups of four warps, each with 64 rows
constexpr int STAGES = 4;
constexpr int AHEAD = 2; // tiles that are copied ahead: the other two are being multiplied
constexpr int TILE_BYTES = (ROWS + COLUMNS) * ROW_BYTES;

// c += a·b, 64×256×16, by the four warps of a group. The sums are in order only after `wait_for_sums`.
template <typename T> __device__ void multiply(float (&c)[128], uint64_t a, uint64_t b, int accumulate);
// The name of a type in C++ is its name in PTX.
#define MULTIPLY(T)                                                                                                  \
    template <>                                                                                                      \
    __device__ __forceinline__ void multiply<T>(float (&c)[128], uint64_t a, uint64_t b, int accumulate) {           \
        asm volatile("{.reg .pred p;"                                                                                \
                     "setp.ne.b32 p, %130, 0;"                                                                       \
                     "wgmma.mma_async.sync.aligned.m64n256k16.f32." #T "." #T " "                                    \
                     "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"                        \
                     " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"              \
                     " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"              \
                     " %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63,"              \
                     " %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79,"              \
                     " %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95,"              \
                     " %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111,"  \
                     " %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127},"\
                     " %128, %129, p, 1, 1, 0, 0;}"                                                                  \
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]),                                               \
                       "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),                                               \
                       "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]),                                             \
                       "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),                                           \
                       "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]),                                           \
                       "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),                                           \
                       "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]),                                           \
                       "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]),                                           \
                       "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]),                                           \
                       "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]),                                           \
                       "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43]),                                           \
                       "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]),                                           \
                       "+f"(c[48]), "+f"(c[49]), "+f"(c[50]), "+f"(c[51]),                                           \
                       "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]),                                           \
                       "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]),                                           \
                       "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63]),                                           \
                       "+f"(c[64]), "+f"(c[65]), "+f"(c[66]), "+f"(c[67]),                                           \
                       "+f"(c[68]), "+f"(c[69]), "+f"(c[70]), "+f"(c[71]),                                           \
                       "+f"(c[72]), "+f"(c[73]), "+f"(c[74]), "+f"(c[75]),                                           \
                       "+f"(c[76]), "+f"(c[77]), "+f"(c[78]), "+f"(c[79]),                                           \
                       "+f"(c[80]), "+f"(c[81]), "+f"(c[82]), "+f"(c[83]),                                           \
                       "+f"(c[84]), "+f"(c[85]), "+f"(c[86]), "+f"(c[87]),                                           \
                       "+f"(c[88]), "+f"(c[89]), "+f"(c[90]), "+f"(c[91]),                                           \
                       "+f"(c[92]), "+f"(c[93]), "+f"(c[94]), "+f"(c[95]),                                           \
                       "+f"(c[96]), "+f"(c[97]), "+f"(c[98]), "+f"(c[99]),                                           \
                       "+f"(c[100]), "+f"(c[101]), "+f"(c[102]), "+f"(c[103]),                                       \
                       "+f"(c[104]), "+f"(c[105]), "+f"(c[106]), "+f"(c[107]),                                       \
                       "+f"(c[108]), "+f"(c[109]), "+f"(c[110]), "+f"(c[111]),                                       \
                       "+f"(c[112]), "+f"(c[113]), "+f"(c[114]), "+f"(c[115]),                                       \
                       "+f"(c[116]), "+f"(c[117]), "+f"(c[118]), "+f"(c[119]),                                       \
                       "+f"(c[120]), "+f"(c[121]), "+f"(c[122]), "+f"(c[123]),                                       \
                       "+f"(c[124]), "+f"(c[125]), "+f"(c[126]), "+f"(c[127])                                        \
                     : "l"(a), "l"(b), "r"(accumulate));                                                             \
    }
MULTIPLY(bf16)
MULTIPLY(f16)

// Makes sums and tiles that were written by threads visible to the tensor cores.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// A tile in shared memory, as the tensor cores address it: rows of 128 bytes, permuted in groups of eight rows.
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t at) {
    constexpr uint64_t GROUP_BYTES = 8 * ROW_BYTES, PERMUTED_128 = 1;
    return static_cast<uint64_t>((at & 0x3ffff) >> 4) | 1ull << 16 | (GROUP_BYTES >> 4) << 32 | PERMUTED_128 << 62;
}

// k is divisible by eight.
template <typename T, typename Out>
__device__ void product(Out* y, const T* x, const T* w, int m, int n, int k, int add) {
    extern __shared__ unsigned char shared[];
    int first_row, first_column;
    place_of_block<ROWS, COLUMNS>(m, n, first_row, first_column);
    const int group = threadIdx.x / 128, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // The permutation counts rows from a multiple of 1,024 bytes.
    const uint32_t base = (shared_address(shared) + 1023) & ~1023u;
    const int tiles = (k + DEPTH - 1) / DEPTH;
    auto copy = [&](int tile) {
        copy_stage<T, ROWS, COLUMNS, THREADS, STAGES>(base, x, w, m, n, k, first_row, first_column, tile);
    };
#pragma unroll
    for (int tile = 0; tile < AHEAD; tile++) copy(tile);
    float sums[128];
    for (int tile = 0; tile < tiles; tile++) {
        wait_for_copies<AHEAD - 1>();
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        // Both groups have finished the tile before the last one, whose place the next copy takes.
        __syncthreads();
        copy(tile + AHEAD);
        begin_products();
        uint32_t from = base + tile % STAGES * TILE_BYTES;
        uint64_t a = tile_descriptor(from + group * 64 * ROW_BYTES), b = tile_descriptor(from + ROWS * ROW_BYTES);
#pragma unroll
        for (int step = 0; step < 4; step++) multiply<T>(sums, a + step * 2, b + step * 2, tile > 0 || step > 0);
        commit_products();
        wait_for_products<1>();
    }
    wait_for_products<0>();
    int row = first_row + group * 64 + warp % 4 * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < 32; j++) {
        int column = first_column + j * 8 + lane % 4 * 2;
        store_pair<T>(y, m, n, row, column, sums[j * 4], sums[j * 4 + 1], add);
        store_pair<T>(y, m, n, row + 8, column, sums[j * 4 + 2], sums[j * 4 + 3], add);
    }
}

#define PRODUCT(NAME, T, OUT)                                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                         \
        NAME(OUT* y, const T* x, const T* w, int m, int n, int k, int add) {                                         \
        product<T, OUT>(y, x, w, m, n, k, add);                                                                      \
    }
FOR_BF16(PRODUCT(hopper_product_bf16, bf16, bf16))
FOR_F16(PRODUCT(hopper_product_f16, f16, f16))
FOR_BF16(PRODUCT(hopper_product_logits_bf16, bf16, float))
FOR_F16(PRODUCT(hopper_product_logits_f16, f16, float))
