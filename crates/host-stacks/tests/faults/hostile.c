#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The layout of CPython 3.12: threads of an interpreter at 72, identifiers at 136 and 144, the frame at 56.
uint64_t _PyRuntime[8192];
uint32_t Py_Version = 0x030c00f0;
uint64_t PyCode_Type[64];
static uint64_t threads[4096][32];
static uint64_t frames[4096][16];
static uint64_t code[64];

static void of_self(void) {
    for (int i = 0; i < 8192; i++) _PyRuntime[i] = (uint64_t)_PyRuntime;
}

static void of_threads(void) {
    of_self();
    _PyRuntime[9] = (uint64_t)threads[0];
    for (int i = 0; i < 4096; i++) {
        threads[i][1] = (uint64_t)threads[(i + 1) % 4096];
        threads[i][2] = (uint64_t)_PyRuntime;
        threads[i][7] = (uint64_t)&threads[i][20];
        threads[i][17] = (uint64_t)threads[i];
        threads[i][18] = getpid();
        threads[i][20] = (uint64_t)frames[0];
    }
}

static void of_frames(void) {
    of_threads();
    for (int i = 0; i < 4096; i++) {
        frames[i][0] = (uint64_t)code;
        frames[i][1] = (uint64_t)frames[(i + 1) % 4096];
        frames[i][7] = (uint64_t)code + 10000000;
    }
}

// A code object whose texts have a length of 2^63 and whose line table is one of -1 bytes.
static void of_code(void) {
    of_frames();
    for (int i = 0; i < 64; i++) code[i] = (uint64_t)code;
    code[1] = (uint64_t)PyCode_Type;
    code[2] = (uint64_t)-1;
    code[4] = 0xffffffff;
}

static void of_random(void) {
    of_code();
    for (int i = 0; i < 4096; i++)
        for (int j = 0; j < 16; j++) frames[i][j] = (uint64_t)rand() << 33 ^ (uint64_t)frames[rand() % 4096];
    for (int i = 3; i < 64; i++) code[i] = (uint64_t)rand() << 32 | rand();
}

int main(int count, char **words) {
    const char *mode = count > 1 ? words[1] : "self";
    if (!strcmp(mode, "self")) of_self();
    if (!strcmp(mode, "threads")) of_threads();
    if (!strcmp(mode, "frames")) of_frames();
    if (!strcmp(mode, "code")) of_code();
    if (!strcmp(mode, "random")) of_random();
    for (;;) pause();
}
