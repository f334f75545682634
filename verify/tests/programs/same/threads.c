/* Threads that use one tree, one file, and one table of descriptors. Each says only what is certain. */
#include "same.h"
#include <sched.h>

enum { THREADS = 8, TURNS = 300 };
static int shared, appended;
static volatile int go_on;

static void *in_a_tree(void *number)
{
    char a[60], b[60], text[40], got[40];
    long me = (long)number, wrong = 0;
    for (int n = 0; n < TURNS; n++) {
        snprintf(a, sizeof a, "tree/%ld-%d", me, n);
        snprintf(b, sizeof b, "tree/d%ld/%d", (me + n) % THREADS, (int)me * TURNS + n);
        snprintf(text, sizeof text, "%ld wrote %d", me, n);
        int fd = open(P(a), O_RDWR | O_CREAT | O_EXCL, 0644), len = strlen(text);
        wrong += fd < 0 || write(fd, text, len) != len;
        wrong += rename(P(a), P(b)) != 0;
        wrong += pwrite(shared, text, 8, (me * TURNS + n) * 8) != 8;
        wrong += write(appended, "12345678", 8) != 8;
        wrong += pread(fd, got, sizeof got, 0) != len || memcmp(got, text, len);
        wrong += close(fd) != 0;
        if (n % 2)
            wrong += unlink(P(b)) != 0;
        else if (n % 3 == 0) {
            fd = open(P(b), O_RDONLY);
            wrong += read(fd, got, sizeof got) != len || memcmp(got, text, len) || close(fd) != 0;
        }
    }
    return (void *)wrong;
}

static void *races_for_names(void *number)
{
    long both = 0;
    (void)number;
    for (int n = 0; n < TURNS; n++) {
        char name[40];
        snprintf(name, sizeof name, "race/%d", n);
        int fd = open(P(name), O_RDWR | O_CREAT | O_EXCL, 0644);
        both += fd >= 0;
        if (fd >= 0)
            close(fd);
        snprintf(name, sizeof name, "race/d%d", n);
        both += mkdir(P(name), 0755) == 0 ? 1000 : 0;
    }
    return (void *)both;
}

/* The first call that failed, and its error. */
static void *opens(void *number)
{
    (void)number;
    while (go_on) {
        struct stat s;
        int fd = open(P("tree/of-all"), O_RDWR | O_CREAT, 0644);
        if (fd < 0)
            return (void *)(100000L + errno);
        if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode))
            return (void *)(200000L + errno);
        int other = dup(fd);
        if (other < 0)
            return (void *)(300000L + errno);
        if (close(fd) != 0)
            return (void *)(400000L + errno);
        if (write(other, "x", 1) != 1)
            return (void *)(500000L + errno);
        if (close(other) != 0)
            return (void *)(600000L + errno);
    }
    return NULL;
}

static long run(void *(*what)(void *))
{
    pthread_t threads[THREADS];
    long all = 0;
    for (long n = 0; n < THREADS; n++)
        pthread_create(&threads[n], NULL, what, (void *)n);
    for (long n = 0; n < THREADS; n++) {
        void *got;
        pthread_join(threads[n], &got);
        all += (long)got;
    }
    return all;
}

static void threads(void)
{
    char name[40], text[9];
    mkdir(P("tree"), 0755);
    mkdir(P("race"), 0755);
    for (int n = 0; n < THREADS; n++) {
        snprintf(name, sizeof name, "tree/d%d", n);
        mkdir(P(name), 0755);
    }
    shared = open(P("shared"), O_RDWR | O_CREAT, 0644);
    appended = open(P("appended"), O_RDWR | O_CREAT | O_APPEND, 0644);
    T(run(in_a_tree));
    struct stat s;
    fstat(appended, &s);
    T(s.st_size);
    fstat(shared, &s);
    T(s.st_size);
    long wrong = 0;
    for (long n = 0; n < THREADS * TURNS; n++) {
        char want[20];
        snprintf(want, sizeof want, "%ld wrote %ld", n / TURNS, n % TURNS);
        wrong += pread(shared, text, 8, n * 8) != 8 || memcmp(text, want, 8);
    }
    T(wrong);
    for (int n = 0; n < THREADS; n++) {
        snprintf(name, sizeof name, "tree/d%d", n);
        list(name);
    }
    list("tree");
    T(run(races_for_names));
}

static void forking_threads(void)
{
    pthread_t threads[4];
    mkdir(P("tree"), 0755);
    go_on = 1;
    for (int n = 0; n < 4; n++)
        pthread_create(&threads[n], NULL, opens, NULL);
    long wrong = 0;
    for (int n = 0; n < 50; n++) {
        char name[40];
        snprintf(name, sizeof name, "tree/%d", n);
        int fd = open(P(name), O_RDWR | O_CREAT, 0644);
        wrong += write(fd, "parent", 6) != 6;
        pid_t child = n % 2 ? fork() : vfork();
        if (child == 0) {
            if (n % 2 == 0) {
                execl("/bin/true", "true", NULL);
                _exit(1);
            }
            int own = open(P("tree/own"), O_RDWR | O_CREAT, 0644);
            _exit(own < 0 || write(own, "y", 1) != 1 || write(fd, "child", 5) != 5 || unlink(P("tree/own")) != 0);
        }
        int status;
        wrong += waitpid(child, &status, 0) != child || status != 0;
        struct stat s;
        wrong += fstat(fd, &s) != 0 || s.st_size != (n % 2 ? 11 : 6) || close(fd) != 0;
    }
    T(wrong);
    go_on = 0;
    for (int n = 0; n < 4; n++) {
        void *got;
        pthread_join(threads[n], &got);
        T((long)got);
    }
    list("tree");
}

static void *apart(void *unused)
{
    (void)unused;
    long wrong = unshare(CLONE_FS | CLONE_FILES) != 0;
    wrong += chdir(here) != 0 || chdir("tree") != 0;
    umask(077);
    int fd = open("in-thread", O_RDWR | O_CREAT, 0666);
    wrong += write(fd, "x", 1) != 1;
    closefrom(3);
    return (void *)wrong;
}

static void threads_apart(void)
{
    pthread_t thread;
    void *got;
    mkdir(P("tree"), 0755);
    int fd = T(open(P("a"), O_RDWR | O_CREAT, 0644));
    pthread_create(&thread, NULL, apart, NULL);
    pthread_join(thread, &got);
    T((long)got);
    T(write(fd, "still open", 10));
    T(open(P("b"), O_RDWR | O_CREAT, 0666));
    content("a");
    show("b");
    show("tree/in-thread");
    list(".");
}

enum { NEW = 1000 };
static volatile int made;

static void *makes(void *number)
{
    char name[40];
    for (int n = 0; n < NEW; n++) {
        snprintf(name, sizeof name, "new/%d", n);
        int fd = open(P(name), O_WRONLY | O_CREAT | O_EXCL, 0644);
        if (fd < 0 || write(fd, "x", 1) != 1 || close(fd) != 0)
            return (void *)1L;
        made = n + 1;
    }
    return number;
}

/* Opens each as soon as it is there, and reads it once it is written. */
static void *finds(void *number)
{
    char name[40], b[4];
    long wrong = 0;
    (void)number;
    for (int n = 0; n < NEW; n++) {
        int fd;
        struct stat s;
        snprintf(name, sizeof name, "new/%d", n);
        while ((fd = open(P(name), O_RDONLY)) < 0)
            sched_yield();
        while (made <= n)
            sched_yield();
        wrong += fstat(fd, &s) != 0 || s.st_size != 1;
        wrong += read(fd, b, sizeof b) != 1;
        close(fd);
    }
    return (void *)wrong;
}

static void files_of_others(void)
{
    pthread_t one, other;
    void *failed, *wrong;
    T(mkdir(P("new"), 0755));
    pthread_create(&one, NULL, makes, NULL);
    pthread_create(&other, NULL, finds, NULL);
    pthread_join(one, &failed);
    pthread_join(other, &wrong);
    printf("  %ld failed, %ld wrong\n", (long)failed, (long)wrong);
}

const test_case thread_cases[] = {{"threads", threads}, {"forking_threads", forking_threads}, {"threads_apart", threads_apart}, {"files_of_others", files_of_others}, {NULL, NULL}};
