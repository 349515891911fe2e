// Threads that allocate memory until standard input ends. The memory of each is checked.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static volatile int stop;
static volatile long iterations[4];

static unsigned next(unsigned seed) { return seed * 1103515245u + 12345u; }

static void *work(void *argument) {
    long index = (long)argument, count = 0;
    unsigned seed = (unsigned)index, sum = 0;
    while (!stop) {
        seed = next(seed);
        size_t size = 16 + seed % 9000;
        unsigned char *block = malloc(size);
        memset(block, (int)(seed >> 8), size);
        block = realloc(block, size + 100);
        for (size_t i = 0; i < size; i += 97)
            if (block[i] != (unsigned char)(seed >> 8)) abort();
        sum = sum * 31 + seed;
        free(block);
        iterations[index] = ++count;
    }
    unsigned expected = 0;
    seed = (unsigned)index;
    for (long i = 0; i < count; i++) {
        seed = next(seed);
        expected = expected * 31 + seed;
    }
    return (void *)(long)(sum == expected ? 0 : 3);
}

int main(void) {
    pthread_t threads[4];
    long failed = 0;
    for (long i = 0; i < 4; i++) pthread_create(&threads[i], 0, work, (void *)i);
    char line[16];
    puts("ready");
    fflush(stdout);
    while (read(0, line, 1) == 1) {
        printf("%ld %ld %ld %ld\n", iterations[0], iterations[1], iterations[2], iterations[3]);
        fflush(stdout);
    }
    stop = 1;
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(threads[i], &result);
        failed |= (long)result;
    }
    return (int)failed;
}
