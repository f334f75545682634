/* Walks through a life: each word is a step, taken by whoever the step before made.
 *   set N | new         enter stream N, or a fresh one
 *   show NAME           print NAME=STREAM
 *   write FILE          create a file or append a byte to it
 *   fork                the child goes on, the parent waits for it
 *   daemon              the grandchild goes on when its parent has ended
 *   vfork | exec        a new program (this one) goes on, in a child or here
 *   program PATH        what exec and vfork start from now on
 *   thread              a new thread goes on
 *   reuse               the next child gets the process id of one that was in stream 4711 and ended
 *   setsid              a session of its own
 *   streams N           N fresh streams with a write each
 *   mmap FILE           changes a page of a file by way of a mapping, and unmaps it
 *   sibling             a child of the parent's goes on (CLONE_PARENT)
 *   beside N            a thread in stream N stays beside
 *   ring HOW FILE       appends a byte by way of an io_uring of this thread: by a worker (HOW: async) or the ring's own thread (poll)
 *   workers             print workers=NUMBER: the io_uring threads of this process
 *   say NAME            print NAME=0, without asking for anything
 *   pause               wait for a line on stdin
 *   forks N             N children that end at once
 *   bursts N            for ever N changes of this thread's name and a rest
 *   names N             N changes of this thread's name, each an event for who listens to the kernel
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/sched.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
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

struct ring {
    int fd;
    unsigned *sq_tail, *sq_flags, *sq_array, sq_mask, *cq_head, *cq_tail, cq_mask;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
};

static void *ring_part(int fd, size_t len, off_t what)
{
    void *part = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, what);
    if (part == MAP_FAILED)
        die("mmap of a ring");
    return part;
}

/* 0, or why the kernel gives none. */
static int open_ring(struct ring *r, unsigned flags)
{
    struct io_uring_params p = {.flags = flags, .sq_thread_idle = 100};
    r->fd = syscall(SYS_io_uring_setup, 4, &p);
    if (r->fd < 0)
        return errno;
    char *sq = ring_part(r->fd, p.sq_off.array + p.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
    char *cq = ring_part(r->fd, p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe), IORING_OFF_CQ_RING);
    r->sqes = ring_part(r->fd, p.sq_entries * sizeof(struct io_uring_sqe), IORING_OFF_SQES);
    r->sq_tail = (unsigned *)(sq + p.sq_off.tail);
    r->sq_flags = (unsigned *)(sq + p.sq_off.flags);
    r->sq_array = (unsigned *)(sq + p.sq_off.array);
    r->sq_mask = *(unsigned *)(sq + p.sq_off.ring_mask);
    r->cq_head = (unsigned *)(cq + p.cq_off.head);
    r->cq_tail = (unsigned *)(cq + p.cq_off.tail);
    r->cq_mask = *(unsigned *)(cq + p.cq_off.ring_mask);
    r->cqes = (struct io_uring_cqe *)(cq + p.cq_off.cqes);
    return 0;
}

/* Writes a byte at the beginning; the result of the operation. */
static int write_by(struct ring *r, int fd)
{
    unsigned tail = *r->sq_tail, enter = IORING_ENTER_GETEVENTS, head = *r->cq_head;
    struct io_uring_sqe *sqe = &r->sqes[tail & r->sq_mask];
    memset(sqe, 0, sizeof *sqe);
    sqe->opcode = IORING_OP_WRITE;
    sqe->flags = IOSQE_ASYNC;
    sqe->fd = fd;
    sqe->addr = (uintptr_t) "r";
    sqe->len = 1;
    r->sq_array[tail & r->sq_mask] = tail & r->sq_mask;
    __atomic_store_n(r->sq_tail, tail + 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(r->cq_tail, __ATOMIC_ACQUIRE) == head) {
        if (__atomic_load_n(r->sq_flags, __ATOMIC_SEQ_CST) & IORING_SQ_NEED_WAKEUP)
            enter |= IORING_ENTER_SQ_WAKEUP;
        if (syscall(SYS_io_uring_enter, r->fd, 1, 1, enter, NULL, 0) < 0 && errno != EINTR)
            die("io_uring_enter");
    }
    int result = r->cqes[head & r->cq_mask].res;
    __atomic_store_n(r->cq_head, head + 1, __ATOMIC_RELEASE);
    return result;
}

static void ring(const char *how, const char *name)
{
    static __thread struct ring rings[2];
    int poll = !strcmp(how, "poll");
    struct ring *r = &rings[poll];
    if (r->fd == 0) {
        int why = open_ring(r, poll ? IORING_SETUP_SQPOLL : 0);
        if (why != 0) {
            printf("refused=%d\n", why);
            fflush(stdout);
            r->fd = 0;
            return;
        }
    }
    int fd = openat(dir, name, O_WRONLY);
    if (fd < 0)
        die(name);
    int result = write_by(r, fd);
    if (result != 1) {
        errno = -result;
        die("a write by io_uring");
    }
    close(fd);
}

static void workers(void)
{
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *entry;
    int count = 0;
    while (tasks != NULL && (entry = readdir(tasks)) != NULL) {
        char path[400], name[16] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        int fd = open(path, O_RDONLY);
        if (fd >= 0 && read(fd, name, sizeof name) > 0)
            count += !strncmp(name, "iou-", 4);
        close(fd);
    }
    closedir(tasks);
    printf("workers=%d\n", count);
    fflush(stdout);
}

static int entered[2];

static void *stay(void *id)
{
    call(SET_STREAM, strtoull(id, NULL, 10));
    if (write(entered[1], "x", 1) != 1)
        die("write");
    while (pause())
        ;
    return NULL;
}

static void beside(char *id)
{
    pthread_t thread;
    char done;
    if (pipe2(entered, O_CLOEXEC) || pthread_create(&thread, NULL, stay, id) || read(entered[0], &done, 1) != 1)
        die("a thread beside");
}

static void say(const char *name)
{
    char line[200];
    int len = snprintf(line, sizeof line, "%s=0\n", name);
    if (write(1, line, len) != len)
        die("write");
}

static void wait_for_line(void)
{
    char c;
    do
        if (read(0, &c, 1) != 1)
            exit(3);
    while (c != '\n');
}

static void forks(int count)
{
    while (count-- > 0) {
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        if (child < 0)
            usleep(1000);
        else
            wait_for(child);
    }
}

static void names(int count)
{
    while (count-- > 0)
        prctl(PR_SET_NAME, count % 2 ? "odd" : "even");
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
        else if (!strcmp(word, "ring")) {
            const char *how = *++step;
            ring(how, *++step);
        } else if (!strcmp(word, "workers"))
            workers();
        else if (!strcmp(word, "beside"))
            beside(*++step);
        else if (!strcmp(word, "say"))
            say(*++step);
        else if (!strcmp(word, "pause"))
            wait_for_line();
        else if (!strcmp(word, "forks"))
            forks(atoi(*++step));
        else if (!strcmp(word, "names"))
            names(atoi(*++step));
        else if (!strcmp(word, "bursts")) {
            for (;; usleep(20000))
                names(atoi(step[1]));
        } else if (!strcmp(word, "sibling")) {
            struct clone_args args = {.flags = CLONE_PARENT};
            if (syscall(SYS_clone3, &args, sizeof args) != 0)
                return;
        } else if (!strcmp(word, "setsid")) {
            if (setsid() < 0)
                die("setsid");
        } else if (!strcmp(word, "program"))
            program = *++step;
        else if (!strcmp(word, "exec"))
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
