/* Writes a file beside its place, renames it, notes in a log that it is done: what a crash makes of this depends on the file system.
 * An example for `ccfs crash model`. */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
#include <string.h>
#include <stdlib.h>
int main(void) {
    char buf[8192]; memset(buf, 'n', sizeof buf);
    int fd = open("config.tmp", O_CREAT | O_WRONLY | O_TRUNC, 0644);
    if (write(fd, buf, sizeof buf) != sizeof buf) return 1;
    close(fd);
    if (rename("config.tmp", "config")) return 1;
    fd = open("log", O_CREAT | O_WRONLY | O_APPEND, 0644);
    if (write(fd, "done\n", 5) != 5) return 1;
    fsync(fd);
    printf("saved\n"); fflush(stdout);
    return 0;
}
