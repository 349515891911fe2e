// A process in a state in which no library can be loaded. It prints its PID.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(int pid) {
    char line[32];
    int length = snprintf(line, sizeof line, "%d\n", pid);
    if (write(1, line, (size_t)length) != length) _exit(1);
}

int main(int count, char **arguments) {
    const char *kind = count > 1 ? arguments[1] : "";
    char byte;
    pid_t child;
    if (!strcmp(kind, "private")) prctl(PR_SET_DUMPABLE, 0);
    if (!strcmp(kind, "traced")) {
        if ((child = fork()) == 0)
            for (;;) pause();
        ptrace(PTRACE_SEIZE, child, 0, PTRACE_O_EXITKILL);
        say(child);
    } else if (!strcmp(kind, "zombie")) {
        if ((child = fork()) == 0) _exit(0);
        siginfo_t info;
        waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT);
        say(child);
    } else if (!strcmp(kind, "vfork")) {
        if (vfork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            say(getpid());
            while (read(0, &byte, 1) == 1);
            _exit(0);
        }
    } else {
        say(getpid());
    }
    while (read(0, &byte, 1) == 1);
}
