// Keeps values in vector registers in a loop, and compares its results, until standard input ends.
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef long lanes __attribute__((vector_size(32)));
typedef double reals __attribute__((vector_size(32)));
typedef struct {
    lanes a, b, c, d;
    reals x, y;
    long double z;
} values;

__attribute__((target_clones("avx512f", "avx2", "default"), noinline)) static void compute(values *out, long rounds) {
    lanes a = {1, 2, 3, 4}, b = {5, 6, 7, 8}, c = {9, 10, 11, 12}, d = {13, 14, 15, 16};
    reals x = {1.5, 2.5, 3.5, 4.5}, y = {0.1, 0.2, 0.3, 0.4};
    long double z = 1;
    for (long i = 0; i < rounds; i++) {
        a += b ^ (c >> 3);
        b ^= a + d;
        c += d ^ (a << 1);
        d ^= b + c;
        x = x * 0.999 + y;
        y = y * 1.0001 - x * 1e-6;
        z = z * 0.99L + (long double)i;
    }
    memset(out, 0, sizeof *out);
    *out = (values){a, b, c, d, x, y, z};
}

static int differ(values *a, values *b) { return memcmp(a, b, 6 * 32) || a->z != b->z; }

int main(void) {
    values expected, found;
    compute(&expected, 200000);
    puts("ready");
    fflush(stdout);
    for (;;) {
        compute(&found, 200000);
        if (differ(&expected, &found)) return 6;
        struct pollfd input = {0, POLLIN, 0};
        char byte;
        if (poll(&input, 1, 0) == 1 && read(0, &byte, 1) == 0) return 0;
    }
}
