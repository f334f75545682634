/* Three files that have to agree, and agree after any crash: a counter, a copy of it, and a log.
 *
 * usage: atomic DIR ROUNDS
 *
 * Each round writes the next number in place into "counter", replaces "copy" by a new file, and appends to "log": one atomic group.
 * Every third round finds something wrong in the middle and takes back what it has done so far. Prints "committed N" when round N is
 * durable. Where there are no groups the same steps are done without them, and only hope keeps the files together.
 *
 * Build: cc atomic.c $(pkg-config --cflags --libs ccfs)
 */
#include <ccfs.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    return -1;
}

static int put(const char *name, int flags, const char *text) {
    int fd = open(name, O_WRONLY | O_CREAT | flags, 0644);
    if (fd < 0)
        return failed(name);
    ssize_t written = write(fd, text, strlen(text));
    if (close(fd) != 0 || written != (ssize_t)strlen(text))
        return failed(name);
    return 0;
}

/* Wrong on purpose: stops after the first steps. */
static int steps(long round, int wrong) {
    char text[64];
    snprintf(text, sizeof text, "%09ld\n", round);
    if (put("counter", 0, text) != 0 || put("copy.new", O_TRUNC, text) != 0)
        return -1;
    if (wrong)
        return -1;
    if (rename("copy.new", "copy") != 0)
        return failed("rename");
    return put("log", O_APPEND, text);
}

int main(int argc, char **argv) {
    if (argc != 3 || chdir(argv[1]) != 0) {
        fprintf(stderr, "usage: atomic DIR ROUNDS\n");
        return 2;
    }
    int groups = ccfs_is_supported(".") == 1;
    printf(groups ? "atomic\n" : "plain\n");
    fflush(stdout);

    for (long round = 1; round <= atol(argv[2]); round++) {
        if (groups && round % 3 == 0) {
            if (cfs_begin() != 0)
                return failed("cfs_begin") != 0;
            if (steps(round, 1) == 0 || cfs_abort() != 0)
                return failed("cfs_abort") != 0;
        }
        if (groups && cfs_begin() != 0)
            return failed("cfs_begin") != 0;
        if (steps(round, 0) != 0) {
            cfs_abort();
            return 1;
        }
        if (groups && cfs_commit() != 0)
            return failed("cfs_commit") != 0;
        printf("committed %ld\n", round);
        fflush(stdout);
    }
    return 0;
}
