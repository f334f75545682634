/* What the C library does in the middle of its calls: cancellation, signals, forks, small stacks. Its output is the same wherever its calls go. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
static int ends[2];
static volatile sig_atomic_t seen;

static void check(int right, const char *what)
{
    printf("%s: %s\n", what, right ? "right" : "wrong");
    fflush(stdout);
}

static void *blocked(void *how)
{
    char byte;
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    switch ((long)how) {
    case 0: read(ends[0], &byte, 1); break;
    case 1: pause(); break;
    case 2: { struct timespec t = {100, 0}; nanosleep(&t, NULL); break; }
    default: for (;;) open("/dev/null/none", O_RDONLY);
    }
    return NULL;
}

static void cancelled(long how, const char *what)
{
    pthread_t thread;
    void *result;
    pthread_create(&thread, NULL, blocked, (void *)how);
    usleep(20000);
    pthread_cancel(thread);
    pthread_join(thread, &result);
    check(result == PTHREAD_CANCELED, what);
}

static void on_signal(int number)
{
    char byte = 'h';
    (void)number;
    seen++;
    (void)!write(ends[1], &byte, 1);
}

static sigjmp_buf back;

static void on_alarm(int number)
{
    siglongjmp(back, number);
}

static void *small(void *what)
{
    char buffer[200];
    snprintf(buffer, sizeof buffer, "/proc/self/%s", (char *)what);
    int fd = open(buffer, O_RDONLY);
    ssize_t got = read(fd, buffer, sizeof buffer);
    close(fd);
    return (void *)(long)(got > 0);
}

static void *forks(void *unused)
{
    (void)unused;
    for (int n = 0; n < 20; n++) {
        pid_t child = fork();
        if (child == 0)
            _exit(getpid() == getppid());
        int status;
        if (waitpid(child, &status, 0) != child || status != 0)
            return NULL;
    }
    return (void *)1L;
}

int main(void)
{
    /* Where calls are led to the library it answers a number that the kernel does not know. */
    int led = getenv("CCFS_DIRECT_ALL") != NULL;
    check((syscall(511) == 1) == led, "led to the library");
    (void)!pipe(ends);
    cancelled(0, "cancelled in read");
    cancelled(1, "cancelled in pause");
    cancelled(2, "cancelled in nanosleep");
    cancelled(3, "cancelled in open");

    struct sigaction act = {.sa_handler = on_signal};
    sigaction(SIGALRM, &act, NULL);
    struct timespec t = {0, 30000000};
    ualarm(5000, 0);
    check(nanosleep(&t, NULL) == -1 && errno == EINTR && seen == 1, "interrupted");
    char byte;
    check(read(ends[0], &byte, 1) == 1 && byte == 'h', "a call in a handler");
    act.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &act, NULL);
    ualarm(5000, 0);
    check(read(ends[0], &byte, 1) == 1 && byte == 'h' && seen == 2, "restarted");
    act.sa_handler = on_alarm;
    act.sa_flags = 0;
    sigaction(SIGALRM, &act, NULL);
    if (sigsetjmp(back, 1) == 0) {
        ualarm(5000, 0);
        (void)!read(ends[0], &byte, 1);
        check(0, "left by a jump");
    } else {
        check(1, "left by a jump");
    }

    pthread_attr_t attr;
    pthread_t threads[8];
    void *result;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, PTHREAD_STACK_MIN);
    pthread_create(&threads[0], &attr, small, "stat");
    pthread_join(threads[0], &result);
    check(result != NULL, "a small stack");
    int all = 1;
    for (int n = 0; n < 8; n++)
        pthread_create(&threads[n], NULL, forks, NULL);
    for (int n = 0; n < 8; n++) {
        pthread_join(threads[n], &result);
        all &= result != NULL;
    }
    check(all, "forks of threads");

    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/echo", "echo", "a child of vfork", NULL);
        _exit(127);
    }
    int status;
    check(waitpid(child, &status, 0) == child && status == 0, "vfork");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 5, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    char *args[] = {"sh", "-c", "test -e /proc/self/fd/5 && echo spawned", NULL};
    int spawned = posix_spawn(&child, "/bin/sh", &actions, NULL, args, environ);
    check(spawned == 0 && waitpid(child, &status, 0) == child && status == 0, "posix_spawn");
    FILE *pipe = popen("echo of a shell", "r");
    char line[50] = "";
    check(fgets(line, sizeof line, pipe) && pclose(pipe) == 0 && !strcmp(line, "of a shell\n"), "popen");
    check(system("exit 3") == 3 << 8, "system");
    char name[] = "/tmp/ccfs-preload-XXXXXX";
    int fd = mkstemp(name);
    FILE *file = fdopen(fd, "w+");
    for (int n = 0; n < 10000; n++)
        fprintf(file, "%d\n", n);
    check(ftell(file) == 48890 && fclose(file) == 0 && unlink(name) == 0, "streams");
    errno = 0;
    check(open(NULL, O_RDONLY) == -1 && errno == EFAULT, "no pointer");
    return 0;
}
