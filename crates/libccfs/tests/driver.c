/* The C library's calls, step by step: one line of stdin is a step, one number on stdout its errno, 0 for success.
 *
 * verify/tests/tests/calls.rs has the steps; python/tests/driver.py and verify/tests/src/bin/ccfs-calls.rs do the same. */
#define _GNU_SOURCE
#include <ccfs.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAPPED 8192
#define NAMES 128
#define WORDS 512

/* What the steps have given a name: descriptors, or streams and groups. */
struct names {
    int count;
    struct named {
        char name[32];
        int fd;
        char *map;
        uint64_t id;
    } of[NAMES];
};
static struct names files, ids;
static char place[32];

static struct named *find(struct names *names, const char *name) {
    for (int i = 0; i < names->count; i++)
        if (strcmp(names->of[i].name, name) == 0)
            return &names->of[i];
    if (names->count == NAMES || strlen(name) >= sizeof names->of[0].name)
        abort();
    strcpy(names->of[names->count].name, name);
    return &names->of[names->count++];
}

static int fd_of(const char *slot) {
    if (strcmp(slot, "closed") == 0)
        return 987654;
    return strcmp(slot, "negative") == 0 ? -1 : find(&files, slot)->fd;
}

static uint64_t id_of(const char *name) {
    if (strcmp(name, "default") == 0)
        return CCFS_STREAM_DEFAULT;
    if (strcmp(name, "own") == 0)
        return 0;
    return strcmp(name, "unknown") == 0 ? 7 : find(&ids, name)->id;
}

/* The descriptor is the slot's, unless it is -1. */
static int opened(const char *slot, int fd) {
    if (fd >= 0)
        find(&files, slot)->fd = fd;
    return fd < 0 ? -1 : 0;
}

/* A stream or a group; 0 is an error. */
static int made(const char *name, uint64_t id) {
    if (id != 0)
        find(&ids, name)->id = id;
    return id == 0 ? -1 : 0;
}

static int other(void) {
    errno = EIO;
    return -1;
}

static int open_as(const char *slot, const char *path, const char *how) {
    int flags = strcmp(how, "new") == 0 ? O_RDWR | O_CREAT : strcmp(how, "path") == 0 ? O_PATH : O_RDONLY;
    return opened(slot, open(path, flags, 0644));
}

static int reads(const char *slot, const char *text) {
    char bytes[64] = {0};
    if (strlen(text) > sizeof bytes)
        abort();
    if (pread(fd_of(slot), bytes, strlen(text), 0) < 0)
        return -1;
    return memcmp(bytes, text, strlen(text)) == 0 ? 0 : other();
}

static int step(char **w, int n) {
    static int fds[WORDS];
    int pair[2], at = place[0] ? fd_of(place) : -1;
    struct named *slot;
#define IS(what, words) (strcmp(w[0], what) == 0 && n == 1 + (words))
    if (IS("cd", 1))
        return chdir(w[1]);
    if (IS("at", 1))
        return snprintf(place, sizeof place, "%s", w[1]) < 0;
    if (IS("open", 3))
        return open_as(w[1], w[2], w[3]);
    if (IS("pipe", 1))
        return pipe(pair) == 0 && close(pair[1]) == 0 ? opened(w[1], pair[0]) : -1;
    if (IS("dup", 2))
        return opened(w[2], dup(fd_of(w[1])));
    if (IS("close", 1)) {
        slot = find(&files, w[1]);
        if (slot->map != NULL && munmap(slot->map, MAPPED) != 0)
            return -1;
        slot->map = NULL;
        return close(slot->fd);
    }
    if (IS("size", 2))
        return ftruncate(fd_of(w[1]), atol(w[2]));
    if (IS("map", 1)) {
        slot = find(&files, w[1]);
        slot->map = mmap(NULL, MAPPED, PROT_READ | PROT_WRITE, MAP_SHARED, slot->fd, 0);
        return slot->map == MAP_FAILED ? -1 : 0;
    }
    if (IS("store", 3)) {
        memcpy(find(&files, w[1])->map + atol(w[2]), w[3], strlen(w[3]));
        return 0;
    }
    if (IS("write", 3))
        return pwrite(fd_of(w[1]), w[3], strlen(w[3]), atol(w[2])) < 0 ? -1 : 0;
    if (IS("reads", 2))
        return reads(w[1], w[2]);
    if (IS("rename", 2))
        return rename(w[1], w[2]);
    if (IS("fsync", 1))
        return fsync(fd_of(w[1]));
    if (IS("open_atomic", 2))
        return opened(w[1], ccfs_open_atomic(w[2], O_RDWR | O_CREAT, 0644));
    if (IS("make_atomic", 1))
        return ccfs_make_atomic(fd_of(w[1]));
    if (strcmp(w[0], "syncv") == 0) {
        for (int i = 1; i < n; i++)
            fds[i - 1] = fd_of(w[i]);
        return ccfs_syncv(fds, n - 1);
    }
    if (IS("fbarrier", 1))
        return fbarrier(fd_of(w[1]));
    if (IS("fdatabarrier", 1))
        return fdatabarrier(fd_of(w[1]));
    if (IS("newstream", 2))
        return made(w[1], ccfs_newstream_fd(at, strcmp(w[2], "ignore") == 0 ? CCFS_IGNORE_FSYNC : 0));
    if (IS("setstream", 1))
        return ccfs_setstream_fd(at, id_of(w[1]), CCFS_KEEP_FLAGS);
    if (IS("leave", 0))
        return ccfs_setstream_fd(at, CCFS_STREAM_POLICY, CCFS_KEEP_FLAGS);
    if (IS("instream", 1)) {
        ccfs_stream_t stream = ccfs_getstream_fd(at, NULL);
        return stream == 0 ? -1 : stream == id_of(w[1]) ? 0 : other();
    }
    if (IS("streamsync", 1))
        return ccfs_streamsync_fd(at, id_of(w[1]));
    if (IS("sync_volume", 0))
        return ccfs_syncfs(at);
    if (IS("begin", 1))
        return made(w[1], ccfs_begin_fd(at, 0));
    if (IS("commit", 1))
        return ccfs_commit_fd(at, id_of(w[1]), 0);
    if (IS("commit_ordered", 1))
        return ccfs_commit_fd(at, id_of(w[1]), CCFS_ORDERED);
    if (IS("abort", 1))
        return ccfs_abort_fd(at, id_of(w[1]));
    if (IS("enter", 1))
        return ccfs_enter_fd(at, id_of(w[1]));
    fprintf(stderr, "not a step: %s\n", w[0]);
    abort();
}

int main(void) {
    static char line[8192], *words[WORDS];
    while (fgets(line, sizeof line, stdin) != NULL) {
        int n = 0;
        line[strcspn(line, "\n")] = 0;
        for (char *word = strtok(line, " "); word != NULL && n < WORDS; word = strtok(NULL, " "))
            words[n++] = word;
        errno = 0;
        printf("%d\n", step(words, n) == 0 ? 0 : errno);
        fflush(stdout);
    }
    return 0;
}
