#include <poll.h>
#include <unistd.h>

// Blocked, as with CU_CTX_SCHED_BLOCKING_SYNC.
int cuEventSynchronize(int milliseconds) {
    int descriptors[2];
    if (pipe(descriptors) != 0) return 1;
    struct pollfd wait = {descriptors[0], POLLIN, 0};
    poll(&wait, 1, milliseconds);
    close(descriptors[0]);
    close(descriptors[1]);
    return 0;
}

// Spinning, as by default.
int cuCtxSynchronize(long turns) {
    for (volatile long turn = 0; turn < turns; turn++) {}
    return 0;
}
