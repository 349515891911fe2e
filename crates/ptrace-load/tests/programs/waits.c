// Waits once in one system call, and prints its result, errno and the milliseconds that it took.
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <linux/futex.h>
#include <unistd.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

int main(int count, char **arguments) {
    (void)count;
    const char *kind = arguments[1];
    long ms = atol(arguments[2]), result = -2;
    struct timespec length = {ms / 1000, ms % 1000 * 1000000}, end;
    struct pollfd input = {0, POLLIN, 0};
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
    sigset_t mask, usr1;
    sigemptyset(&mask);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += ms / 1000;
    end.tv_nsec += ms % 1000 * 1000000;
    if (end.tv_nsec >= 1000000000) end.tv_sec++, end.tv_nsec -= 1000000000;
    int set = epoll_create1(0), pipes[2], word = 0;
    struct epoll_event event = {EPOLLIN, {0}};
    epoll_ctl(set, EPOLL_CTL_ADD, 0, &event);
    pid_t child = 0;
    char byte;
    sem_t semaphore;
    sem_init(&semaphore, 0, 0);
    if (!strcmp(kind, "wait4") && (child = fork()) == 0) {
        usleep((unsigned)ms * 1000);
        _exit(9);
    }
    if (pipe(pipes)) return 4;
    puts("ready");
    fflush(stdout);
    double begin = now();
    errno = 0;
    if (!strcmp(kind, "nanosleep")) result = nanosleep(&length, 0);
    if (!strcmp(kind, "clock_nanosleep")) result = syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &length, 0);
    if (!strcmp(kind, "poll")) result = poll(&input, 1, (int)ms);
    if (!strcmp(kind, "ppoll")) result = ppoll(&input, 1, &length, &mask);
    if (!strcmp(kind, "select")) {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(0, &set);
        struct timeval limit = {ms / 1000, ms % 1000 * 1000};
        result = select(1, &set, 0, 0, &limit);
    }
    if (!strcmp(kind, "pselect")) result = pselect(0, 0, 0, 0, &length, &mask);
    if (!strcmp(kind, "futex")) result = syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &length, 0, 0);
    if (!strcmp(kind, "condition")) {
        pthread_mutex_lock(&mutex);
        result = pthread_cond_timedwait(&condition, &mutex, &end);
        pthread_mutex_unlock(&mutex);
    }
    if (!strcmp(kind, "semaphore")) result = sem_timedwait(&semaphore, &end);
    if (!strcmp(kind, "epoll_wait")) result = epoll_wait(set, &event, 1, (int)ms);
    if (!strcmp(kind, "epoll_pwait")) result = epoll_pwait(set, &event, 1, (int)ms, &mask);
    if (!strcmp(kind, "sigtimedwait")) {
        sigprocmask(SIG_BLOCK, &usr1, 0);
        result = sigtimedwait(&usr1, 0, &length);
    }
    if (!strcmp(kind, "read")) result = read(0, &byte, 1);
    if (!strcmp(kind, "wait4")) {
        int status;
        result = waitpid(child, &status, 0) == child ? WEXITSTATUS(status) : -1;
    }
    int error = errno;
    printf("%ld %d %.1f\n", result, error, now() - begin);
}
