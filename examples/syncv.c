/* Two files that always agree, without a journal: both are open O_ATOMIC, and one call makes the changes of both durable.
 *
 * usage: syncv DIR ROUNDS
 *
 * Prints "committed N" when both files hold N. Whatever crashes, the program too, the files hold the last N that was committed, or the next one.
 * Where files cannot be O_ATOMIC it syncs one after the other, and a crash between the two leaves them apart.
 *
 * Build: cc syncv.c $(pkg-config --cflags --libs ccfs)
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

int main(int argc, char **argv) {
    static const char *const names[2] = {"counter", "copy"};
    int fds[2], atomic = 1;
    if (argc != 3) {
        fprintf(stderr, "usage: syncv DIR ROUNDS\n");
        return 2;
    }
    must(chdir(argv[1]) == 0, argv[1]);
    for (int i = 0; i < 2; i++) {
        fds[i] = open(names[i], O_RDWR | O_CREAT, 0644);
        must(fds[i] >= 0, names[i]);
        if (ccfs_make_atomic(fds[i]) != 0) {
            must(errno == ENOTSUP, "O_ATOMIC");
            atomic = 0;
        }
    }
    puts(atomic ? "atomic" : "plain");
    fflush(stdout);
    long rounds = atol(argv[2]);
    for (long n = 1; n <= rounds; n++) {
        char text[32];
        int length = snprintf(text, sizeof text, "%ld\n", n);
        for (int i = 0; i < 2; i++)
            must(pwrite(fds[i], text, (size_t)length, 0) == length, "write");
        if (atomic)
            must(ccfs_syncv(fds, 2) == 0, "syncv");
        else
            must(fsync(fds[0]) == 0 && fsync(fds[1]) == 0, "fsync");
        printf("committed %ld\n", n);
        fflush(stdout);
    }
    return 0;
}
