// Receives a timer's signals at 1 kHz, and numbered real-time signals of a child process, of which none may be lost or doubled.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile long ticks, received, wrong;

static void on_tick(int signal) {
    (void)signal;
    ticks++;
}

static void on_number(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    if (info->si_value.sival_int != received) wrong++;
    received++;
}

int main(int count, char **arguments) {
    (void)count;
    int numbers = atoi(arguments[1]);
    struct sigaction tick = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
    struct sigaction number = {.sa_sigaction = on_number, .sa_flags = SA_SIGINFO};
    sigaction(SIGALRM, &tick, 0);
    sigaction(SIGRTMIN, &number, 0);
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int i = 0; i < numbers; i++) {
            while (sigqueue(parent, SIGRTMIN, (union sigval){.sival_int = i})) usleep(1000);
            usleep(500);
        }
        _exit(0);
    }
    struct itimerval period = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &period, 0);
    puts("ready");
    fflush(stdout);
    unsigned long sum = 0, expected = 0;
    for (int round = 0; received < numbers; round++) {
        sum = 0;
        for (unsigned long i = 0; i < 100000; i++) sum += i * i ^ i;
        if (round == 0) expected = sum;
        if (sum != expected) return 5;
        if (round % 16 == 0) usleep(2000);
    }
    while (waitpid(child, 0, 0) != child);
    printf("%ld %ld %ld\n", received, wrong, ticks);
    return wrong != 0;
}
