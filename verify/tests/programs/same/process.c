/* Children, programs that are started, signals, users. */
#include "same.h"
#include <grp.h>
#include <sched.h>
#include <setjmp.h>
#include <spawn.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <linux/close_range.h>

extern char **environ;
static struct stat s;

static void forks(void)
{
    char b[20] = "";
    int fd = T(open(P("a"), O_RDWR | O_CREAT, 0644)), log = T(open(P("log"), O_WRONLY | O_CREAT | O_APPEND, 0644));
    T(write(fd, "parent ", 7));
    CHILD(T(write(fd, "child ", 6)); T(lseek(fd, 0, SEEK_CUR)); write(log, "1", 1); make("of-child", "x"); T(close(fd)));
    T(lseek(fd, 0, SEEK_CUR));
    T(write(fd, "parent", 6));
    content("a");
    content("of-child");
    T(write(log, "2", 1));
    CHILD(CHILD(T(lseek(fd, 3, SEEK_SET)); write(log, "3", 1)); T(read(fd, b, 4)); write(log, "4", 1); T(unlink(P("of-child"))));
    T(read(fd, b, 3));
    printf("  %s\n", b);
    show("of-child");
    T(mkdir(P("d"), 0755));
    make("d/f", "1");
    CHILD(make("d/g", "2"); T(rename(P("d/f"), P("d/h"))); T(mkdir(P("d/e"), 0755)); list("d"));
    list("d");
    content("d/h");
    int in = T(open(P("d/e"), O_RDONLY));
    CHILD(T(openat(in, "x", O_RDWR | O_CREAT, 0600)); T(rename(P("d"), P("moved"))));
    T(openat(in, "x", O_RDWR | O_CREAT, 0644));
    content("moved/g");
    CHILD(T(ftruncate(fd, 2)); T(dup2(log, fd)); T(write(fd, "5", 1)));
    T(write(fd, "!", 1));
    content("a");
    content("log");
    /* A new file of both sides at a time. */
    for (int n = 0; n < 40; n++) {
        char name[20], got[20];
        snprintf(name, sizeof name, "f%d", n);
        int each = open(P(name), O_RDWR | O_CREAT, 0644);
        write(each, "p", 1);
        pid_t child = fork();
        if (child == 0) {
            write(each, "c", 1);
            _exit(0);
        }
        waitpid(child, NULL, 0);
        write(each, "p", 1);
        if (pread(each, got, 20, 0) != 3 || memcmp(got, "pcp", 3))
            printf("  %d: %.3s\n", n, got);
        close(each);
    }
    pid_t writer = fork();
    if (writer == 0) {
        for (int n = 0; n < 500; n++)
            write(log, "child\n", 6);
        _exit(0);
    }
    for (int n = 0; n < 500; n++)
        write(log, "mother\n", 7);
    ended(writer);
    show("log");
    /* The parent ends first. */
    int ends[2];
    pipe(ends);
    CHILD(if (fork() == 0) { close(ends[0]); usleep(20000); int last = open(P("orphan"), O_CREAT | O_WRONLY, 0644); write(last, "left", 4); write(fd, "&", 1); _exit(0); });
    close(ends[1]);
    T(read(ends[0], b, 1));
    content("orphan");
    content("a");
}

static void vforks(void)
{
    int fd = T(open(P("out"), O_RDWR | O_CREAT | O_CLOEXEC, 0644)), in = T(open(P("in"), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    T(write(fd, "before ", 7));
    T(write(in, "0123456789", 10));
    T(lseek(in, 4, SEEK_SET));
    pid_t child = vfork();
    if (child == 0) {
        dup2(fd, 1);
        execl("/bin/echo", "echo", "of a child", NULL);
        _exit(127);
    }
    ended(child);
    T(lseek(fd, 0, SEEK_CUR));
    T(write(fd, "after", 5));
    child = vfork();
    if (child == 0) {
        dup2(in, 0);
        dup2(fd, 1);
        close(in);
        close(fd);
        execl("/bin/cat", "cat", NULL);
        _exit(127);
    }
    ended(child);
    T(lseek(in, 0, SEEK_CUR));
    fcontent(fd);
    child = vfork();
    if (child == 0)
        _exit(write(fd, "!", 1) == 1 ? 0 : 3);
    ended(child);
    fcontent(fd);
    const char *name = P("from-vfork");
    child = vfork();
    if (child == 0) {
        int mine = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        dup2(mine, 1);
        execl("/bin/echo", "echo", "opened there", NULL);
        _exit(127);
    }
    ended(child);
    content("from-vfork");
    T(open(P("next"), O_RDWR | O_CREAT, 0644));
    child = vfork();
    if (child == 0) {
        execl("/none/such", "x", NULL);
        _exit(errno == ENOENT ? 0 : 4);
    }
    ended(child);
    T(write(fd, "still", 5));
    T(fcntl(fd, F_GETFD));
    fcontent(fd);
}

static void spawned(posix_spawn_file_actions_t *actions, const char *script)
{
    char *args[] = {"sh", "-c", (char *)script, NULL};
    pid_t child = -1;
    fflush(stdout);
    int failed = posix_spawn(&child, "/bin/sh", actions, NULL, args, environ);
    if (failed)
        printf("  not spawned: %s\n", strerrorname_np(failed));
    else
        ended(child);
}

static void spawns(void)
{
    posix_spawn_file_actions_t a;
    make("in", "line one\nline two\n");
    int kept = T(open(P("kept"), O_RDWR | O_CREAT | O_CLOEXEC, 0644)), passed = T(open(P("passed"), O_RDWR | O_CREAT, 0644));
    T(write(passed, "start ", 6));
    posix_spawn_file_actions_init(&a);
    posix_spawn_file_actions_addopen(&a, 0, P("in"), O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&a, 1, P("out"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&a, 1, 2);
    posix_spawn_file_actions_adddup2(&a, kept, 7);
    posix_spawn_file_actions_addclose(&a, passed);
    spawned(&a, "read a; echo \"$a\"; cat; echo err >&2; echo seven >&7; for n in 3 4 5 6 7; do test -e /proc/self/fd/$n && echo $n; done");
    content("out");
    content("kept");
    show("out");
    posix_spawn_file_actions_destroy(&a);
    posix_spawn_file_actions_init(&a);
    posix_spawn_file_actions_addopen(&a, 0, P("none"), O_RDONLY, 0);
    spawned(&a, "true");
    posix_spawn_file_actions_destroy(&a);
    posix_spawn_file_actions_init(&a);
    posix_spawn_file_actions_adddup2(&a, passed, 1);
    posix_spawn_file_actions_addclose(&a, 40);
    spawned(&a, "echo through");
    T(write(passed, "end", 3));
    content("passed");
    posix_spawn_file_actions_destroy(&a);
    T(mkdir(P("d"), 0755));
    make("d/x", "in d\n");
    posix_spawn_file_actions_init(&a);
    posix_spawn_file_actions_addchdir_np(&a, P("d"));
    spawned(&a, "cat x; echo y >y; mkdir z; ls");
    posix_spawn_file_actions_destroy(&a);
    int d = T(open(P("d"), O_RDONLY | O_CLOEXEC));
    posix_spawn_file_actions_init(&a);
    posix_spawn_file_actions_addfchdir_np(&a, d);
    spawned(&a, "rmdir z; cat y; rm x");
    list("d");
    char command[3 * PATH_MAX];
    T(go_there());
    T(system("cat in >system; echo more >>system; wc -c <system; test -e /proc/self/fd/10 || echo no"));
    content("system");
    FILE *p = popen("cat >popen", "w");
    fprintf(p, "to a shell\n");
    T(pclose(p));
    content("popen");
    snprintf(command, sizeof command, "cat %s/popen %s/in", here, here);
    p = popen(command, "r");
    while (fgets(command, sizeof command, p))
        printf("  %s", command);
    T(pclose(p));
}

static void execs(void)
{
    char b[100] = "", command[100];
    int fd = T(open(P("a"), O_RDWR | O_CREAT, 0644)), closed = T(open(P("b"), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    T(write(fd, "0123456789\n", 11));
    T(lseek(fd, 5, SEEK_SET));
    snprintf(command, sizeof command, "cat <&%d; test -e /proc/self/fd/%d || echo closed; echo more >&%d", fd, closed, fd);
    CHILD(execl("/bin/sh", "sh", "-c", command, NULL));
    T(lseek(fd, 0, SEEK_CUR));
    content("a");
    CHILD(write(fd, "x", 1); fcntl(closed, F_SETFD, 0); write(closed, "kept\n", 5);
          snprintf(command, sizeof command, "echo y >&%d; cat /proc/self/fd/%d", closed, closed); execl("/bin/sh", "sh", "-c", command, NULL));
    content("b");
    T(write(closed, "z", 1));
    content("b");
    snprintf(command, sizeof command, "import os; os.write(%d, b'!'); print(os.lseek(%d, 0, 1))", fd, fd);
    CHILD(execl("/usr/bin/python3", "python3", "-c", command, NULL));
    content("a");
    /* A program, written and run. */
    int from = open("/bin/true", O_RDONLY), to = T(open(P("program"), O_WRONLY | O_CREAT, 0755));
    static char image[1 << 20];
    ssize_t len = read(from, image, sizeof image);
    IS(write(to, image, len) == len);
    CHILD(close(to); execl(P("program"), "true", NULL); T(-1));
    T(close(to));
    CHILD(execl(P("program"), "true", NULL); T(-1));
    T(open(P("a"), O_RDONLY));
    make("script", "#!/bin/sh\necho a script; echo $0 | wc -l; cat \"${0%script}a\"\n");
    CHILD(execl(P("script"), "script", NULL); T(-1));
    T(chmod(P("script"), 0755));
    CHILD(execl(P("script"), "script", NULL); T(-1));
    int script = T(open(P("script"), O_RDONLY));
    CHILD(fexecve(script, (char *[]){"x", "y", NULL}, environ); T(-1));
    T(access(P("script"), X_OK));
    T(read(script, b, 9));
    /* A process that goes on as another program has what it had. */
    snprintf(command, sizeof command, "echo last >&%d", fd);
    CHILD(T(write(fd, "q", 1)); T(mkdir(P("d"), 0755)); make("d/f", "x"); execl("/bin/sh", "sh", "-c", command, NULL));
    content("a");
    list("d");
}

static int send_fd(int socket, int fd)
{
    char data = 'd', control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec v = {&data, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    return sendmsg(socket, &m, 0);
}

static int receive_fd(int socket)
{
    int fd = -1;
    char data, control[CMSG_SPACE(sizeof fd)];
    struct iovec v = {&data, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(socket, &m, 0) == 1 && CMSG_FIRSTHDR(&m))
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
    return fd;
}

static void passed(void)
{
    int ends[2], fd = T(open(P("a"), O_RDWR | O_CREAT, 0644));
    T(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    T(write(fd, "first ", 6));
    T(send_fd(ends[0], fd));
    int got = T(receive_fd(ends[1]));
    T(write(got, "second ", 7));
    T(lseek(fd, 0, SEEK_CUR));
    T(write(fd, "third ", 6));
    T(close(fd));
    T(write(got, "fourth ", 7));
    content("a");
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int mine = receive_fd(ends[1]);
        write(mine, "of the child", 12);
        int new = open(P("new"), O_RDWR | O_CREAT, 0644);
        write(new, "from there", 10);
        send_fd(ends[1], new);
        _exit(0);
    }
    fd = open(P("b"), O_RDWR | O_CREAT | O_APPEND, 0644);
    write(fd, "parent, ", 8);
    T(send_fd(ends[0], fd));
    T(close(fd));
    int new = T(receive_fd(ends[0]));
    ended(child);
    content("b");
    T(lseek(new, 0, SEEK_CUR));
    T(write(new, "!", 1));
    content("new");
    int pidfd = T(syscall(SYS_pidfd_open, getpid(), 0));
    int copy = T(syscall(SYS_pidfd_getfd, pidfd, new, 0));
    T(write(copy, "?", 1));
    T(lseek(new, 0, SEEK_CUR));
}

static int log_fd;
static volatile int rings;

static void on_alarm(int number)
{
    (void)number;
    int error = errno;
    if (write(log_fd, "ring\n", 5) == 5)
        rings++;
    errno = error;
}

static void signals(void)
{
    struct sigaction act = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
    char name[40], line[100];
    long written = 0, failed = 0, files = 0;
    T(mkdir(P("d"), 0755));
    log_fd = open(P("log"), O_WRONLY | O_CREAT | O_APPEND, 0644);
    int fd = open(P("main"), O_RDWR | O_CREAT, 0644);
    sigaction(SIGALRM, &act, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    struct timespec begun, now;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    for (now = begun; (now.tv_sec - begun.tv_sec) * 1000000000 + now.tv_nsec - begun.tv_nsec < 1000000000; clock_gettime(CLOCK_MONOTONIC, &now)) {
        int len = snprintf(line, sizeof line, "line %ld\n", written);
        if (write(fd, line, len) == len)
            written++;
        else
            failed++;
        snprintf(name, sizeof name, "d/%ld", files % 50);
        int each = open(P(name), O_RDWR | O_CREAT | O_TRUNC, 0644);
        failed += each < 0 || write(each, name, 3) != 3 || close(each) != 0;
        if (files % 3 == 0)
            failed += unlink(P(name)) != 0;
        files++;
    }
    setitimer(ITIMER_REAL, &never, NULL);
    T(failed);
    fstat(log_fd, &s);
    IS(s.st_size == 5L * rings && rings > 100);
    FILE *f = fopen(P("main"), "r");
    long n = 0, wrong = 0;
    for (; fgets(line, sizeof line, f); n++)
        wrong += atol(line + 5) != n;
    IS(n == written && wrong == 0);
    fclose(f);
    f = fopen(P("log"), "r");
    for (n = 0; fgets(line, sizeof line, f); n++)
        wrong += strcmp(line, "ring\n") != 0;
    IS(n == rings && wrong == 0);
    unlink(P("log"));
    unlink(P("main"));
    for (n = 0; n < 50; n++) {
        snprintf(name, sizeof name, "d/%ld", n);
        unlink(P(name));
    }
    list("d");
}

static sigjmp_buf back;

static void on_jump(int number)
{
    siglongjmp(back, number);
}

static void jumps(void)
{
    static char block[1000];
    struct sigaction act = {.sa_handler = on_jump};
    struct itimerval soon = {{0, 0}, {0, 300}};
    volatile long jumped = 0, done = 0;
    volatile int fd = open(P("a"), O_RDWR | O_CREAT | O_APPEND, 0644);
    sigaction(SIGALRM, &act, NULL);
    memset(block, 'j', sizeof block);
    while (jumped < 300) {
        if (sigsetjmp(back, 1) != 0) {
            jumped++;
            continue;
        }
        soon.it_value.tv_usec = 100 + jumped * 7 % 400;
        setitimer(ITIMER_REAL, &soon, NULL);
        for (;;) {
            write(fd, block, sizeof block);
            done++;
            struct stat each;
            stat(P("a"), &each);
            close(open(P("b"), O_RDWR | O_CREAT, 0644));
            unlink(P("b"));
        }
    }
    fstat(fd, &s);
    IS(s.st_size % 1000 == 0 && s.st_size / 1000 >= done && s.st_size / 1000 <= done + jumped);
    T(write(fd, "end", 3));
    unlink(P("b"));
    make("b", "works");
    content("b");
    T(unlink(P("a")));
}

static volatile long whole;

static void *writes(void *fd)
{
    static char block[4096];
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    for (;;) {
        if (write(*(int *)fd, block, sizeof block) != sizeof block)
            return NULL;
        whole++;
        fsync(*(int *)fd);
        close(open(P("x"), O_RDWR | O_CREAT, 0644));
    }
}

static void cancels(void)
{
    int fd = T(open(P("a"), O_RDWR | O_CREAT, 0644)), cancelled = 0;
    for (int n = 0; n < 50; n++) {
        pthread_t thread;
        void *result;
        pthread_create(&thread, NULL, writes, &fd);
        usleep(500 + 100 * n % 1000);
        pthread_cancel(thread);
        pthread_join(thread, &result);
        cancelled += result == PTHREAD_CANCELED;
    }
    T(cancelled);
    fstat(fd, &s);
    IS(s.st_size % 4096 == 0 && s.st_size >= whole * 4096 && s.st_size <= (whole + 50) * 4096);
    IS(lseek(fd, 0, SEEK_CUR) == s.st_size);
    T(ftruncate(fd, 0));
    T(lseek(fd, 0, SEEK_SET));
    T(write(fd, "works", 5));
    content("a");
    unlink(P("x"));
}

static void as_nobody(void)
{
    int mine = open(P("mine"), O_RDWR);
    T(mine);
    T(open(P("theirs"), O_RDONLY));
    T(open(P("theirs"), O_RDWR));
    T(open(P("new"), O_RDWR | O_CREAT, 0644));
    T(unlink(P("theirs")));
    T(mkdir(P("newdir"), 0755));
    int fd = T(open(P("open/new"), O_RDWR | O_CREAT, 0644));
    T(write(fd, "nobody's", 8));
    fshow(fd);
    T(mkdir(P("open/dir"), 0755));
    show("open/dir");
    T(unlink(P("sticky/f")));
    T(rename(P("sticky/f"), P("open/f")));
    T(open(P("closed/f"), O_RDONLY));
    T(stat(P("closed/f"), &s));
    list("closed");
    T(chmod(P("theirs"), 0777));
    T(chown(P("open/new"), 1, -1));
    T(chmod(P("open/new"), 04755));
    T(write(fd, "+", 1));
    fshow(fd);
    T(utimensat(AT_FDCWD, P("theirs"), NULL, 0));
    T(utimensat(AT_FDCWD, P("public"), NULL, 0));
    T(access(P("theirs"), R_OK));
    T(truncate(P("theirs"), 0));
}

static void users(void)
{
    T(mkdir(P("open"), 0777));
    T(chmod(P("open"), 0777));
    T(mkdir(P("sticky"), 0777));
    T(chmod(P("sticky"), 01777));
    T(mkdir(P("closed"), 0700));
    make("closed/f", "secret");
    make("sticky/f", "x");
    make("theirs", "root's");
    T(chmod(P("theirs"), 0600));
    make("public", "x");
    T(chmod(P("public"), 0666));
    make("mine", "x");
    T(chmod(P("mine"), 0666));
    int fd = T(open(P("theirs"), O_RDWR));
    if (getuid() != 0)
        return;
    CHILD(T(setgroups(0, NULL)); T(setgid(65534)); T(setuid(65534)); T(pwrite(fd, "R", 1, 0)); T(fchmod(fd, 0666)); as_nobody());
    list("open");
    CHILD(T(seteuid(65534)); T(open(P("theirs"), O_RDWR)); T(open(P("open/e"), O_RDWR | O_CREAT, 0600)); T(write(fd, "S", 1)); T(seteuid(0));
          T(open(P("theirs"), O_RDWR)); show("open/e"));
    CHILD(T(setfsuid(65534)); T(open(P("theirs"), O_RDWR)); T(open(P("open/fs"), O_RDWR | O_CREAT, 0600)); T(setfsuid(0)); show("open/fs"));
    CHILD(T(setegid(65534)); T(open(P("g"), O_RDWR | O_CREAT, 0600)); show("g"));
    CHILD(T(chroot(P("open"))); T(chdir("/")); T(open("/new", O_RDONLY)); T(open("/../../theirs", O_RDONLY)); T(mkdir("/in", 0755));
          T(open("/in/f", O_RDWR | O_CREAT, 0644)); T(write(fd, "C", 1)); T(symlink("/in/f", "/s")); T(open("/s", O_RDONLY)));
    list("open");
    list("open/in");
    content("theirs");
    CHILD(T(unshare(CLONE_NEWNS)); T(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL)); T(mount("none", P("sticky"), "tmpfs", 0, NULL));
          make("sticky/hidden", "in memory"); T(unlink(P("sticky/f"))); list("sticky"); T(umount(P("sticky"))); list("sticky");
          T(mount(P("sticky"), P("closed"), NULL, MS_BIND, NULL)); content("closed/f"); make("closed/g", "bound"); content("sticky/g");
          T(rename(P("sticky/g"), P("closed/h"))); T(rename(P("sticky/g"), P("sticky/h"))); T(rmdir(P("closed")));
          T(mount(NULL, P("closed"), NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL)); T(open(P("closed/i"), O_CREAT | O_RDWR, 0644));
          T(unlink(P("closed/h"))); T(open(P("closed/h"), O_RDWR)); T(chmod(P("closed/h"), 0600)); make("sticky/i", "x"); T(umount(P("closed"))));
    list("sticky");
    list("closed");
    T(seteuid(65534));
    T(open(P("theirs"), O_RDWR));
    T(open(P("open/last"), O_RDWR | O_CREAT, 0644));
    T(seteuid(0));
    show("open/last");
    T(open(P("after"), O_RDWR | O_CREAT, 0644));
    show("after");
}

static void closes(void)
{
    int fd = T(open(P("a"), O_RDWR | O_CREAT, 0644)), d = T(open(P("."), O_RDONLY));
    T(write(fd, "kept", 4));
    T(dup2(fd, 50));
    for (int n = 3; n < 1024; n++)
        close(n);
    T(write(50, "x", 1));
    T(fstat(d, &s));
    T(open(P("a"), O_RDWR));
    content("a");
    T(mkdir(P("d"), 0755));
    make("d/f", "x");
    list("d");
    T(dup2(3, 20));
    closefrom(3);
    T(write(20, "x", 1));
    T(open(P("d/g"), O_RDWR | O_CREAT, 0644));
    T(write(3, "y", 1));
    T(dup2(3, 30));
    T(dup2(3, 31));
    T(close_range(30, 40, CLOSE_RANGE_CLOEXEC));
    printf("  %d %d\n", fcntl(30, F_GETFD), fcntl(3, F_GETFD));
    T(write(30, "z", 1));
    T(close_range(3, 3, 0));
    T(write(3, "y", 1));
    T(write(31, "z", 1));
    T(close_range(5, 4, 0));
    T(close_range(0x7fffffff, ~0u, 0));
    T(close_range(3, ~0u, CLOSE_RANGE_UNSHARE));
    T(write(31, "z", 1));
    T(open(P("d/h"), O_RDWR | O_CREAT, 0644));
    T(write(3, "new", 3));
    content("d/g");
    content("d/h");
    CHILD(closefrom(3); make("d/i", "of a child"); T(open(P("d/i"), O_RDONLY)));
    T(write(3, "er", 2));
    content("d/h");
    CHILD(close_range(3, ~0u, 0); execl("/bin/sh", "sh", "-c", "ls /proc/self/fd | wc -l", NULL));
    T(dup2(3, 1023));
    T(close(3));
    T(write(1023, "!", 1));
    content("d/h");
    for (int n = 1023; n > 2; n--)
        close(n);
    T(rename(P("d"), P("e")));
    list("e");
}

const test_case process_cases[] = {{"forks", forks}, {"vforks", vforks}, {"spawns", spawns}, {"execs", execs}, {"passed", passed},
    {"signals", signals}, {"jumps", jumps}, {"cancels", cancels}, {"users", users}, {"closes", closes}, {NULL, NULL}};
