/* Walks through a life: each word is a step, taken by whoever the step before made.
 *   set N | new         enter stream N, or a fresh one
 *   show NAME           print NAME=STREAM
 *   write FILE          create a file or append a byte to it
 *   fork                the child goes on, the parent waits for it
 *   daemon              the grandchild goes on when its parent has ended
 *   vfork | exec        a new program (this one) goes on, in a child or here
 *   thread              a new thread goes on
 *   reuse               the next child gets the process id of one that was in stream 4711 and ended
 *   setsid              a session of its own
 *   streams N           N fresh streams with a write each
 *   mmap FILE           changes a page of a file by way of a mapping, and unmaps it
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct stream_arg {
    uint32_t version, flags;
    uint64_t id;
};
#define SET_STREAM _IOWR(0xCC, 0x80, struct stream_arg)
#define GET_STREAM _IOWR(0xCC, 0x81, struct stream_arg)
#define NEW_STREAM _IOWR(0xCC, 0x82, struct stream_arg)

static const char *program, *mount;
static int dir;

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static uint64_t call(unsigned long number, uint64_t id)
{
    struct stream_arg arg = {.version = 1, .id = id};
    if (ioctl(dir, number, &arg))
        die("ioctl");
    return arg.id;
}

static void show(const char *name)
{
    char line[200];
    int len = snprintf(line, sizeof line, "%s=%llu\n", name,
                       (unsigned long long)call(GET_STREAM, 0));
    if (write(1, line, len) != len)
        die("write");
}

static void wait_for(pid_t child)
{
    int status;
    if (waitpid(child, &status, 0) != child || status)
        die("a child failed");
}

static void walk(char **step);

static void *thread(void *step)
{
    walk(step);
    return NULL;
}

static void become(char **step)
{
    char *args[100] = {(char *)program, (char *)mount};
    int i = 2;
    while (*step && i < 99)
        args[i++] = *step++;
    execv(program, args);
    die(program);
}

static pid_t start(const char *how, char **step)
{
    if (*how == 'f')
        return fork();
    pid_t child = vfork();
    if (child == 0)
        become(step);
    return child;
}

static pid_t clone_as(pid_t tid)
{
    struct clone_args args = {.exit_signal = SIGCHLD};
    args.set_tid = (uintptr_t)&tid;
    args.set_tid_size = 1;
    return syscall(SYS_clone3, &args, sizeof args);
}

static void reuse(char **step)
{
    pid_t first = fork(), again;
    if (first == 0) {
        call(SET_STREAM, 4711);
        show("first");
        _exit(0);
    }
    wait_for(first);
    /* Somebody else may have got it. */
    for (int i = 0; i < 10000 && (again = clone_as(first)) < 0; i++) {
        if (errno != EEXIST) {
            printf("impossible=%d\n", errno);
            return;
        }
        usleep(1000);
    }
    if (again < 0) {
        printf("impossible=0\n");
        return;
    }
    if (again == 0) {
        walk(step);
        _exit(0);
    }
    wait_for(again);
}

static void append(const char *name)
{
    int fd = openat(dir, name, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (fd < 0 || write(fd, "x", 1) != 1 || close(fd))
        die(name);
}

static void many(int count)
{
    char name[20];
    for (int i = 0; i < count; i++) {
        call(SET_STREAM, call(NEW_STREAM, 0));
        sprintf(name, "f%d", i % 64);
        append(name);
    }
}

static void change_by_mapping(const char *name)
{
    int fd = openat(dir, name, O_RDWR);
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd < 0 || page == MAP_FAILED)
        die(name);
    page[100]++;
    /* Starts write-back and waits for it; the file is not synced. */
    if (sync_file_range(fd, 0, 4096, SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER))
        die("sync_file_range");
    munmap(page, 4096);
    close(fd);
}

static void walk(char **step)
{
    for (; *step; step++) {
        const char *word = *step;
        if (!strcmp(word, "set"))
            call(SET_STREAM, strtoull(*++step, NULL, 10));
        else if (!strcmp(word, "new"))
            call(SET_STREAM, call(NEW_STREAM, 0));
        else if (!strcmp(word, "show"))
            show(*++step);
        else if (!strcmp(word, "write"))
            append(*++step);
        else if (!strcmp(word, "streams"))
            many(atoi(*++step));
        else if (!strcmp(word, "mmap"))
            change_by_mapping(*++step);
        else if (!strcmp(word, "setsid")) {
            if (setsid() < 0)
                die("setsid");
        } else if (!strcmp(word, "exec"))
            become(step + 1);
        else if (!strcmp(word, "reuse")) {
            reuse(step + 1);
            return;
        } else if (!strcmp(word, "fork") || !strcmp(word, "vfork")) {
            pid_t child = start(word, step + 1);
            if (child != 0) {
                wait_for(child);
                return;
            }
        } else if (!strcmp(word, "daemon")) {
            int done[2];
            char end;
            if (pipe(done))
                die("pipe");
            pid_t middle = fork();
            if (middle != 0) {
                close(done[1]);
                wait_for(middle);
                /* The daemon's end. */
                if (read(done[0], &end, 1) != 0)
                    die("read");
                return;
            }
            middle = getpid();
            if (fork() != 0)
                _exit(0);
            while (getppid() == middle)
                usleep(1000);
        } else if (!strcmp(word, "thread")) {
            pthread_t id;
            if (pthread_create(&id, NULL, thread, step + 1) || pthread_join(id, NULL))
                die("thread");
            return;
        } else {
            fprintf(stderr, "what is %s?\n", word);
            exit(2);
        }
    }
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    program = argv[0];
    mount = argv[1];
    dir = open(mount, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        die(mount);
    walk(argv + 2);
    return 0;
}
