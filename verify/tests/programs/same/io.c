/* Reading and writing, positions, descriptors. */
#include "same.h"
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/vfs.h>

static char big[3 << 20];

static void fill(unsigned seed, size_t len)
{
    for (size_t n = 0; n < len; n++) {
        seed = seed * 1103515245 + 12345;
        big[n] = seed >> 16;
    }
}

static void basic(void)
{
    char b[100] = "";
    int fd = T(open(P("a"), O_RDWR | O_CREAT | O_EXCL, 0640));
    T(write(fd, "hello, world", 12));
    T(lseek(fd, 0, SEEK_CUR));
    T(read(fd, b, 10));
    T(lseek(fd, 3, SEEK_SET));
    T(read(fd, b, 4));
    printf("  %.4s\n", b);
    T(pwrite(fd, "XYZ", 3, 20));
    T(pread(fd, b, 100, 10));
    T(pread(fd, b, 100, 23));
    T(pread(fd, b, 100, 1000));
    T(pread(fd, b, 1, -1));
    T(pwrite(fd, b, 1, -1));
    T(lseek(fd, 0, SEEK_CUR));
    struct iovec v[3] = {{"one", 3}, {"", 0}, {"three", 5}};
    T(writev(fd, v, 3));
    T(writev(fd, v, 0));
    T(writev(fd, v, -1));
    T(writev(fd, v, 1025));
    T(pwritev(fd, v, 3, 40));
    T(pwritev2(fd, v, 1, -1, 0));
    T(pwritev2(fd, v, 3, 0, RWF_APPEND));
    T(pwritev2(fd, v, 3, 2, RWF_DSYNC));
    T(pwritev2(fd, v, 3, 2, 0x1000));
    struct iovec r[2] = {{b, 7}, {b + 50, 7}};
    T(lseek(fd, 0, SEEK_SET));
    T(readv(fd, r, 2));
    printf("  %.7s %.7s\n", b, b + 50);
    T(preadv(fd, r, 2, 30));
    T(preadv2(fd, r, 2, -1, 0));
    T(lseek(fd, 0, SEEK_CUR));
    T(fdatasync(fd));
    T(fsync(fd));
    fshow(fd);
    T(close(fd));
    T(close(fd));
    T(open(P("a"), O_RDWR | O_CREAT | O_EXCL, 0640));
    fd = T(open(P("a"), O_RDWR));
    T(write(fd, "over", 4));
    content("a");
    int other = T(open(P("a"), O_WRONLY | O_TRUNC));
    T(write(fd, "after", 5));
    fshow(other);
    content("a");
    T(creat(P("a"), 0600));
    show("a");
    fd = T(open(P("b"), O_CREAT | O_WRONLY, 0444));
    T(write(fd, "read only", 9));
    show("b");
    content("b");
}

static void append(void)
{
    char b[10];
    int one = T(open(P("a"), O_RDWR | O_CREAT | O_APPEND, 0644)), two = T(open(P("a"), O_WRONLY | O_APPEND)), three = T(open(P("a"), O_RDWR));
    T(write(one, "one ", 4));
    T(write(two, "two ", 4));
    T(write(three, "T", 1));
    T(write(one, "one ", 4));
    T(lseek(one, 0, SEEK_CUR));
    T(lseek(two, 0, SEEK_CUR));
    T(pwrite(one, "end", 3, 0));
    T(lseek(one, 0, SEEK_CUR));
    T(lseek(one, 0, SEEK_SET));
    T(read(one, b, 3));
    T(write(one, "!", 1));
    T(lseek(one, 0, SEEK_CUR));
    content("a");
    printf("  flags %o %o %o\n", fcntl(one, F_GETFL), fcntl(two, F_GETFL), fcntl(three, F_GETFL));
    T(fcntl(three, F_SETFL, O_APPEND));
    T(write(three, "appended", 8));
    T(fcntl(three, F_SETFL, O_NONBLOCK | O_RDONLY));
    printf("  flags %o\n", fcntl(three, F_GETFL));
    T(lseek(three, 1, SEEK_SET));
    T(write(three, "in front", 8));
    T(fcntl(one, F_SETFL, 0));
    T(write(one, "?", 1));
    T(ftruncate(two, 4));
    T(write(two, "two", 3));
    int again = dup(two);
    T(fcntl(again, F_SETFL, 0));
    T(lseek(two, 0, SEEK_SET));
    T(write(two, "both", 4));
    content("a");
    CHILD(int fd = open(P("a"), O_WRONLY | O_APPEND); T(write(fd, "child", 5)));
    T(fcntl(two, F_SETFL, O_APPEND));
    T(write(two, "two", 3));
    content("a");
}

static void truncates(void)
{
    int fd = T(open(P("a"), O_RDWR | O_CREAT, 0644));
    fill(1, 20000);
    T(write(fd, big, 20000));
    T(ftruncate(fd, 10001));
    T(ftruncate(fd, 30000));
    fcontent(fd);
    T(truncate(P("a"), 5));
    fshow(fd);
    T(lseek(fd, 0, SEEK_CUR));
    T(write(fd, "x", 1));
    fcontent(fd);
    T(ftruncate(fd, -1));
    T(truncate(P("a"), -1));
    T(truncate(P("none"), 1));
    T(truncate(P("."), 1));
    T(truncate(P("a/b"), 1));
    int r = T(open(P("a"), O_RDONLY));
    T(ftruncate(r, 1));
    T(open(P("a"), O_RDONLY | O_TRUNC));
    fshow(fd);
    T(ftruncate(fd, 1L << 40));
    fshow(fd);
    T(pwrite(fd, "end", 3, (1L << 40) - 3));
    T(ftruncate(fd, 0));
    T(ftruncate(fd, INT64_MAX));
    T(pwrite(fd, "x", 1, INT64_MAX - 1));
    T(pwrite(fd, "x", 1, 1L << 44));
    fshow(fd);
    T(ftruncate(99, 0));
}

static void seeks(void)
{
    int fd = T(open(P("a"), O_RDWR | O_CREAT, 0644));
    T(lseek(fd, 0, SEEK_DATA));
    T(lseek(fd, 0, SEEK_HOLE));
    fill(2, 100000);
    T(write(fd, big, 100000));
    T(lseek(fd, 0, SEEK_END));
    T(lseek(fd, -10, SEEK_END));
    T(lseek(fd, 10, SEEK_END));
    T(lseek(fd, -200000, SEEK_END));
    T(lseek(fd, 0, SEEK_CUR));
    T(lseek(fd, -1, SEEK_SET));
    T(lseek(fd, 0, SEEK_DATA));
    T(lseek(fd, 50, SEEK_DATA));
    T(lseek(fd, 0, SEEK_HOLE));
    T(lseek(fd, 99999, SEEK_HOLE));
    T(lseek(fd, 100000, SEEK_HOLE));
    T(lseek(fd, 100000, SEEK_DATA));
    T(lseek(fd, 0, 7));
    T(lseek(fd, INT64_MAX, SEEK_SET));
    T(lseek(fd, INT64_MAX, SEEK_CUR));
    T(lseek(fd, 200000, SEEK_SET));
    T(read(fd, big, 10));
    fshow(fd);
    T(write(fd, "far", 3));
    fcontent(fd);
    int dir = T(open(P("."), O_RDONLY));
    T(lseek(dir, 0, SEEK_CUR));
    T(lseek(dir, -1, SEEK_SET));
    T(lseek(99, 0, SEEK_SET));
}

static void wrong(void)
{
    char b[10];
    make("a", "text");
    int r = T(open(P("a"), O_RDONLY)), w = T(open(P("a"), O_WRONLY)), rw = T(open(P("a"), O_RDWR)), d = T(open(P("."), O_RDONLY | O_DIRECTORY));
    T(write(r, "x", 1));
    T(pwrite(r, "x", 1, 0));
    T(write(r, "x", 0));
    T(read(w, b, 1));
    T(pread(w, b, 1, 0));
    T(read(w, b, 0));
    T(read(d, b, 1));
    T(write(d, b, 1));
    T(pread(d, b, 1, 0));
    T(ftruncate(d, 1));
    T(write(rw, NULL, 0));
    T(write(rw, NULL, 5));
    T(read(rw, NULL, 5));
    T(read(rw, NULL, 0));
    T(pread(rw, (void *)8, 4, 0));
    T(pwrite(rw, (void *)8, 4, 0));
    T(writev(rw, NULL, 1));
    struct iovec v[2] = {{NULL, 5}, {b, 1}};
    T(readv(rw, v, 2));
    T(lseek(rw, 0, SEEK_CUR));
    T(fstat(rw, (struct stat *)8));
    T(stat(P("a"), (struct stat *)8));
    T(open((char *)8, O_RDONLY));
    T(mkdir((char *)8, 0755));
    T(unlink((char *)8));
    T(rename(P("a"), (char *)8));
    T(readlink(P("a"), (char *)8, 5));
    T(open("", O_RDONLY));
    T(stat("", &(struct stat){0}));
    T(mkdir("", 0755));
    T(unlink(""));
    T(rmdir(""));
    T(rename("", P("b")));
    T(rename(P("a"), ""));
    T(chdir(""));
    T(open(P("a"), O_RDONLY | O_DIRECTORY));
    T(open(P("."), O_WRONLY));
    T(open(P("."), O_RDWR));
    T(open(P("."), O_RDONLY | O_CREAT, 0644));
    T(open(P("n"), O_RDONLY | O_CREAT | O_DIRECTORY, 0644));
    T(open(P("none"), O_RDWR));
    T(open(P("none/a"), O_RDWR | O_CREAT, 0644));
    T(open(P("a/b"), O_RDWR | O_CREAT, 0644));
    int odd = T(open(P("a"), O_WRONLY | O_RDWR));
    T(read(odd, b, 1));
    T(write(odd, b, 1));
    char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(pages + 4096, 4096);
    memset(pages, 'p', 4096);
    int new = T(open(P("new"), O_RDWR | O_CREAT, 0644));
    T(write(new, pages + 4096, 10));
    fshow(new);
    fill(9, 8192);
    T(write(new, big, 8192));
    T(pread(new, pages + 4096, 100, 0));
    T(write(-1, "x", 1));
    T(fsync(99));
    T(fchmod(99, 0600));
    fshow(new);
}

static void large(void)
{
    static char back[sizeof big];
    int fd = T(open(P("a"), O_RDWR | O_CREAT, 0644));
    fill(3, sizeof big);
    T(write(fd, big, sizeof big));
    T(pread(fd, back, sizeof back, 0));
    IS(!memcmp(big, back, sizeof big));
    T(pwrite(fd, big, 1 << 20, 777777));
    memmove(back + 777777, big, 1 << 20);
    T(pread(fd, big, sizeof big, 0));
    IS(!memcmp(big, back, sizeof big));
    T(pwrite(fd, "far", 3, 5L << 30));
    T(pread(fd, big, 10, (5L << 30) - 2));
    fshow(fd);
    for (int n = 0; n < 2000; n++)
        if (pwrite(fd, big + n, 1 + n % 50, (n * 7919) % 1000000) != 1 + n % 50)
            puts("short");
    T(ftruncate(fd, 1000100));
    fcontent(fd);
    int bytes = T(open(P("bytes"), O_RDWR | O_CREAT | O_APPEND, 0644));
    for (int n = 0; n < 20000; n++)
        if (write(bytes, &"0123456789"[n % 10], 1) != 1)
            puts("short");
    fcontent(bytes);
}

static void duplicates(void)
{
    char b[10];
    int fd = T(open(P("a"), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    int two = T(dup(fd)), three = T(fcntl(fd, F_DUPFD, 20)), four = T(fcntl(fd, F_DUPFD_CLOEXEC, 20)), five = T(dup3(fd, 30, O_CLOEXEC));
    T(write(fd, "0123456789", 10));
    T(lseek(two, 2, SEEK_SET));
    T(read(three, b, 3));
    T(lseek(five, 0, SEEK_CUR));
    printf("  %d %d %d %d %d\n", fcntl(fd, F_GETFD), fcntl(two, F_GETFD), fcntl(three, F_GETFD), fcntl(four, F_GETFD), fcntl(five, F_GETFD));
    T(close(fd));
    T(write(five, "abc", 3));
    T(close(two));
    T(close(three));
    T(lseek(four, 0, SEEK_CUR));
    int new = T(open(P("b"), O_RDWR | O_CREAT, 0644));
    T(dup2(new, five));
    T(write(five, "to b", 4));
    T(write(four, "to a", 4));
    T(dup2(four, four));
    T(dup3(four, four, 0));
    T(dup2(99, new));
    T(dup2(99, 99));
    T(dup2(four, -1));
    T(dup2(four, 1 << 30));
    T(fcntl(four, F_DUPFD, 1 << 30));
    T(fcntl(four, F_DUPFD, -1));
    T(dup3(four, 9, 7));
    T(dup(99));
    T(dup2(four, 900));
    T(close(four));
    T(write(900, "!", 1));
    T(fcntl(900, F_SETFD, FD_CLOEXEC));
    T(fcntl(900, F_GETFD));
    content("a");
    content("b");
    T(dup2(900, new));
    T(write(new, "+", 1));
    T(write(five, "+", 1));
    content("a");
    content("b");
    int null = T(open("/dev/null", O_WRONLY));
    T(dup2(null, new));
    T(write(new, "lost", 4));
    T(dup2(900, null));
    T(write(null, "found", 5));
    content("a");
    int saved = T(dup(0));
    T(close(0));
    T(open(P("b"), O_RDONLY));
    T(read(0, b, 10));
    T(dup2(saved, 0));
    T(close(saved));
}

static void numbers(void)
{
    int fds[300];
    for (int n = 0; n < 300; n++) {
        char name[20];
        snprintf(name, sizeof name, "f%d", n);
        fds[n] = open(P(name), O_RDWR | O_CREAT, 0644);
        if (fds[n] != 3 + n)
            printf("  %d is %d\n", n, fds[n]);
    }
    T(close(fds[100]));
    T(close(fds[50]));
    T(open(P("f1"), O_RDONLY));
    T(mkdir(P("d"), 0755));
    T(open(P("d"), O_RDONLY));
    T(dup(fds[7]));
    int ends[2];
    T(close(fds[3]));
    T(pipe(ends));
    printf("  %d %d\n", ends[0], ends[1]);
    for (int n = 0; n < 300; n++)
        close(fds[n]);
    T(open(P("f2"), O_RDONLY));
    DIR *dir = opendir(P("d"));
    T(dirfd(dir));
    T(openat(dirfd(dir), "x", O_CREAT | O_WRONLY, 0600));
    closedir(dir);
    T(open(P("f2"), O_RDONLY));
    FILE *f = fopen(P("f2"), "r");
    T(fileno(f));
}

static volatile int exceeded;

static void on_exceeded(int number)
{
    exceeded += number == SIGXFSZ;
}

static void limits(void)
{
    int fd = T(open(P("a"), O_RDWR | O_CREAT, 0644));
    T(write(fd, "before", 6));
    struct rlimit files = {20, 40}, size = {10000, RLIM_INFINITY};
    T(setrlimit(RLIMIT_NOFILE, &files));
    T(dup2(fd, 19));
    T(dup2(fd, 20));
    T(fcntl(fd, F_DUPFD, 20));
    for (int n = 4; n < 20; n++)
        T(open(P("a"), O_RDONLY));
    T(open(P("none"), O_RDONLY));
    T(open(P("new"), O_CREAT | O_WRONLY, 0644));
    T(dup(fd));
    show("new");
    T(close(10));
    T(open(P("new"), O_CREAT | O_WRONLY, 0644));
    signal(SIGXFSZ, on_exceeded);
    fill(4, 20000);
    T(setrlimit(RLIMIT_FSIZE, &size));
    T(write(fd, big, 5000));
    T(write(fd, big, 8000));
    T(write(fd, big, 8000));
    T(exceeded);
    T(ftruncate(fd, 20000));
    T(truncate(P("a"), 10001));
    T(exceeded);
    T(pwrite(fd, big, 10, 10000));
    T(pwrite(10, big, 20000, 0));
    T(exceeded);
    int end = T(open(P("new"), O_WRONLY | O_APPEND));
    (void)end;
    fshow(fd);
    fcontent(fd);
    size.rlim_cur = 20000;
    T(setrlimit(RLIMIT_FSIZE, &size));
    T(pwrite(fd, big, 10, 10000));
    fshow(fd);
    signal(SIGXFSZ, SIG_IGN);
    size.rlim_cur = 5;
    T(setrlimit(RLIMIT_FSIZE, &size));
    T(pwrite(fd, "123456789", 9, 0));
    T(pwrite(fd, "123456789", 9, 7));
    fcontent(fd);
}

static void masks(void)
{
    int masks[] = {0, 077, 0777, 022};
    for (int n = 0; n < 4; n++) {
        char name[20];
        umask(masks[n]);
        snprintf(name, sizeof name, "f%d", n);
        int fd = T(open(P(name), O_RDWR | O_CREAT, 06777));
        T(write(fd, "x", 1));
        fshow(fd);
        close(fd);
        snprintf(name, sizeof name, "d%d", n);
        T(mkdir(P(name), 07777));
        show(name);
        snprintf(name, sizeof name, "d%d/f", n);
        close(T(open(P(name), O_RDWR | O_CREAT, 0666)));
        show(name);
        snprintf(name, sizeof name, "p%d", n);
        T(mkfifo(P(name), 0666));
        show(name);
        CHILD(umask(027); int c = open(P("child"), O_RDWR | O_CREAT | O_TRUNC, 0666); fshow(c); unlink(P("child")));
    }
    int fd = T(open(P("none"), O_RDWR | O_CREAT, 0));
    T(write(fd, "all the same", 12));
    fcontent(fd);
    T(open(P("wrong"), O_CREAT | O_WRONLY, 0x7fff0000));
    show("wrong");
    list(".");
}

static void kinds(void)
{
    char b[200];
    int n, fd = T(open(P("a"), O_RDWR | O_CREAT, 0644)), dir = T(open(P("."), O_RDONLY | O_DIRECTORY));
    T(write(fd, "0123456789", 10));
    T(isatty(fd));
    T(ioctl(fd, TCGETS, b));
    T(lseek(fd, 4, SEEK_SET));
    T(ioctl(fd, FIONREAD, &n));
    printf("  %d\n", n);
    T(ioctl(fd, FIOCLEX));
    T(fcntl(fd, F_GETFD));
    T(ioctl(fd, FIONCLEX));
    T(fcntl(fd, F_GETFD));
    n = 1;
    T(ioctl(fd, FIONBIO, &n));
    printf("  flags %o, %o\n", fcntl(fd, F_GETFL), fcntl(dir, F_GETFL));
    T(fcntl(fd, F_GET_SEALS));
    T(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW));
    T(fcntl(fd, F_GETPIPE_SZ));
    T(fcntl(fd, F_GETOWN));
    T(fcntl(fd, 999));
    T(syncfs(fd));
    T(fsync(dir));
    T(sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE));
    struct statfs s;
    T(fstatfs(fd, &s));
    long type = s.f_type;
    T(statfs(P("."), &s));
    IS(type == s.f_type);
    printf("  %lx %ld %ld\n", type, (long)s.f_bsize, (long)s.f_namelen);
    T(fpathconf(fd, _PC_NAME_MAX));
    T(fpathconf(fd, _PC_LINK_MAX));
    snprintf(b, sizeof b, "/proc/self/fd/%d", fd);
    /* Where it leads to is another name under `ccfs direct` (docs/design/interception.md). */
    char to[PATH_MAX + 20] = "";
    T(readlink(b, to, sizeof to) > 0);
    T(unlink(P("a")));
    memset(to, 0, sizeof to);
    T(readlink(b, to, sizeof to) > 0);
    snprintf(b, sizeof b, "/proc/self/fdinfo/%d", fd);
    FILE *f = fopen(b, "r");
    for (int line = 0; line < 2 && fgets(b, sizeof b, f); line++)
        printf("  %s", b);
    fclose(f);
    int flags[] = {O_SYNC, O_DSYNC, O_NOATIME, O_NONBLOCK, O_ASYNC, O_LARGEFILE, O_APPEND | O_CLOEXEC, O_NOCTTY, O_DIRECT};
    for (unsigned i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        char name[20];
        snprintf(name, sizeof name, "f%u", i);
        int with = T(open(P(name), O_RDWR | O_CREAT | flags[i], 0644));
        if (flags[i] != O_DIRECT)
            T(write(with, "x", 1));
        printf("  flags %o\n", fcntl(with, F_GETFL));
        fshow(with);
    }
}

const test_case io_cases[] = {{"basic", basic}, {"append", append}, {"truncates", truncates}, {"seeks", seeks}, {"wrong", wrong}, {"large", large},
    {"duplicates", duplicates}, {"numbers", numbers}, {"limits", limits}, {"masks", masks}, {"kinds", kinds}, {NULL, NULL}};
