/* usage: same BASE [MODE [CASE...]]; MODE: relative, absolute, below (the working directory), known (to the kernel). Prints one line for each call. */
#include "same.h"

char here[PATH_MAX];
static const char *before = "";

const char *P(const char *name)
{
    static _Thread_local char buffers[8][2 * PATH_MAX];
    static _Thread_local int next;
    if (!*before)
        return name;
    char *to = buffers[next++ % 8];
    snprintf(to, sizeof buffers[0], "%s/%s", before, name);
    return to;
}

int go_there(void)
{
    if (strcmp(before, here))
        before = "";
    return chdir(here);
}

long told(const char *where, int line, const char *call, long got)
{
    int error = errno;
    if (got == -1)
        printf("%s:%d %s = %s\n", where, line, call, strerrorname_np(error) ?: "no error");
    else
        printf("%s:%d %s = %ld\n", where, line, call, got);
    errno = error;
    return got;
}

void is(const char *where, int line, const char *what, int right)
{
    int error = errno;
    printf("%s:%d %s: %s\n", where, line, what, right ? "right" : "wrong");
    errno = error;
}

static void shown(const char *what, const struct stat *s)
{
    /* A directory's size is its own affair. */
    long size = S_ISDIR(s->st_mode) ? 0 : (long)s->st_size;
    printf("  %s: mode %o, links %ld, owner %u:%u, size %ld, device %lx\n", what, s->st_mode, (long)s->st_nlink, s->st_uid, s->st_gid, size,
           (long)s->st_rdev);
}

void show(const char *name)
{
    struct stat s;
    if (lstat(P(name), &s) != 0)
        printf("  %s: %s\n", name, strerrorname_np(errno));
    else
        shown(name, &s);
}

void fshow(int fd)
{
    struct stat s;
    if (fstat(fd, &s) != 0)
        printf("  descriptor: %s\n", strerrorname_np(errno));
    else
        shown("descriptor", &s);
}

void fcontent(int fd)
{
    static unsigned char buffer[70000];
    uint64_t hash = 14695981039346656037u;
    char start[33] = "";
    long all = 0, got;
    while ((got = pread(fd, buffer, sizeof buffer, all)) > 0) {
        for (long n = 0; n < got; n++) {
            hash = (hash ^ buffer[n]) * 1099511628211u;
            if (all + n < 32)
                start[all + n] = buffer[n] >= ' ' && buffer[n] < 127 ? buffer[n] : '.';
        }
        all += got;
    }
    printf("  content: %ld bytes, %016lx, \"%s\"%s\n", all, (long)hash, start, got < 0 ? strerrorname_np(errno) : "");
}

void content(const char *name)
{
    int fd = open(P(name), O_RDONLY | O_CLOEXEC);
    printf("  %s:%s\n", name, fd < 0 ? strerrorname_np(errno) : "");
    if (fd >= 0)
        fcontent(fd);
    close(fd);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void list(const char *name)
{
    static char *names[10000];
    int n = 0;
    DIR *dir = opendir(P(name));
    printf("  list of %s:%s\n", name, dir ? "" : strerrorname_np(errno));
    if (!dir)
        return;
    for (struct dirent *e; (e = readdir(dir)) && n < 10000;) {
        struct stat s;
        int same = fstatat(dirfd(dir), e->d_name, &s, AT_SYMLINK_NOFOLLOW) == 0 && (s.st_ino == e->d_ino || !strcmp(e->d_name, ".."));
        char line[400];
        snprintf(line, sizeof line, "%s %d%s", e->d_name, e->d_type, same ? "" : ", another inode");
        names[n++] = strdup(line);
    }
    closedir(dir);
    qsort(names, n, sizeof names[0], by_name);
    for (int i = 0; i < n; i++) {
        printf("    %s\n", names[i]);
        free(names[i]);
    }
}

void make(const char *name, const char *text)
{
    int fd = open(P(name), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text) || close(fd) != 0)
        printf("  %s cannot be made: %s\n", name, strerrorname_np(errno));
}

void ended(pid_t child)
{
    int status = -1;
    fflush(stdout);
    if (child < 0 || waitpid(child, &status, 0) != child)
        printf("  no child: %s\n", strerrorname_np(errno));
    else if (status != 0)
        printf("  the child ended with %s %d\n", WIFSIGNALED(status) ? "signal" : "code", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

static const test_case *const all[] = {io_cases, name_cases, tree_cases, process_cases, special_cases, library_cases, thread_cases};

/* In a process of its own; what takes longer than 20 seconds hangs. */
static void apart(char **argv, const char *mode, const char *name)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    printf("== %s\n", name);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        sigprocmask(SIG_UNBLOCK, &set, NULL);
        execl("/proc/self/exe", argv[0], argv[1], mode, "-", name, NULL);
        _exit(99);
    }
    struct timespec patience = {20, 0};
    if (sigtimedwait(&set, NULL, &patience) < 0 && errno == EAGAIN) {
        printf("%s does not end\n", name);
        kill(child, SIGKILL);
    }
    ended(child);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    const char *mode = argc > 2 ? argv[2] : "relative";
    setvbuf(stdout, NULL, _IOLBF, 4096);
    umask(022);
    if (argc < 5 || strcmp(argv[3], "-")) {
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGCHLD);
        sigprocmask(SIG_BLOCK, &set, NULL);
        for (unsigned f = 0; f < sizeof all / sizeof all[0]; f++)
            for (const test_case *c = all[f]; c->name; c++) {
                int chosen = argc < 4;
                for (int n = 3; n < argc; n++)
                    chosen |= !strcmp(argv[n], c->name);
                if (chosen)
                    apart(argv, mode, c->name);
            }
        return 0;
    }
    for (unsigned f = 0; f < sizeof all / sizeof all[0]; f++)
        for (const test_case *c = all[f]; c->name; c++)
            if (!strcmp(c->name, argv[4])) {
                snprintf(here, sizeof here, "%s/%s", argv[1], c->name);
                before = !strcmp(mode, "absolute") ? here : !strcmp(mode, "below") ? c->name : "";
                if (!strcmp(mode, "known"))
                    CHILD(mkdir(here, 0755));
                else
                    mkdir(here, 0755);
                if (strcmp(mode, "absolute") && chdir(*before ? argv[1] : here) != 0)
                    return 98;
                c->run();
                fflush(stdout);
                return 0;
            }
    return 97;
}
