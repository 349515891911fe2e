// The library that the tests load.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int calls;
static __thread int per_thread = 7;

int count(const char *text) {
    (void)text;
    return ++calls;
}

int length(const char *text) { return (int)strlen(text); }

int negative(const char *text) {
    (void)text;
    return -5;
}

// 1: a thread of its own, 2: signals are blocked, 4: thread-local storage works, 8: the stack is aligned.
int surroundings(const char *text) {
    (void)text;
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, 0, &mask);
    int blocked = sigismember(&mask, SIGTERM) && sigismember(&mask, SIGALRM) && sigismember(&mask, SIGPROF);
    return (gettid() != getpid()) | blocked << 1 | (per_thread == 7) << 2 |
           ((unsigned long)__builtin_frame_address(0) % 16 == 0) << 3;
}

int waits(const char *text) {
    usleep((unsigned)atoi(text) * 1000);
    return 1;
}

int ends(const char *text) {
    _exit(atoi(text));
}
