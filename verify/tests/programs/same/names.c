/* Names: errors, renames, links. */
#include "same.h"
#include <linux/openat2.h>

static struct stat s;

/* Below a directory ".." is tried again where anything was renamed meanwhile, on any file system: openat2(2). */
static long open_within(const char *name, struct open_how *how)
{
    long fd;
    do
        fd = syscall(SYS_openat2, AT_FDCWD, name, how, sizeof *how);
    while (fd < 0 && errno == EAGAIN);
    return fd;
}

static void lengths(void)
{
    char name[300], path[5000];
    for (int n = 254; n <= 256; n++) {
        memset(name, 'n', n);
        name[n] = 0;
        int fd = T(open(P(name), O_RDWR | O_CREAT, 0644));
        T(close(fd));
        T(stat(P(name), &s));
        name[0] = 'd';
        T(mkdir(P(name), 0755));
        T(rename(P(name), P("renamed")));
        T(rename(P("renamed"), P(name)));
        T(symlink("x", P("link")));
        name[0] = 'l';
        T(rename(P("link"), P(name)));
        T(unlink(P(name)));
        unlink(P("link"));
    }
    /* A path of its own length, ending in a name. */
    make("f", "x");
    for (int n = 4094; n <= 4097; n++) {
        size_t from = snprintf(path, sizeof path, "%s/", here);
        for (size_t i = from; i < (size_t)n - 1; i++)
            path[i] = i % 2 == from % 2 ? '.' : '/';
        if (path[n - 2] == '.')
            path[n - 2] = '/';
        path[n - 1] = 'f';
        path[n] = 0;
        T(stat(path, &s));
        T(open(path, O_RDONLY));
        T(access(path, R_OK));
        path[n - 1] = 'g';
        T(open(path, O_RDWR | O_CREAT, 0644));
        T(unlink(path));
        T(mkdir(path, 0755));
        T(rmdir(path));
    }
    memset(path, 'x', 4099);
    path[4099] = 0;
    T(symlink(path, P("long")));
    path[4095] = 0;
    T(symlink(path, P("long")));
    T(lstat(P("long"), &s));
    T(readlink(P("long"), path, 10));
}

static void slashes(void)
{
    make("f", "x");
    T(mkdir(P("d/"), 0755));
    T(mkdir(P("e///"), 0755));
    T(mkdir(P("f/"), 0755));
    T(mkdir(P("d/."), 0755));
    T(mkdir(P("d/.."), 0755));
    T(mkdir(P("d/x/"), 0755));
    T(open(P("f/"), O_RDONLY));
    T(open(P("n/"), O_RDONLY | O_CREAT, 0644));
    T(open(P("d/"), O_RDONLY));
    T(open(P("d/"), O_RDONLY | O_CREAT, 0644));
    T(open(P("f/."), O_RDONLY));
    T(open(P("f/.."), O_RDONLY));
    T(open(P("d//.//..//f"), O_RDONLY));
    T(open(P("d/x/../../f"), O_RDWR));
    T(open(P("d/none/../f"), O_RDONLY));
    T(stat(P("f/"), &s));
    T(stat(P("d/"), &s));
    T(lstat(P("d/."), &s));
    T(unlink(P("f/")));
    T(unlink(P("d")));
    T(unlink(P("d/")));
    T(unlink(P(".")));
    T(unlink(P("..")));
    T(rmdir(P("f")));
    T(rmdir(P("f/")));
    T(rmdir(P("d/.")));
    T(rmdir(P("d/..")));
    T(rmdir(P("d/x/..")));
    T(rmdir(P("none")));
    T(rmdir(P("d")));
    T(rename(P("f"), P("g/")));
    T(rename(P("f/"), P("g")));
    T(rename(P("e/"), P("e2/")));
    T(rename(P("e2"), P("e")));
    T(rename(P("d/."), P("x")));
    T(rename(P("d"), P("e/..")));
    T(rename(P("d"), P("e/.")));
    T(link(P("f"), P("l/")));
    T(link(P("f/"), P("l")));
    T(symlink("d", P("s")));
    T(symlink("d", P("s2/")));
    T(lstat(P("s"), &s) ?: s.st_mode);
    T(lstat(P("s/"), &s) ?: s.st_mode);
    T(unlink(P("s/")));
    T(rmdir(P("s")));
    T(rmdir(P("s/")));
    T(rename(P("s/"), P("s3")));
    T(mkdir(P("s"), 0755));
    T(mkdir(P("s/"), 0755));
    T(mkdir(P("s/y"), 0755));
    T(rmdir(P("d/x/")));
    T(rmdir(P("d/y//")));
    T(chdir(P("f")));
    T(chdir(P("none")));
    T(mkfifo(P("fifo/"), 0644));
    T(mknod(P("node"), S_IFREG | 0600, 0));
    T(mknod(P("node"), S_IFREG | 0600, 0));
    T(mkdir(P("d"), 0755));
    T(mkdir(P("."), 0755));
    T(mkdir("/", 0755));
    T(rmdir("/"));
    T(creat(P("d"), 0644));
    T(open(P("d"), O_CREAT | O_EXCL, 0644));
    list(".");
    list("d");
}

static void renames(void)
{
    char b[20] = "";
    make("a", "aaa");
    make("b", "bbbb");
    int a = T(open(P("a"), O_RDWR)), o = T(open(P("b"), O_RDWR));
    T(rename(P("a"), P("b")));
    T(pread(o, b, 20, 0));
    fshow(o);
    fshow(a);
    T(write(o, "gone", 4));
    T(write(a, "A", 1));
    content("b");
    T(rename(P("a"), P("c")));
    T(rename(P("b"), P("b")));
    T(mkdir(P("d"), 0755));
    T(mkdir(P("d/e"), 0700));
    make("d/e/f", "deep");
    int deep = T(open(P("d/e/f"), O_RDWR));
    T(rename(P("d"), P("d/e/x")));
    T(rename(P("d"), P("d")));
    T(rename(P("d/e"), P("d")));
    T(rename(P("b"), P("d")));
    T(rename(P("d"), P("b")));
    T(mkdir(P("g"), 0755));
    T(rename(P("g"), P("d")));
    T(rename(P("d"), P("g")));
    T(write(deep, "DEEP!", 5));
    content("g/e/f");
    T(open(P("d/e/f"), O_RDONLY));
    T(rename(P("g/e"), P("e")));
    T(write(deep, "more", 4));
    content("e/f");
    show("g");
    T(rename(P("e/f"), P("g/f")));
    T(rename(P("b"), P("g/f")));
    fshow(deep);
    content("g/f");
    T(renameat2(AT_FDCWD, P("g/f"), AT_FDCWD, P("e"), RENAME_NOREPLACE));
    T(renameat2(AT_FDCWD, P("g/f"), AT_FDCWD, P("e"), RENAME_EXCHANGE));
    show("e");
    show("g/f");
    T(renameat2(AT_FDCWD, P("g/f"), AT_FDCWD, P("none"), RENAME_EXCHANGE));
    T(renameat2(AT_FDCWD, P("e"), AT_FDCWD, P("new"), RENAME_NOREPLACE));
    T(renameat2(AT_FDCWD, P("new"), AT_FDCWD, P("x"), RENAME_NOREPLACE | RENAME_EXCHANGE));
    T(renameat2(AT_FDCWD, P("new"), AT_FDCWD, P("x"), 64));
    T(rename(P("new"), "/tmp/ccfs-same-elsewhere"));
    make("one", "1");
    T(link(P("one"), P("two")));
    T(rename(P("one"), P("two")));
    show("one");
    T(mkdir(P("full"), 0755));
    make("full/x", "x");
    T(mkdir(P("empty"), 0755));
    T(rename(P("empty"), P("full")));
    T(rename(P("full"), P("empty")));
    T(rename(P("empty"), P("one")));
    T(rename(P("one"), P("empty")));
    T(rmdir(P("empty")));
    T(unlink(P("empty/x")));
    T(rmdir(P("empty")));
    for (int n = 0; n < 200; n++) {
        make("tmp", n % 2 ? "odd" : "even");
        if (rename(P("tmp"), P("target")) != 0)
            puts("not renamed");
    }
    content("target");
    list(".");
    list("g");
}

static void unlinked(void)
{
    char b[20];
    int fd = T(open(P("a"), O_RDWR | O_CREAT, 0644));
    T(write(fd, "first", 5));
    T(unlink(P("a")));
    fshow(fd);
    T(write(fd, ", second", 8));
    T(pread(fd, b, 20, 0));
    T(ftruncate(fd, 3));
    T(fchmod(fd, 0600));
    fshow(fd);
    int new = T(open(P("a"), O_RDWR | O_CREAT | O_EXCL, 0644));
    T(write(new, "new", 3));
    fcontent(fd);
    fcontent(new);
    char path[50];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    T(linkat(AT_FDCWD, path, AT_FDCWD, P("back"), AT_SYMLINK_FOLLOW));
    int again = T(open(path, O_RDWR));
    T(write(again, "FIR", 3));
    fcontent(fd);
    T(stat(path, &s));
    CHILD(fcontent(fd); T(pwrite(fd, "child", 5, 0)));
    fcontent(fd);
    T(close(fd));
    fcontent(again);
    T(unlink(P("a")));
    T(unlink(P("a")));
    T(mkdir(P("d"), 0755));
    make("d/f", "x");
    int f = T(open(P("d/f"), O_RDWR)), d = T(open(P("d"), O_RDONLY));
    T(unlink(P("d/f")));
    T(rmdir(P("d")));
    T(write(f, "yz", 2));
    fcontent(f);
    fshow(d);
    T(openat(d, "f", O_RDONLY));
    T(openat(d, "g", O_RDWR | O_CREAT, 0644));
    T(mkdirat(d, "g", 0755));
    T(openat(d, "..", O_RDONLY) >= 0);
    T(fchdir(d));
    T((long)getcwd(b, sizeof b));
    T(open("x", O_CREAT | O_RDWR, 0644));
    T(open(".", O_RDONLY) >= 0);
    T(stat(".", &s));
    list(".");
}

static void hard_links(void)
{
    make("a", "linked");
    int fd = T(open(P("a"), O_RDWR));
    T(link(P("a"), P("b")));
    fshow(fd);
    show("b");
    T(write(fd, "L", 1));
    content("b");
    int other = T(open(P("b"), O_RDWR | O_APPEND));
    T(write(other, "!", 1));
    T(pwrite(fd, "I", 1, 1));
    fcontent(fd);
    fcontent(other);
    T(unlink(P("a")));
    fshow(fd);
    T(write(fd, "N", 1));
    content("b");
    T(link(P("b"), P("a")));
    T(link(P("b"), P("a")));
    T(mkdir(P("d"), 0755));
    T(link(P("d"), P("e")));
    T(link(P("b"), P("d")));
    T(link(P("b"), P("d/x")));
    T(link(P("none"), P("d/y")));
    T(link(P("b"), P("none/y")));
    T(truncate(P("d/x"), 2));
    content("a");
    T(chmod(P("d/x"), 0400));
    show("a");
    T(symlink("b", P("s")));
    T(link(P("s"), P("s2")));
    show("s2");
    T(linkat(AT_FDCWD, P("s"), AT_FDCWD, P("s3"), AT_SYMLINK_FOLLOW));
    show("s3");
    struct stat one, two;
    stat(P("a"), &one);
    stat(P("s3"), &two);
    IS(one.st_ino == two.st_ino && one.st_dev == two.st_dev);
    fstat(fd, &two);
    IS(one.st_ino == two.st_ino && one.st_dev == two.st_dev);
    T(rename(P("a"), P("b")));
    T(unlink(P("b")));
    T(unlink(P("d/x")));
    T(unlink(P("s3")));
    fshow(fd);
    list(".");
    for (int n = 0; n < 100; n++) {
        char name[20];
        snprintf(name, sizeof name, "l%d", n);
        if (link(P("a"), P(name)) != 0)
            printf("  %d: %s\n", n, strerrorname_np(errno));
    }
    show("l50");
}

static void symlinks(void)
{
    char b[100] = "", path[PATH_MAX + 10];
    T(mkdir(P("d"), 0755));
    make("d/f", "behind");
    T(symlink("d", P("rel")));
    snprintf(path, sizeof path, "%s/d", here);
    T(symlink(path, P("abs")));
    T(symlink("d/f", P("file")));
    T(symlink("missing", P("dangling")));
    T(symlink("loop2", P("loop1")));
    T(symlink("loop1", P("loop2")));
    T(symlink("..", P("d/up")));
    T(symlink("", P("empty")));
    T(symlink("x", P("d")));
    content("rel/f");
    content("abs/f");
    content("file");
    content("d/up/file");
    content("d/up/rel/up/abs/f");
    content("dangling");
    content("loop1");
    content("loop1/x");
    T(open(P("file"), O_RDONLY | O_NOFOLLOW));
    T(open(P("rel"), O_RDONLY | O_NOFOLLOW | O_DIRECTORY));
    T(open(P("rel/f"), O_RDONLY | O_NOFOLLOW));
    T(open(P("rel"), O_RDONLY | O_DIRECTORY));
    T(open(P("file"), O_RDWR | O_CREAT | O_EXCL, 0644));
    T(open(P("dangling"), O_RDWR | O_CREAT | O_EXCL, 0644));
    T(mkdir(P("dangling"), 0755));
    int fd = T(open(P("dangling"), O_RDWR | O_CREAT, 0644));
    T(write(fd, "there", 5));
    content("missing");
    show("dangling");
    T(open(P("file"), O_WRONLY | O_TRUNC));
    show("d/f");
    T(readlink(P("rel"), b, 100));
    T(readlink(P("abs"), b, 3));
    T(readlink(P("d"), b, 100));
    T(readlink(P("none"), b, 100));
    T(readlink(P("rel"), b, 0));
    T(stat(P("loop1"), &s));
    T(lstat(P("loop1"), &s) ?: (long)s.st_size);
    T(chmod(P("file"), 0600));
    show("d/f");
    T(truncate(P("file"), 9));
    show("d/f");
    T(rename(P("file"), P("moved")));
    content("moved");
    T(rename(P("d"), P("e")));
    content("moved");
    T(symlink("e", P("d")));
    content("moved");
    content("rel/f");
    T(open(P("rel/new"), O_CREAT | O_WRONLY, 0644));
    T(mkdir(P("rel/newd"), 0755));
    T(rename(P("rel/new"), P("abs/newd/new")));
    T(unlink(P("rel/newd/new")));
    T(rmdir(P("d/newd")));
    T(unlink(P("rel")));
    T(unlink(P("loop1")));
    T(rmdir(P("abs")));
    T(symlink("/dev/null", P("null")));
    fd = T(open(P("null"), O_RDWR));
    T(write(fd, "nothing", 7));
    T(symlink("/proc/self/fd", P("fds")));
    T(access(P("fds/0"), F_OK));
    int opened = T(open(P("fds/../fd"), O_RDONLY | O_DIRECTORY) >= 0);
    (void)opened;
    T(lchown(P("null"), getuid(), getgid()));
    struct timespec times[2] = {{100, 5}, {200, 6}};
    T(utimensat(AT_FDCWD, P("null"), times, AT_SYMLINK_NOFOLLOW));
    T(lstat(P("null"), &s) ?: (long)s.st_mtim.tv_sec);
    for (int n = 0; n < 42; n++) {
        char from[20], to[20];
        snprintf(from, sizeof from, "c%d", n);
        snprintf(to, sizeof to, "c%d", n + 1);
        symlink(to, P(from));
    }
    make("c42", "end of the chain");
    content("c1");
    content("c2");
    content("c3");
    list(".");
    list("e");
}

static void at(void)
{
    char b[30];
    T(mkdir(P("d"), 0755));
    int d = T(open(P("d"), O_RDONLY | O_DIRECTORY));
    int f = T(openat(d, "f", O_RDWR | O_CREAT, 0644));
    T(write(f, "at", 2));
    T(mkdirat(d, "e", 0700));
    T(mkdirat(f, "e", 0700));
    T(mkdirat(99, "e", 0700));
    T(openat(f, "x", O_RDONLY));
    T(openat(99, "x", O_RDONLY));
    T(openat(99, "/dev/null", O_RDONLY));
    T(openat(d, "../d/f", O_RDONLY));
    T(openat(d, ".", O_RDONLY));
    T(openat(d, "", O_RDONLY));
    T(fstatat(d, "f", &s, 0) ?: (long)s.st_size);
    T(fstatat(d, "", &s, AT_EMPTY_PATH) ?: (long)s.st_mode);
    T(fstatat(f, "", &s, AT_EMPTY_PATH) ?: (long)s.st_size);
    T(fstatat(f, "", &s, 0));
    T(fstatat(AT_FDCWD, "", &s, AT_EMPTY_PATH) ?: (long)S_ISDIR(s.st_mode));
    T(renameat(d, "f", d, "e/g"));
    T(renameat(d, "e/g", AT_FDCWD, P("h")));
    T(linkat(AT_FDCWD, P("h"), d, "i", 0));
    T(linkat(f, "", d, "j", AT_EMPTY_PATH));
    T(symlinkat("../h", d, "s"));
    T(readlinkat(d, "s", b, 30));
    T(faccessat(d, "s", R_OK, 0));
    T(fchmodat(d, "i", 0604, 0));
    T(fchownat(d, "i", -1, -1, 0));
    show("h");
    T(rename(P("d"), P("moved")));
    T(openat(d, "new", O_RDWR | O_CREAT, 0600));
    T(unlinkat(d, "i", 0));
    T(unlinkat(d, "e", 0));
    T(unlinkat(d, "new", AT_REMOVEDIR));
    T(unlinkat(d, "e", AT_REMOVEDIR));
    T(unlinkat(d, "e", 77));
    list("moved");
    T(fchdir(d));
    T(open("new", O_RDWR));
    T(open("../h", O_RDONLY));
    T(mkdir("below", 0755));
    T(chdir("below"));
    T(chdir("below"));
    make("x", "relative");
    T(stat("../new", &s));
    T(chdir(".."));
    T(rename("below", "../beside"));
    T(chdir("../beside"));
    char *cwd = getcwd(NULL, 0);
    printf("  %s\n", cwd + strlen(here));
    T(close(d));
    T(openat(d, "new", O_RDONLY));
    T(fchdir(f));
    T(fchdir(99));
    T(chdir("../.."));
    T(open("at/h", O_RDONLY));
    struct open_how how = {.flags = O_RDWR | O_CREAT, .mode = 0640};
    T(go_there());
    T(syscall(SYS_openat2, AT_FDCWD, "two", &how, sizeof how));
    how.resolve = RESOLVE_BENEATH;
    T(open_within("moved/../two", &how));
    T(open_within("../at/two", &how));
    how.resolve = RESOLVE_NO_SYMLINKS;
    how.flags = O_RDONLY;
    how.mode = 0;
    T(syscall(SYS_openat2, AT_FDCWD, "moved/s", &how, sizeof how));
    how.mode = 7;
    T(syscall(SYS_openat2, AT_FDCWD, "two", &how, sizeof how));
    T(syscall(SYS_openat2, AT_FDCWD, "two", &how, 3));
}

const test_case name_cases[] = {{"lengths", lengths}, {"slashes", slashes}, {"renames", renames}, {"unlinked", unlinked}, {"hard_links", hard_links},
    {"symlinks", symlinks}, {"at", at}, {NULL, NULL}};
