/* The program of ordered.c for those who do not want streams: a barrier wherever one step has to come before the next.
 *
 * usage: barriers DIR ROUNDS
 *
 * Where there are no barriers, fdatasync takes their place: the same program is right everywhere, and fast on ccfs. Prints
 * "synced N" when everything up to round N is durable: one fsync makes durable what all barriers before it ordered.
 *
 * Build: cc barriers.c $(pkg-config --cflags --libs ccfs)
 */
#include <ccfs.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void must(int ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static void write_all(int fd, const char *text) {
    must(write(fd, text, strlen(text)) == (ssize_t)strlen(text), "write");
}

static int barriers = 1;

/* What was done to the file comes before whatever is done next. */
static void order(int fd) {
    if (barriers && fdatabarrier(fd) == 0)
        return;
    must(!barriers || errno == ENOTSUP, "fdatabarrier");
    barriers = 0;
    must(fdatasync(fd) == 0, "fdatasync");
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: barriers DIR ROUNDS\n");
        return 2;
    }
    must(chdir(argv[1]) == 0, argv[1]);
    int log = open("log", O_WRONLY | O_CREAT | O_APPEND, 0644);
    must(log >= 0, "log");
    int dir = open(".", O_RDONLY | O_DIRECTORY);
    must(dir >= 0, "directory");
    order(log);
    printf(barriers ? "ordered\n" : "plain\n");
    fflush(stdout);

    for (long round = 1; round <= atol(argv[2]); round++) {
        char text[64];
        snprintf(text, sizeof text, "record %ld\n", round);
        write_all(log, text);
        order(log);
        int state = open("state.new", O_WRONLY | O_CREAT | O_TRUNC, 0644);
        must(state >= 0, "state.new");
        snprintf(text, sizeof text, "%ld\n", round);
        write_all(state, text);
        order(state);
        close(state);
        must(rename("state.new", "state") == 0, "rename");
        if (round % 10 == 0) {
            must(fsync(dir) == 0, "fsync");
            printf("synced %ld\n", round);
            fflush(stdout);
        }
    }
    return 0;
}
