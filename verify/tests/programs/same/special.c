/* Mappings, locks, waiting for descriptors, copies inside the kernel, allocation, extended attributes, flags. */
#include "same.h"
#include <linux/fs.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/xattr.h>

static struct stat s;
static char big[200000];

static int with_bytes(const char *name, size_t len)
{
    int fd = open(P(name), O_RDWR | O_CREAT | O_TRUNC, 0644);
    for (size_t n = 0; n < sizeof big; n++)
        big[n] = 'a' + n / 7 % 26;
    if (fd < 0 || write(fd, big, len) != (ssize_t)len)
        printf("  %s: %s\n", name, strerrorname_np(errno));
    return fd;
}

static void maps(void)
{
    int fd = with_bytes("a", 10000);
    char b[20] = "";
    char *shared = mmap(NULL, 10000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    IS(shared != MAP_FAILED && !memcmp(shared, big, 10000));
    memcpy(shared + 5000, "MAPPED", 6);
    T(pread(fd, b, 6, 5000));
    printf("  %s\n", b);
    T(pwrite(fd, "WRITTEN", 7, 100));
    printf("  %.7s\n", shared + 100);
    T(lseek(fd, 0, SEEK_CUR));
    T(msync(shared, 10000, MS_SYNC));
    T(ftruncate(fd, 20000));
    T(pwrite(fd, "beyond", 6, 11000));
    printf("  %.6s\n", shared + 11000);
    T(close(fd));
    memcpy(shared, "after close", 11);
    content("a");
    T(munmap(shared, 10000));
    fd = with_bytes("b", 5000);
    char *private = mmap(NULL, 5000, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    memcpy(private, "only here", 9);
    fcontent(fd);
    T(unlink(P("b")));
    printf("  %.9s %.9s\n", private, private + 4096);
    T(write(fd, "more", 4));
    fshow(fd);
    int r = T(open(P("a"), O_RDONLY)), w = T(open(P("a"), O_WRONLY));
    T(mmap(NULL, 100, PROT_READ | PROT_WRITE, MAP_SHARED, r, 0) == MAP_FAILED);
    T(mmap(NULL, 100, PROT_READ, MAP_SHARED, w, 0) == MAP_FAILED);
    T(mmap(NULL, 0, PROT_READ, MAP_SHARED, r, 0) == MAP_FAILED);
    T(mmap(NULL, 100, PROT_READ, MAP_SHARED, r, 5) == MAP_FAILED);
    T(mmap(NULL, 100, PROT_READ, MAP_SHARED, 99, 0) == MAP_FAILED);
    int dir = T(open(P("."), O_RDONLY));
    T(mmap(NULL, 100, PROT_READ, MAP_SHARED, dir, 0) == MAP_FAILED);
    fd = with_bytes("c", 8192);
    shared = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHILD(memcpy(shared, "child", 5); T(pwrite(fd, "CHILD", 5, 4096)));
    printf("  %.5s %.5s\n", shared, shared + 4096);
    T(rename(P("c"), P("d")));
    shared[0] = 'C';
    content("d");
    T(ftruncate(fd, 100));
    content("d");
    for (int n = 0; n < 100; n++) {
        char name[20];
        snprintf(name, sizeof name, "m%d", n);
        fd = with_bytes(name, 5000);
        char *m = mmap(NULL, 5000, PROT_READ, MAP_PRIVATE, fd, 0);
        close(fd);
        if (memcmp(m, big, 5000))
            printf("  %d differs\n", n);
        munmap(m, 5000);
        unlink(P(name));
    }
}

static void private_maps(void)
{
    static const char *const names[] = {"empty", "short", "page", "pages", "large"};
    static const size_t sizes[] = {0, 100, 4096, 70000, 6 << 20};
    for (int n = 0; n < 5; n++) {
        int fd = T(open(P(names[n]), O_WRONLY | O_CREAT, 0644));
        for (size_t at = 0; at < sizeof big; at++)
            big[at] = at * (n + 3) / 5 % 251 + 1;
        for (size_t at = 0; at < sizes[n]; at += sizeof big)
            write(fd, big, sizes[n] - at < sizeof big ? sizes[n] - at : sizeof big);
        close(fd);
        fd = T(open(P(names[n]), O_RDONLY));
        size_t pages = (sizes[n] + 4095) / 4096 * 4096;
        char *m = mmap(NULL, pages + 4096, PROT_READ, MAP_PRIVATE, fd, 0);
        IS(m != MAP_FAILED);
        unsigned sum = 0;
        for (size_t at = 0; at < pages; at++)
            sum = sum * 31 + (unsigned char)m[at];
        printf("  %zu bytes: %x\n", sizes[n], sum);
        T(lseek(fd, 0, SEEK_CUR));
        fshow(fd);
        close(fd);
        // Behind the last page there is nothing.
        CHILD(signal(SIGBUS, exit); printf("%d", m[pages]); _exit(0));
        if (n == 3) {
            T(mprotect(m, pages, PROT_READ | PROT_WRITE));
            memcpy(m + 5000, "mine", 4);
            memcpy(m + 9000, "gone", 4);
            T(madvise(m + 8192, 4096, MADV_DONTNEED));
            IS(!memcmp(m + 5000, "mine", 4) && !memcmp(m + 9000, "gone", 4));
            char *moved = mremap(m, 4096 * 3, pages, MREMAP_MAYMOVE);
            IS(moved != MAP_FAILED && !memcmp(moved + 5000, "mine", 4));
            sum = 0;
            for (size_t at = 0; at < pages; at++)
                sum = sum * 31 + (unsigned char)moved[at];
            printf("  %x\n", sum);
            CHILD(memcpy(moved, "child", 5));
            printf("  %.5s\n", moved);
            content(names[n]);
        } else {
            T(munmap(m, pages + 4096));
        }
    }
    int fd = T(open(P("pages"), O_RDONLY));
    char *part = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 61440);
    IS(part != MAP_FAILED && part[8191] != 0);
    T(mmap(NULL, 100, PROT_READ, MAP_PRIVATE, fd, 5) == MAP_FAILED);
    T(mmap(NULL, 0, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED);
    char *place = mmap(NULL, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    IS(mmap(place + 4096, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, 0) == place + 4096);
    place[4096] = 'x';
    T(unlink(P("pages")));
    printf("  %.8s\n", place + 4097);
    int w = T(open(P("short"), O_WRONLY)), path = T(open(P("short"), O_PATH));
    T(mmap(NULL, 100, PROT_READ, MAP_PRIVATE, w, 0) == MAP_FAILED);
    T(mmap(NULL, 100, PROT_READ, MAP_PRIVATE, path, 0) == MAP_FAILED);
    char *code = mmap(NULL, 100, PROT_READ | PROT_EXEC, MAP_PRIVATE, T(open(P("short"), O_RDONLY)), 0);
    IS(code != MAP_FAILED && code[99] == place[4096 + 99]);
}

static void locks(void)
{
    int fd = with_bytes("a", 100), to_child[2], to_parent[2];
    char b;
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 20};
    T(pipe(to_child));
    T(pipe(to_parent));
    T(fcntl(fd, F_SETLK, &l));
    CHILD(struct flock c = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 0}; T(fcntl(fd, F_GETLK, &c));
          printf("  %d %ld %ld %d\n", c.l_type, (long)c.l_start, (long)c.l_len, c.l_pid == getppid()); T(fcntl(fd, F_SETLK, &l));
          l.l_start = 50; T(fcntl(fd, F_SETLK, &l)); T(lockf(fd, F_TEST, 0)));
    pid_t child = fork();
    if (child == 0) {
        int mine = open(P("a"), O_RDWR);
        flock(mine, LOCK_EX);
        write(to_parent[1], "x", 1);
        read(to_child[0], &b, 1);
        pwrite(mine, "under lock", 10, 0);
        flock(mine, LOCK_UN);
        _exit(0);
    }
    T(read(to_parent[0], &b, 1));
    T(flock(fd, LOCK_EX | LOCK_NB));
    T(flock(fd, LOCK_SH | LOCK_NB));
    T(write(to_child[1], "x", 1));
    T(flock(fd, LOCK_SH));
    fcontent(fd);
    ended(child);
    int other = T(open(P("a"), O_RDWR));
    T(flock(other, LOCK_EX | LOCK_NB));
    int same = T(dup(fd));
    T(flock(same, LOCK_UN));
    T(flock(other, LOCK_EX | LOCK_NB));
    T(flock(fd, 77));
    T(close(other));
    T(flock(fd, LOCK_EX | LOCK_NB));
    /* Closing any descriptor of a file drops the process's locks. */
    l.l_start = 10;
    T(fcntl(fd, F_SETLK, &l));
    other = T(open(P("a"), O_RDONLY));
    T(fcntl(other, F_SETLK, &l));
    T(close(other));
    CHILD(T(fcntl(fd, F_SETLK, &l)));
    l.l_pid = 0;
    T(fcntl(fd, F_OFD_SETLK, &l));
    other = T(open(P("a"), O_RDWR));
    T(fcntl(other, F_OFD_SETLK, &l));
    T(fcntl(other, F_SETLK, &l));
    T(lockf(fd, F_TLOCK, 10));
    int new = T(open(P("new"), O_RDWR | O_CREAT, 0644));
    T(fcntl(new, F_SETLK, &l));
    T(write(new, "x", 1));
    CHILD(int mine = T(open(P("new"), O_RDWR)); T(fcntl(mine, F_SETLK, &l)); T(write(mine, "yz", 2)));
    fcontent(new);
    int dir = T(open(P("."), O_RDONLY));
    T(flock(dir, LOCK_EX | LOCK_NB));
    T(fcntl(dir, F_SETLK, &l));
    T(fcntl(new, F_SETLEASE, F_RDLCK));
    T(fcntl(new, F_GETLEASE));
}

static void waits(void)
{
    int fd = with_bytes("a", 10), r = T(open(P("a"), O_RDONLY));
    struct pollfd p[2] = {{fd, POLLIN | POLLOUT | POLLPRI, 0}, {r, POLLIN, 0}};
    T(poll(p, 2, 0));
    printf("  %x %x\n", p[0].revents, p[1].revents);
    fd_set in, out;
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_SET(fd, &in);
    FD_SET(fd, &out);
    T(select(fd + 1, &in, &out, NULL, &(struct timeval){0, 0}));
    int e = T(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN};
    T(epoll_ctl(e, EPOLL_CTL_ADD, fd, &event));
    T(write(fd, "more", 4));
    int new = T(open(P("n"), O_RDWR | O_CREAT, 0644));
    T(epoll_ctl(e, EPOLL_CTL_ADD, new, &event));
    p[0].fd = new;
    T(ppoll(p, 1, &(struct timespec){0, 0}, NULL));
    printf("  %x\n", p[0].revents);
    T(write(new, "x", 1));
    int dir = T(open(P("."), O_RDONLY));
    T(epoll_ctl(e, EPOLL_CTL_ADD, dir, &event));
    T(close(new));
    p[0].fd = new;
    T(poll(p, 1, 0));
    printf("  %x\n", p[0].revents);
    content("a");
}

static void copies(void)
{
    char b[30] = "";
    int a = with_bytes("a", 100000), c = T(open(P("c"), O_RDWR | O_CREAT, 0644)), mem = T(memfd_create("m", 0)), ends[2];
    loff_t from = 5, to = 7;
    T(lseek(a, 0, SEEK_SET));
    T(copy_file_range(a, &from, c, &to, 50000, 0));
    printf("  %ld %ld\n", (long)from, (long)to);
    T(copy_file_range(a, NULL, c, NULL, 1000, 0));
    T(lseek(a, 0, SEEK_CUR));
    T(lseek(c, 0, SEEK_CUR));
    fcontent(c);
    T(copy_file_range(a, NULL, c, NULL, 10, 1));
    from = 0, to = 10;
    T(copy_file_range(a, &from, a, &to, 100, 0));
    to = 200000;
    T(copy_file_range(a, &from, a, &to, 100, 0));
    from = 1 << 20;
    T(copy_file_range(a, &from, c, NULL, 100, 0));
    int r = T(open(P("a"), O_RDONLY)), app = T(open(P("app"), O_WRONLY | O_CREAT | O_APPEND, 0644));
    T(copy_file_range(c, NULL, r, NULL, 100, 0));
    T(copy_file_range(c, NULL, app, NULL, 100, 0));
    T(copy_file_range(99, NULL, c, NULL, 100, 0));
    off_t at = 3;
    T(sendfile(mem, a, &at, 5000));
    T(at);
    T(sendfile(c, mem, NULL, 100));
    T(lseek(mem, 0, SEEK_SET));
    T(sendfile(c, mem, NULL, 100000));
    fcontent(c);
    T(sendfile(c, a, NULL, 100));
    T(sendfile(r, a, NULL, 100));
    T(pipe(ends));
    T(lseek(a, 10, SEEK_SET));
    T(splice(a, NULL, ends[1], NULL, 20, 0));
    T(read(ends[0], b, 30));
    printf("  %s\n", b);
    T(write(ends[1], "into a file", 11));
    at = 3;
    T(splice(ends[0], NULL, c, &at, 30, SPLICE_F_NONBLOCK));
    T(splice(a, NULL, c, NULL, 30, 0));
    T(write(ends[1], "again", 5));
    T(splice(ends[0], NULL, c, NULL, 5, 0));
    T(lseek(c, 0, SEEK_CUR));
    fcontent(c);
    int fresh = T(open(P("fresh"), O_WRONLY | O_CREAT, 0644));
    T(write(ends[1], "spliced", 7));
    T(splice(ends[0], NULL, fresh, NULL, 7, 0));
    T(write(fresh, ", written", 9));
    content("fresh");
    T(ioctl(fresh, FICLONE, a));
    CHILD(dup2(ends[1], 1); lseek(a, 0, SEEK_SET); sendfile(1, a, NULL, 10));
    T(read(ends[0], b, 30));
}

/* Of two files one is the kernel's: of another file system, or locked. */
static void copies_by_the_kernel(void)
{
    int c = T(open(P("c"), O_RDWR | O_CREAT, 0644)), app = T(open(P("app"), O_WRONLY | O_CREAT | O_APPEND, 0644));
    int r = T(open(P("c"), O_RDONLY)), mem = T(memfd_create("m", 0)), more = T(open(P("more"), O_RDWR | O_CREAT, 0644));
    int known = with_bytes("known", 200000);
    loff_t from, to;
    off_t at = 0;
    T(write(mem, big, 5000));
    T(sendfile(c, mem, &at, 3000));
    T(lseek(mem, 4000, SEEK_SET));
    T(sendfile(c, mem, NULL, 3000));
    T(lseek(c, 0, SEEK_CUR));
    fcontent(c);
    T(copy_file_range(mem, NULL, c, NULL, 100, 0));
    T(copy_file_range(c, NULL, mem, NULL, 100, 0));
    T(copy_file_range(mem, NULL, r, NULL, 100, 0));
    T(copy_file_range(mem, NULL, app, NULL, 100, 0));
    T(sendfile(app, mem, NULL, 100));
    at = -1;
    T(sendfile(c, mem, &at, 100));
    at = 100000;
    T(sendfile(c, mem, &at, 100));
    T(at);
    T(sendfile(c, c, NULL, 100));
    T(flock(known, LOCK_EX));
    T(lseek(known, 1000, SEEK_SET));
    T(copy_file_range(known, NULL, more, NULL, 70000, 0));
    T(lseek(known, 0, SEEK_CUR));
    T(lseek(more, 0, SEEK_CUR));
    T(sendfile(more, known, NULL, 200000));
    T(lseek(known, 0, SEEK_CUR));
    at = 150000;
    T(sendfile(more, known, &at, 100000));
    T(at);
    T(lseek(known, 0, SEEK_CUR));
    T(copy_file_range(known, NULL, more, NULL, 0, 0));
    T(copy_file_range(known, NULL, more, NULL, 1 << 20, 0));
    T(copy_file_range(known, NULL, more, NULL, 1 << 20, 0));
    T(lseek(more, 0, SEEK_CUR));
    fcontent(more);
    T(lseek(more, 10, SEEK_SET));
    T(copy_file_range(more, NULL, known, NULL, 5000, 0));
    T(sendfile(known, more, NULL, 5000));
    T(lseek(more, 0, SEEK_CUR));
    T(lseek(known, 0, SEEK_CUR));
    fcontent(known);
    from = 7, to = 9;
    T(copy_file_range(known, &from, more, &to, 30, 0));
    printf("  %ld %ld\n", (long)from, (long)to);
    fcontent(more);
    T(close(known));
    T(close(more));
    // One file by two descriptors.
    int one = with_bytes("one", 20000), two = T(open(P("one"), O_RDWR));
    T(lseek(one, 0, SEEK_SET));
    T(lseek(two, 10, SEEK_SET));
    T(copy_file_range(one, NULL, two, NULL, 5000, 0));
    T(flock(two, LOCK_EX));
    T(copy_file_range(one, NULL, two, NULL, 5000, 0));
    T(lseek(two, 19000, SEEK_SET));
    T(sendfile(two, one, NULL, 500));
    fcontent(two);
    // More than is copied at a time, and by a descriptor that passes the page cache by.
    T(ftruncate(mem, 6000000));
    at = 0;
    T(sendfile(c, mem, &at, 6000000));
    fcontent(c);
    int past = open("/proc/self/exe", O_RDONLY | O_DIRECT);
    at = 0;
    T(sendfile(c, past, &at, 4096));
    fcontent(c);
}

static void allocations(void)
{
    int fd = with_bytes("a", 20000), r = T(open(P("a"), O_RDONLY));
    T(fallocate(fd, 0, 0, 30000));
    fcontent(fd);
    T(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 100000));
    fshow(fd);
    T(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 5000, 8000));
    fcontent(fd);
    T(fallocate(fd, FALLOC_FL_ZERO_RANGE, 100, 200));
    fcontent(fd);
    T(fallocate(fd, FALLOC_FL_PUNCH_HOLE, 0, 100));
    T(fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 0, 4096));
    T(fallocate(fd, FALLOC_FL_INSERT_RANGE, 4096, 4096));
    fcontent(fd);
    T(fallocate(fd, 0, 0, 0));
    T(fallocate(fd, 0, -1, 10));
    T(fallocate(r, 0, 0, 10));
    T(fallocate(99, 0, 0, 10));
    T(fallocate(fd, 0, 0, INT64_MAX));
    T(posix_fallocate(fd, 0, 40000));
    fshow(fd);
    int new = T(open(P("n"), O_RDWR | O_CREAT, 0644));
    T(posix_fallocate(new, 0, 1 << 20));
    T(pwrite(new, "x", 1, 500000));
    fcontent(new);
    T(ftruncate(new, 0));
    T(posix_fadvise(new, 0, 0, POSIX_FADV_SEQUENTIAL));
    T(posix_fadvise(new, 0, 0, POSIX_FADV_DONTNEED));
    T(posix_fadvise(new, 0, 0, 77));
    T(posix_fadvise(99, 0, 0, POSIX_FADV_NORMAL));
    T(readahead(new, 0, 4096));
    T(sync_file_range(new, 0, 0, 7));
    T(sync_file_range(new, -1, 0, 7));
    int dir = T(open(P("."), O_RDONLY));
    T(fallocate(dir, 0, 0, 10));
    T(posix_fadvise(dir, 0, 0, POSIX_FADV_NORMAL));
    fshow(new);
}

static void xattrs(void)
{
    char b[100] = "";
    int fd = with_bytes("a", 10);
    T(symlink("a", P("l")));
    T(mkdir(P("d"), 0755));
    T(setxattr(P("a"), "user.one", "1", 1, 0));
    T(fsetxattr(fd, "user.two", "two", 3, XATTR_CREATE));
    T(fsetxattr(fd, "user.two", "two", 3, XATTR_CREATE));
    T(fsetxattr(fd, "user.three", "3", 1, XATTR_REPLACE));
    T(getxattr(P("a"), "user.two", b, 100));
    T(fgetxattr(fd, "user.two", b, 2));
    T(fgetxattr(fd, "user.two", b, 0));
    T(getxattr(P("l"), "user.one", b, 100));
    T(lgetxattr(P("l"), "user.one", b, 100));
    T(lsetxattr(P("l"), "user.one", b, 1, 0));
    T(getxattr(P("a"), "user.none", b, 100));
    T(getxattr(P("none"), "user.none", b, 100));
    T(listxattr(P("a"), b, 100));
    T(flistxattr(fd, b, 3));
    T(write(fd, "with attributes", 15));
    T(rename(P("a"), P("b")));
    T(getxattr(P("b"), "user.one", b, 100));
    T(removexattr(P("b"), "user.one"));
    T(fremovexattr(fd, "user.one"));
    T(setxattr(P("b"), "odd.name", b, 1, 0));
    T(setxattr(P("b"), "user.", b, 1, 0));
    T(setxattr(P("b"), "user.big", big, 70000, 0));
    T(setxattr(P("b"), "user.big", big, 2000, 0));
    T(setxattr(P("d"), "user.d", "d", 1, 0));
    T(getxattr(P("d"), "user.d", b, 100));
    T(setxattr(P("b"), "trusted.x", "x", 1, 0));
    content("b");
    /* A directory with rules for what is made in it. */
    unsigned char acl[] = {2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 6, 0, 5, 0, 0, 0, 4, 0, 5, 0, 255, 255, 255, 255,
                           16, 0, 7, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255};
    T(setxattr(P("d"), "system.posix_acl_default", acl, sizeof acl, 0));
    int in = T(open(P("d/f"), O_RDWR | O_CREAT, 0666));
    T(write(in, "x", 1));
    fshow(in);
    T(fgetxattr(in, "system.posix_acl_access", b, 100));
    T(mkdir(P("d/e"), 0777));
    show("d/e");
    T(getxattr(P("d/e"), "system.posix_acl_default", b, 100));
    T(open(P("d/e/f"), O_RDWR | O_CREAT, 0644));
    show("d/e/f");
    T(fsetxattr(fd, "system.posix_acl_access", acl, sizeof acl, 0));
    fshow(fd);
    T(fchmod(fd, 0640));
    fshow(fd);
    T(removexattr(P("d"), "system.posix_acl_default"));
    T(open(P("d/g"), O_RDWR | O_CREAT, 0666));
    show("d/g");
}

static void flags(void)
{
    int f, fd = with_bytes("a", 10), d;
    T(mkdir(P("d"), 0755));
    T(ioctl(fd, FS_IOC_GETFLAGS, &f));
    printf("  %x\n", f & (FS_IMMUTABLE_FL | FS_APPEND_FL));
    f |= FS_APPEND_FL;
    if (ioctl(fd, FS_IOC_SETFLAGS, &f) != 0) {
        printf("  %s\n", strerrorname_np(errno));
        return;
    }
    T(pwrite(fd, "x", 1, 0));
    T(ftruncate(fd, 0));
    T(open(P("a"), O_RDWR));
    int app = T(open(P("a"), O_WRONLY | O_APPEND));
    T(write(app, "more", 4));
    T(unlink(P("a")));
    T(rename(P("a"), P("b")));
    T(link(P("a"), P("b")));
    T(open(P("a"), O_WRONLY | O_APPEND | O_TRUNC));
    f &= ~FS_APPEND_FL;
    f |= FS_IMMUTABLE_FL;
    T(ioctl(fd, FS_IOC_SETFLAGS, &f));
    T(write(app, "more", 4));
    T(chmod(P("a"), 0600));
    T(open(P("a"), O_RDWR));
    T(open(P("a"), O_RDONLY));
    T(utimensat(AT_FDCWD, P("a"), NULL, 0));
    f &= ~FS_IMMUTABLE_FL;
    T(ioctl(fd, FS_IOC_SETFLAGS, &f));
    T(write(fd, "mine", 4));
    fcontent(fd);
    d = T(open(P("d"), O_RDONLY));
    make("d/old", "x");
    T(ioctl(d, FS_IOC_GETFLAGS, &f));
    f |= FS_IMMUTABLE_FL;
    T(ioctl(d, FS_IOC_SETFLAGS, &f));
    T(open(P("d/new"), O_RDWR | O_CREAT, 0644));
    T(unlink(P("d/old")));
    T(rename(P("d/old"), P("d/x")));
    T(rename(P("a"), P("d/x")));
    T(mkdir(P("d/e"), 0755));
    int old = T(open(P("d/old"), O_RDWR));
    T(write(old, "yz", 2));
    f &= ~FS_IMMUTABLE_FL;
    T(ioctl(d, FS_IOC_SETFLAGS, &f));
    T(rename(P("d/old"), P("d/x")));
    list("d");
}

static void handles(void)
{
    struct { struct file_handle h; char room[128]; } h;
    int mount;
    int fd = with_bytes("a", 10);
    h.h.handle_bytes = sizeof h.room;
    T(name_to_handle_at(AT_FDCWD, P("a"), &h.h, &mount, 0));
    T(write(fd, "before", 6));
    int top = T(open(P("."), O_RDONLY));
    int by = T(open_by_handle_at(top, &h.h, O_RDWR));
    T(pwrite(by, "HANDLE", 6, 0));
    fcontent(fd);
    T(unlink(P("a")));
    fstat(by, &s);
    T(s.st_nlink);
    T(syscall(SYS_kcmp, getpid(), getpid(), 0, fd, dup(fd)));
    T(syscall(SYS_kcmp, getpid(), getpid(), 0, fd, by) != 0);
}

const test_case special_cases[] = {{"maps", maps}, {"private_maps", private_maps}, {"locks", locks}, {"waits", waits}, {"copies", copies}, {"copies_by_the_kernel", copies_by_the_kernel}, {"allocations", allocations},
    {"xattrs", xattrs}, {"flags", flags}, {"handles", handles}, {NULL, NULL}};
