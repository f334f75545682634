/* usage: random_calls DIR SEED CALLS: random calls in DIR, which may be there, some by children, with a look from outside now and then. Prints each with its result. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t state;
static const char *base;
static char data[20000];
/* The process works elsewhere, where nothing is to be made. */
static int is_elsewhere;

static unsigned below(unsigned n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
}

static uint32_t hash(const char *from, long len)
{
    uint32_t h = 2166136261u;
    for (long n = 0; n < len; n++)
        h = (h ^ (unsigned char)from[n]) * 16777619;
    return h;
}

/* From the root, or relative to where the process is; mostly files in directories of the first and second floor. */
static const char *path(void)
{
    static char paths[4][4200];
    static int next;
    static const char *const forms[] = {"d%u/f%u", "d%u/f%u", "d%u", "d%u/d%u/f%u", "d%u/d%u", "f%u", "d%u/../d%u/f%u", "d%u/s%u", "s%u/f%u", "d%u/f%u/"};
    char *to = paths[next++ % 4], name[100];
    unsigned a = below(4), b = below(4), c = below(4), form = below(30);
    snprintf(name, sizeof name, forms[form < 10 ? form : form % 5], a, b, c);
    snprintf(to, sizeof paths[0], "%s%s%s", below(8) || is_elsewhere ? base : "", below(8) ? "/" : "/./", name);
    if (to[0] == '/' && to[1] != 0 && strncmp(to, base, strlen(base)))
        memmove(to, to + (to[1] == '.' ? 3 : 1), strlen(to));
    return to;
}

static void list(const char *name)
{
    long sum = 0, count = 0;
    DIR *dir = opendir(name);
    if (!dir) {
        printf(" %s", strerrorname_np(errno));
        return;
    }
    for (struct dirent *e; (e = readdir(dir)); count++)
        sum += hash(e->d_name, strlen(e->d_name)) ^ e->d_type;
    closedir(dir);
    printf(" %ld names, %lx", count, sum);
}

static void calls(int count, int depth);

static void one(int depth)
{
    int fd = 3 + below(12), with = 3 + below(12);
    const char *a = path(), *b = path();
    long got = 0, at = below(9000), len = below(4) ? below(900) : below(9000);
    unsigned what = below(62);
    struct stat s;
    static const int flags[] = {O_RDWR | O_CREAT, O_RDWR | O_CREAT, O_RDWR | O_CREAT | O_EXCL, O_WRONLY | O_CREAT | O_APPEND, O_RDWR | O_APPEND,
                                O_RDONLY, O_RDONLY, O_RDWR | O_TRUNC, O_WRONLY | O_CREAT | O_TRUNC, O_PATH, O_RDONLY | O_DIRECTORY, O_RDONLY | O_NOFOLLOW};
    const char *short_a = strncmp(a, base, strlen(base)) ? a : a + strlen(base), *short_b = strncmp(b, base, strlen(base)) ? b : b + strlen(base);
    printf("%d.%u %d %d %s %s %ld %ld:", depth, what, fd, with, short_a, short_b, at, len);
    memset(data, 'a' + at % 26, len);
    errno = 0;
    switch (what) {
    case 0 ... 11: got = open(a, flags[below(12)] | (below(3) ? 0 : O_CLOEXEC), 0600 + below(2) * 044); break;
    case 12 ... 17: got = write(fd, data, len); break;
    case 18: got = pwrite(fd, data, len, at); break;
    case 19 ... 20: got = read(fd, data, len); if (got > 0) printf(" %x", hash(data, got)); break;
    case 21 ... 22: got = pread(fd, data, len, at); if (got > 0) printf(" %x", hash(data, got)); break;
    case 23: got = lseek(fd, at, below(3)); break;
    case 24 ... 26: got = close(fd); break;
    case 27: got = dup2(fd, with); break;
    case 28: got = dup(fd); break;
    case 29: got = ftruncate(fd, at); break;
    case 30: got = truncate(a, at); break;
    case 31 ... 33: got = rename(a, b); break;
    case 34 ... 35: got = unlink(a); break;
    case 36 ... 39: got = mkdir(a, 0755); break;
    case 40: got = rmdir(a); break;
    case 41: got = link(a, b); break;
    case 42: got = symlink(below(2) ? "f1" : "../d1", a); break;
    case 43: got = stat(a, &s); if (got == 0) printf(" %o %ld %ld", s.st_mode, (long)s.st_nlink, S_ISDIR(s.st_mode) ? 0 : (long)s.st_size); break;
    case 44: got = lstat(a, &s); if (got == 0) printf(" %o %ld %ld", s.st_mode, (long)s.st_nlink, S_ISDIR(s.st_mode) ? 0 : (long)s.st_size); break;
    case 45 ... 46: got = fstat(fd, &s); if (got == 0) printf(" %o %ld %ld", s.st_mode, (long)s.st_nlink, S_ISDIR(s.st_mode) ? 0 : (long)s.st_size); break;
    case 47: list(a); break;
    case 48: got = chmod(a, below(2) ? 0755 : 0700); break;
    case 49: got = fchmod(fd, below(2) ? 0644 : 0600); break;
    case 50: got = is_elsewhere ? 0 : below(3) ? chdir(base) : below(2) ? chdir(a) : fchdir(fd); break;
    case 51: got = openat(fd, below(2) ? "f1" : "d1", O_RDONLY | (below(2) ? O_CREAT : 0), 0644); break;
    case 52: got = below(2) ? mkdirat(fd, "d2", 0755) : unlinkat(fd, "f1", 0); break;
    case 53: got = flock(fd, LOCK_SH | LOCK_NB); break;
    case 54: got = fcntl(fd, F_SETFL, below(2) ? O_APPEND : 0); break;
    case 55: got = fcntl(fd, F_GETFL); break;
    case 56: {
        char *m = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        got = m == MAP_FAILED ? -1 : 0;
        if (got == 0 && fstat(fd, &s) == 0 && s.st_size > 100)
            m[50] = '*';
        if (got == 0)
            munmap(m, 4096);
        break;
    }
    case 57: got = fsync(fd); break;
    case 58 ... 59:
        if (depth < 2) {
            int how = below(2), more = 1 + below(6);
            fflush(stdout);
            pid_t child = fork();
            if (child == 0) {
                puts("");
                calls(more, depth + 1);
                fflush(stdout);
                if (how)
                    _exit(0);
                /* From outside: without the library. */
                char *no[] = {"PATH=/usr/bin:/bin", NULL};
                execle("/bin/sh", "sh", "-c", "cat \"$1\" 2>/dev/null | cksum; ls \"$1\" 2>&1 | wc -l; stat -Lc '%a %h %F' \"$1\" 2>/dev/null", "sh", a, NULL, no);
                _exit(1);
            }
            int status;
            waitpid(child, &status, 0);
            for (int n = 0; n < 7; n++)
                below(2);
            printf(" status %x", status);
        }
        break;
    case 60: got = fcntl(fd, F_DUPFD, 3 + at % 10); break;
    case 61: got = access(a, below(8)); break;
    }
    if (got == -1)
        printf(" %s\n", strerrorname_np(errno));
    else
        printf(" %ld\n", got);
}

static void calls(int count, int depth)
{
    while (count-- > 0)
        one(depth);
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    /* Nothing that others have opened is touched. */
    closefrom(3);
    base = argv[1];
    state = strtoull(argv[2], NULL, 10) * 1000003;
    umask(022);
    /* What another run has left is there. */
    if ((mkdir(base, 0755) != 0 && errno != EEXIST) || chdir(base) != 0)
        return 3;
    is_elsewhere = below(2);
    if (is_elsewhere && chdir("..") != 0)
        return 4;
    calls(atoi(argv[3]), 0);
    return 0;
}
