/* A thread is cancelled after each instruction on its way into a call that waits. It ends each time, and what it has on its stack is cleaned up: a
 * call that is led elsewhere has many more such places. Another process drives it there, one instruction after the other. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Instructions after which it is cancelled; where a call is led it takes more of them. */
enum { STEPS_MAX = 100000, ALL_UP_TO = 400, THEN_EACH = 41 };

static struct shared {
    volatile int thread, cancel, cancelled, ended, unwound;
} *shared;
static int ends[2];
static const char *kind;
static int unwound;

static void note(int *unused)
{
    (void)unused;
    shared->unwound = 1;
}

static void *waits(void *unused)
{
    int kept __attribute__((cleanup(note))) = 0;
    char byte;
    (void)unused;
    (void)kept;
    /* The first files that are made are not looked at. */
    for (int n = 0; n < 4; n++)
        close(open("made", O_WRONLY | O_CREAT, 0600));
    shared->thread = syscall(SYS_gettid);
    while (!shared->cancel) /* until somebody drives it */
        ;
    __asm__ volatile("int3");
    if (*kind == 'r')
        (void)!read(ends[0], &byte, 1);
    else
        open("fifo", O_RDONLY | O_CREAT, 0600);
    return NULL;
}

/* One thread, which is cancelled when it is said. */
static int run(void)
{
    pthread_t thread;
    void *result;
    pthread_create(&thread, NULL, waits, NULL);
    while (shared->cancel != 2)
        usleep(100);
    pthread_cancel(thread);
    shared->cancelled = 1;
    pthread_join(thread, &result);
    shared->ended = 1;
    return result == PTHREAD_CANCELED ? 0 : 1;
}

/* The next stop of the thread: the signal, or 0 if there is none soon: it waits. */
static int stops(int thread)
{
    int status;
    for (int n = 0; n < 200000; n++) {
        int got = waitpid(thread, &status, __WALL | WNOHANG);
        if (got == thread && WIFSTOPPED(status))
            return WSTOPSIG(status);
        if (got < 0)
            break;
        if (n > 1000)
            usleep(10);
    }
    return 0;
}

/* Whether the thread stands before the call in which it waits. */
static int is_there(int thread)
{
    struct user_regs_struct regs;
    ptrace(PTRACE_GETREGS, thread, 0, &regs);
    errno = 0;
    long code = ptrace(PTRACE_PEEKTEXT, thread, (void *)regs.rip, 0);
    return (code & 0xffff) == 0x050f && (*kind == 'r' ? regs.rax == SYS_read : regs.rax == SYS_openat || regs.rax == SYS_open);
}

/* How many instructions it went, at most `steps`; the last ones are those to the call. Negative: something is wrong. */
static int one(int steps)
{
    memset((void *)shared, 0, sizeof *shared);
    pid_t child = fork();
    if (child == 0)
        _exit(run());
    while (!shared->thread)
        usleep(50);
    int thread = shared->thread, done = 0, signal;
    errno = 0;
    if (ptrace(PTRACE_SEIZE, thread, 0, 0) != 0)
        return -1;
    shared->cancel = 1;
    if (stops(thread) != SIGTRAP)
        return -2;
    for (; done < steps && !is_there(thread); done++) {
        ptrace(PTRACE_SINGLESTEP, thread, 0, 0);
        if ((signal = stops(thread)) != SIGTRAP) {
            printf("%s: signal %d (%s) after %d instructions\n", kind, signal, strerror(errno), done);
            return -3;
        }
    }
    shared->cancel = 2;
    while (!shared->cancelled)
        usleep(50);
    ptrace(PTRACE_DETACH, thread, 0, 0);
    for (int n = 0; n < 100000 && !shared->ended; n++)
        usleep(50);
    int ended = shared->ended, status;
    if (!ended)
        kill(child, SIGKILL);
    waitpid(child, &status, 0);
    if (!ended || status != 0) {
        printf("%s, after %d instructions: ended %d, status %x\n", kind, done, ended, status);
        return -4;
    }
    unwound += shared->unwound;
    return done;
}

int main(int argc, char **argv)
{
    kind = argv[1];
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (pipe(ends) != 0 || (*kind == 'o' && mkfifo("fifo", 0600) != 0 && errno != EEXIST))
        return 2;
    int steps = 0, done, wrong = 0, rounds = 0;
    do {
        done = one(steps);
        if (done < 0 && done != -4) {
            printf("cannot drive it: %d\n", done);
            return 2;
        }
        wrong += done < 0;
        rounds++;
        steps += steps < ALL_UP_TO ? 1 : THEN_EACH;
    } while (steps < STEPS_MAX && (done < 0 || done >= steps - (steps <= ALL_UP_TO ? 1 : THEN_EACH)) && wrong < 10);
    printf("%d instructions, %d rounds, %d of them wrong, %d not cleaned up\n", done, rounds, wrong, rounds - wrong - unwound);
    return wrong != 0;
}
