/* Attributes, directories, and what opens files in other ways. */
#include "same.h"
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <utime.h>

static struct stat s;

static void times_of(const char *name)
{
    if (lstat(P(name), &s) == 0)
        printf("  %s: %ld.%09ld %ld.%09ld\n", name, (long)s.st_atim.tv_sec, s.st_atim.tv_nsec, (long)s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
}

static void attributes(void)
{
    struct timespec given[2] = {{1000000000, 123456789}, {1100000000, 987654321}}, now[2] = {{0, UTIME_NOW}, {0, UTIME_NOW}},
                    omit[2] = {{0, UTIME_OMIT}, {0, UTIME_OMIT}}, mixed[2] = {{5, 6}, {0, UTIME_OMIT}}, bad[2] = {{0, 2000000000}, {0, 0}},
                    early[2] = {{-100, 5}, {-1, 999999999}}, far[2] = {{5000000000, 1}, {20000000000, 1}};
    int fd = T(open(P("a"), O_RDWR | O_CREAT, 0644));
    T(fchmod(fd, 04711));
    show("a");
    T(chmod(P("a"), 0600));
    fshow(fd);
    T(fchmodat(AT_FDCWD, P("a"), 0, 0));
    T(write(fd, "x", 1));
    show("a");
    T(fchown(fd, getuid(), getgid()));
    T(chown(P("a"), -1, -1));
    T(chown(P("a"), getuid(), -1));
    T(chown(P("none"), 0, 0));
    T(chmod(P("none"), 0));
    T(utimensat(AT_FDCWD, P("a"), given, 0));
    times_of("a");
    T(futimens(fd, mixed));
    times_of("a");
    T(futimens(fd, omit));
    times_of("a");
    T(utimensat(AT_FDCWD, P("a"), bad, 0));
    T(futimens(fd, early));
    times_of("a");
    T(futimens(fd, far));
    times_of("a");
    T(utimensat(fd, NULL, given, 0));
    times_of("a");
    T(utimensat(AT_FDCWD, P("none"), given, 0));
    T(utimensat(AT_FDCWD, NULL, given, 0));
    time_t before = time(NULL);
    T(futimens(fd, now));
    fstat(fd, &s);
    IS(s.st_mtime >= before - 1 && s.st_mtime <= time(NULL) + 1);
    T(futimens(fd, given));
    T(futimens(fd, NULL));
    fstat(fd, &s);
    IS(s.st_mtime >= before - 1 && s.st_atime >= before - 1);
    T(utime(P("a"), &(struct utimbuf){11, 22}));
    times_of("a");
    T(utimes(P("a"), (struct timeval[]){{33, 44}, {55, 66}}));
    times_of("a");
    T(utimes(P("a"), (struct timeval[]){{33, 1000000}, {55, 66}}));
    /* What is set stays until something changes. */
    T(futimens(fd, given));
    T(pread(fd, &(char){0}, 1, 0));
    T(write(fd, "", 0));
    T(close(fd));
    lstat(P("a"), &s);
    IS(s.st_mtim.tv_nsec == 987654321);
    fd = T(open(P("a"), O_RDWR));
    T(rename(P("a"), P("b")));
    T(link(P("b"), P("c")));
    T(fchmod(fd, 0644));
    fstat(fd, &s);
    IS(s.st_mtim.tv_nsec == 987654321 && s.st_ctime >= before - 1);
    T(write(fd, "now", 3));
    fstat(fd, &s);
    IS(s.st_mtime >= before - 1);
    T(futimens(fd, given));
    T(ftruncate(fd, 1));
    fstat(fd, &s);
    IS(s.st_mtime >= before - 1);
    T(mkdir(P("d"), 0755));
    T(utimensat(AT_FDCWD, P("d"), given, 0));
    times_of("d");
    make("d/f", "x");
    lstat(P("d"), &s);
    IS(s.st_mtime >= before - 1);
    T(utimensat(AT_FDCWD, P("d"), given, 0));
    T(unlink(P("d/f")));
    lstat(P("d"), &s);
    IS(s.st_mtime >= before - 1);
    T(chmod(P("d"), 01777));
    T(chmod(P("d"), 02750));
    make("d/g", "x");
    T(mkdir(P("d/h"), 0755));
    show("d");
    show("d/g");
    show("d/h");
    if (getuid() == 0) {
        T(chown(P("d"), 5, 6));
        make("d/i", "x");
        show("d/i");
        T(mkdir(P("d/j"), 0755));
        show("d/j");
        T(chmod(P("d/g"), 06755));
        T(chown(P("d/g"), 7, 8));
        show("d/g");
    }
    for (int n = 0; n < 2; n++) {
        char name[] = "n0";
        name[1] += n;
        fd = open(P(name), O_RDWR | O_CREAT, 0644);
        T(write(fd, "xyz", 3));
        T(futimens(fd, given));
        if (n)
            T(fchmod(fd, 0400));
        T(close(fd));
        times_of(name);
        show(name);
    }
}

static void stats(void)
{
    struct statx x;
    make("a", "12345");
    T(symlink("a", P("l")));
    T(mkdir(P("d"), 0700));
    T(stat(P("a"), &s) ?: (long)s.st_size);
    T(lstat(P("l"), &s) ?: (long)s.st_size);
    T(stat(P("l"), &s) ?: (long)s.st_size);
    printf("  %ld\n", (long)s.st_blksize);
    T(statx(AT_FDCWD, P("a"), 0, STATX_BASIC_STATS | STATX_BTIME, &x));
    printf("  %x %o %u %ld %x\n", x.stx_mask & 0xfff, x.stx_mode, x.stx_nlink, (long)x.stx_size, x.stx_blksize);
    struct stat again;
    stat(P("a"), &again);
    IS(again.st_ino == x.stx_ino && again.st_dev == makedev(x.stx_dev_major, x.stx_dev_minor));
    IS(again.st_mtim.tv_sec == x.stx_mtime.tv_sec && again.st_mtim.tv_nsec == x.stx_mtime.tv_nsec);
    T(statx(AT_FDCWD, P("l"), AT_SYMLINK_NOFOLLOW, STATX_SIZE, &x) ?: (long)x.stx_size);
    T(statx(AT_FDCWD, P("a"), AT_STATX_FORCE_SYNC, STATX_ALL, &x) ?: (long)x.stx_size);
    T(statx(AT_FDCWD, P("a"), AT_STATX_DONT_SYNC, STATX_ALL, &x) ?: (long)x.stx_size);
    T(statx(AT_FDCWD, P("a"), AT_STATX_DONT_SYNC | AT_STATX_FORCE_SYNC, STATX_ALL, &x));
    T(statx(AT_FDCWD, P("a"), 0, 0x80000000, &x));
    T(statx(AT_FDCWD, P("none"), 0, STATX_ALL, &x));
    int fd = T(open(P("a"), O_RDWR | O_APPEND));
    T(statx(fd, "", AT_EMPTY_PATH, STATX_ALL, &x) ?: (long)x.stx_size);
    T(write(fd, "678", 3));
    T(statx(fd, "", AT_EMPTY_PATH, STATX_ALL, &x) ?: (long)x.stx_size);
    T(stat(P("a"), &s) ?: (long)s.st_size);
    T(access(P("a"), F_OK));
    T(access(P("a"), R_OK | W_OK));
    T(access(P("a"), X_OK));
    T(access(P("d"), R_OK | W_OK | X_OK));
    T(access(P("none"), F_OK));
    T(access(P("a"), 99));
    T(access(P("l"), F_OK));
    T(unlink(P("a")));
    T(access(P("l"), F_OK));
    T(faccessat(AT_FDCWD, P("l"), F_OK, AT_SYMLINK_NOFOLLOW));
    T(faccessat(AT_FDCWD, P("d"), W_OK, AT_EACCESS));
    T(faccessat(fd, "", R_OK, AT_EMPTY_PATH));
    T(eaccess(P("d"), R_OK));
    /* One file has one number, however it is asked for. */
    int d = T(open(P("d"), O_RDONLY));
    T(openat(d, "f", O_CREAT | O_RDWR, 0644));
    fstatat(d, "f", &s, 0);
    T(rename(P("d/f"), P("g")));
    stat(P("g"), &again);
    IS(s.st_ino == again.st_ino);
    fstat(d, &s);
    stat(P("d"), &again);
    IS(s.st_ino == again.st_ino && s.st_nlink == 2);
    T(mkdir(P("d/e"), 0755));
    fstat(d, &s);
    T(s.st_nlink);
    stat(P("d/e/.."), &again);
    IS(s.st_ino == again.st_ino);
}

/* A directory that is read again, after what may have changed there. (The kernel keeps the old number above a directory that was moved.) */
static void read_again(const char *name, const char *above)
{
    struct stat s = {0};
    int others = 0;
    if (above)
        T(stat(P(above), &s));
    DIR *dir = opendir(P(name));
    for (struct dirent *e; (e = readdir(dir));) {
        if (above && !strcmp(e->d_name, ".."))
            IS(e->d_ino == s.st_ino);
        others += e->d_name[0] != '.';
    }
    T(others);
    T(closedir(dir));
}

/* Directories are opened in ways that only files may be. */
static void wrong_opens(void)
{
    T(mkdir(P("a"), 0755));
    T(mkdir(P("a/b"), 0755));
    make("a/b/f", "x");
    static const char *const names[] = {"a", "a/b", "a/b/", "a/b/f", "a/none"};
    static const int flags[] = {O_RDONLY | O_TRUNC, O_RDONLY | O_TRUNC | O_DIRECTORY, O_RDONLY | O_TRUNC | O_PATH,
        O_RDWR, O_WRONLY | O_PATH, O_RDONLY | O_NOFOLLOW, O_RDONLY | O_CREAT, O_RDONLY | O_CREAT | O_EXCL};
    for (int n = 0; n < 5; n++)
        for (int k = 0; k < 8; k++) {
            int fd = T(open(P(names[n]), flags[k], 0644));
            if (fd >= 0)
                close(fd);
            if (n == 3)
                show("a/b/f");
            if (n == 4)
                unlink(P(names[n]));
        }
    T(rmdir(P("a/b/f/x")));
    T(mkdir(P("a/b"), 0700));
    T(mkdir(P("a/b/f"), 0700));
    T(mkdir(P("a/b/f/x"), 0700));
}

static void listings_again(void)
{
    T(mkdir(P("a"), 0755));
    T(mkdir(P("b"), 0755));
    T(mkdir(P("a/x"), 0755));
    make("a/x/f", "x");
    read_again("a/x", "a");
    read_again("a/x", "a");
    make("a/x/g", "x");
    read_again("a/x", "a");
    T(rename(P("a/x/g"), P("a/x/h")));
    T(rename(P("a/x/f"), P("b/f")));
    read_again("a/x", "a");
    T(link(P("b/f"), P("a/x/f")));
    read_again("a/x", "a");
    T(rename(P("a/x"), P("b/x")));
    read_again("b/x", NULL);
    T(mkdir(P("b/x/d"), 0755));
    T(symlink("f", P("b/x/l")));
    read_again("b/x", NULL);
    T(rmdir(P("b/x/d")));
    T(unlink(P("b/x/l")));
    read_again("b/x", NULL);
    CHILD(make("b/x/child", "x"));
    read_again("b/x", NULL);
}

static void listings(void)
{
    char name[30];
    T(mkdir(P("d"), 0755));
    for (int n = 0; n < 3000; n++) {
        snprintf(name, sizeof name, "d/name-%d", n);
        close(open(P(name), O_CREAT | O_WRONLY, 0644));
    }
    static char seen[3000];
    int all = 0, twice = 0, others = 0;
    DIR *dir = opendir(P("d"));
    for (struct dirent *e; (e = readdir(dir));) {
        int n;
        if (sscanf(e->d_name, "name-%d", &n) != 1) {
            others++;
            continue;
        }
        twice += seen[n]++;
        all++;
        if (unlinkat(dirfd(dir), e->d_name, 0) != 0)
            puts("not removed");
    }
    printf("  %d names, %d twice, %d others\n", all, twice, others);
    T(closedir(dir));
    list("d");
    T(rmdir(P("d")));
    T(mkdir(P("e"), 0755));
    for (int n = 0; n < 100; n++) {
        snprintf(name, sizeof name, "e/%d", n);
        make(name, "x");
    }
    dir = opendir(P("e"));
    char third[300] = "";
    long at = -1;
    for (int n = 0; n < 50; n++) {
        struct dirent *e = readdir(dir);
        if (n == 9)
            at = telldir(dir);
        if (n == 10)
            strcpy(third, e->d_name);
    }
    seekdir(dir, at);
    IS(!strcmp(readdir(dir)->d_name, third));
    rewinddir(dir);
    for (all = 0; readdir(dir); all++)
        ;
    T(all);
    T(readdir(dir) != NULL);
    make("e/new", "x");
    rewinddir(dir);
    for (all = 0; readdir(dir); all++)
        ;
    T(all);
    int again = T(dup(dirfd(dir)));
    DIR *other = fdopendir(again);
    rewinddir(other);
    for (all = 0; readdir(other); all++)
        ;
    T(all);
    closedir(other);
    closedir(dir);
    /* Of each name that is there all the time a listing tells once. */
    dir = opendir(P("e"));
    all = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        if (all++ == 3)
            for (int n = 0; n < 50; n++) {
                snprintf(name, sizeof name, "e/more%d", n);
                make(name, "x");
            }
        if (!strncmp(e->d_name, "more", 4))
            all--;
    }
    T(all);
    closedir(dir);
    T(mkdir(P("e/d"), 0755));
    T(symlink("x", P("e/l")));
    T(mkfifo(P("e/p"), 0644));
    for (int n = 5; n < 100; n++) {
        snprintf(name, sizeof name, "e/%d", n);
        unlink(P(name));
    }
    list("e");
    T(opendir(P("e/1")) != NULL);
    T(opendir(P("none")) != NULL);
    int fd = T(open(P("e/1"), O_RDONLY));
    T(fdopendir(fd) != NULL);
    fd = T(open(P("e"), O_RDONLY));
    char b[4096];
    T(syscall(SYS_getdents64, fd, b, 1));
    T(syscall(SYS_getdents64, fd, (void *)8, 4096));
    T(syscall(SYS_getdents64, fd, b, sizeof b) > 0);
    T(syscall(SYS_getdents64, 99, b, sizeof b));
    CHILD(list("e"); make("e/child", "x"); T(unlink(P("e/new"))));
    list("e");
}

static void paths_only(void)
{
    char b[50], path[50];
    make("a", "text");
    T(mkdir(P("d"), 0755));
    T(symlink("a", P("l")));
    int p = T(open(P("a"), O_PATH)), d = T(open(P("d"), O_PATH)), l = T(open(P("l"), O_PATH | O_NOFOLLOW));
    T(read(p, b, 1));
    T(write(p, b, 1));
    T(fchmod(p, 0600));
    T(ftruncate(p, 0));
    T(lseek(p, 0, SEEK_SET));
    T(fsync(p));
    T(fsetxattr(p, "user.x", "x", 1, 0));
    fshow(p);
    fshow(l);
    T(readlinkat(l, "", b, 50));
    T(fstatat(p, "", &s, AT_EMPTY_PATH) ?: (long)s.st_size);
    T(openat(d, "x", O_CREAT | O_RDWR, 0644));
    T(mkdirat(d, "y", 0755));
    T(fchdir(d));
    T(stat("x", &s));
    T(go_there());
    T(fcntl(p, F_GETFL));
    T(linkat(p, "", AT_FDCWD, "from-path", AT_EMPTY_PATH));
    snprintf(path, sizeof path, "/proc/self/fd/%d", p);
    int re = T(open(path, O_RDWR));
    T(write(re, "TE", 2));
    content("a");
    T(chmod(path, 0600));
    show("a");
    T(truncate(path, 3));
    int fd = T(open(P("n"), O_CREAT | O_WRONLY, 0200));
    T(write(fd, "new file", 8));
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    re = T(open(path, O_RDONLY));
    T(read(re, b, 50));
    T(lseek(fd, 0, SEEK_CUR));
    snprintf(path, sizeof path, "/dev/fd/%d", fd);
    re = T(open(path, O_WRONLY | O_APPEND));
    T(write(re, "!", 1));
    content("n");
    snprintf(path, sizeof path, "/proc/%d/fd/%d", getpid(), fd);
    T(stat(path, &s) ?: (long)s.st_size);
    T(close(p));
    T(open("/proc/self/cwd/n", O_RDONLY));
    list("d");
}

static void nameless(void)
{
    char path[50];
    int fd = T(open(P("."), O_TMPFILE | O_RDWR, 0640));
    T(write(fd, "without a name", 14));
    fshow(fd);
    list(".");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    T(linkat(AT_FDCWD, path, AT_FDCWD, P("named"), AT_SYMLINK_FOLLOW));
    fshow(fd);
    content("named");
    T(write(fd, ", now with", 10));
    content("named");
    T(linkat(fd, "", AT_FDCWD, P("named"), AT_EMPTY_PATH));
    int only = T(open(P("."), O_TMPFILE | O_WRONLY | O_EXCL, 0600));
    T(write(only, "x", 1));
    snprintf(path, sizeof path, "/proc/self/fd/%d", only);
    T(linkat(AT_FDCWD, path, AT_FDCWD, P("not"), AT_SYMLINK_FOLLOW));
    T(open(P("."), O_TMPFILE | O_RDONLY, 0600));
    T(open(P("named"), O_TMPFILE | O_RDWR, 0600));
    T(open(P("none"), O_TMPFILE | O_RDWR, 0600));
    T(mkdir(P("d"), 0755));
    fd = T(open(P("d"), O_TMPFILE | O_RDWR, 0600));
    T(rmdir(P("d")));
    T(write(fd, "y", 1));
    list(".");
}

static void special_files(void)
{
    char b[20];
    T(mkfifo(P("fifo"), 0644));
    T(mkfifo(P("fifo"), 0644));
    T(open(P("fifo"), O_WRONLY | O_NONBLOCK));
    int r = T(open(P("fifo"), O_RDONLY | O_NONBLOCK)), w = T(open(P("fifo"), O_WRONLY | O_NONBLOCK));
    T(write(w, "through", 7));
    T(read(r, b, 20));
    T(read(r, b, 20));
    T(lseek(r, 0, SEEK_CUR));
    T(close(w));
    T(read(r, b, 20));
    fshow(r);
    T(close(r));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int c = open(P("fifo"), O_WRONLY);
        (void)!write(c, "child", 5);
        _exit(0);
    }
    r = open(P("fifo"), O_RDONLY);
    T(read(r, b, 5));
    ended(child);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    T(go_there());
    strcpy(address.sun_path, "socket");
    int listening = T(socket(AF_UNIX, SOCK_STREAM, 0)), to = T(socket(AF_UNIX, SOCK_STREAM, 0));
    T(bind(listening, (struct sockaddr *)&address, sizeof address));
    T(listen(listening, 1));
    T(connect(to, (struct sockaddr *)&address, sizeof address));
    T(bind(to, (struct sockaddr *)&address, sizeof address));
    T(open(P("socket"), O_RDWR));
    show("socket");
    T(rename(P("socket"), P("socket2")));
    strcpy(address.sun_path, "socket2");
    int again = T(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0));
    T(connect(again, (struct sockaddr *)&address, sizeof address));
    T(unlink(P("socket2")));
    if (getuid() == 0) {
        T(mknod(P("null"), S_IFCHR | 0666, makedev(1, 3)));
        show("null");
        T(mknod(P("zero"), S_IFCHR | 0600, makedev(1, 5)));
        int z = T(open(P("zero"), O_RDONLY));
        T(read(z, b, 20));
    }
    T(mknod(P("file"), S_IFREG | 0600, 0));
    int f = T(open(P("file"), O_RDWR));
    T(write(f, "x", 1));
    T(mknod(P("dir"), S_IFDIR | 0600, 0));
    list(".");
}

const test_case tree_cases[] = {{"attributes", attributes}, {"stats", stats}, {"listings", listings}, {"listings_again", listings_again}, {"wrong_opens", wrong_opens}, {"paths_only", paths_only},
    {"nameless", nameless}, {"special_files", special_files}, {NULL, NULL}};
