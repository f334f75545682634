/* A program that needs the order of its updates and hardly ever durability: a log, and a state that names the log's last record.
 *
 * usage: ordered DIR ROUNDS
 *
 * On ccfs it never calls fsync; after a crash the state names a record that is in the log, always. On other file systems
 * it pays two fsyncs a round for the same. Prints "synced N" when everything up to round N is durable.
 *
 * Build: cc ordered.c $(pkg-config --cflags --libs ccfs)
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

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: ordered DIR ROUNDS\n");
        return 2;
    }
    must(chdir(argv[1]) == 0, argv[1]);

    ccfs_stream_t own = newstream(CCFS_IGNORE_FSYNC);
    int ordered = own != 0 && setstream(own, CCFS_KEEP_FLAGS) == 0;
    must(ordered || errno == ENOTSUP, "setstream");
    printf(ordered ? "ordered\n" : "plain\n");

    int log = open("log", O_WRONLY | O_CREAT | O_APPEND, 0644);
    must(log >= 0, "log");
    int dir = open(".", O_RDONLY | O_DIRECTORY);
    must(dir >= 0, "directory");
    for (long round = 1; round <= atol(argv[2]); round++) {
        char text[64];
        snprintf(text, sizeof text, "record %ld\n", round);
        write_all(log, text);
        if (!ordered)
            must(fsync(log) == 0, "fsync");
        int state = open("state.new", O_WRONLY | O_CREAT | O_TRUNC, 0644);
        must(state >= 0, "state.new");
        snprintf(text, sizeof text, "%ld\n", round);
        write_all(state, text);
        if (!ordered)
            must(fsync(state) == 0, "fsync");
        close(state);
        must(rename("state.new", "state") == 0, "rename");
        if (round % 10 == 0) {
            must((ordered ? streamsync() : fsync(dir)) == 0, "sync");
            printf("synced %ld\n", round);
            fflush(stdout);
        }
    }
    return 0;
}
