// One thread that allocates memory until standard input ends: every stop meets it at work.
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static unsigned compute(unsigned seed, int rounds) {
    unsigned sum = 0;
    while (rounds--) {
        seed = seed * 1103515245u + 12345u;
        char *block = malloc(8 + seed % 3000);
        memset(block, (int)(seed >> 8), 8);
        sum = sum * 31 + (unsigned char)block[seed % 8] + seed;
        free(block);
        for (int i = 0; i < 300; i++) sum ^= sum >> 3 ^ (unsigned)i;
    }
    return sum;
}

int main(void) {
    unsigned expected = compute(1, 2000);
    puts("ready");
    fflush(stdout);
    for (;;) {
        if (compute(1, 2000) != expected) abort();
        struct pollfd input = {0, POLLIN, 0};
        char byte;
        if (poll(&input, 1, 0) == 1 && read(0, &byte, 1) == 0) return 0;
    }
}
