/* usage: watched DIR FILES: makes files in DIR, and says of each what is done. A reader may do what it likes with a file that is done; those
 * called open-N are written on and on. Each report is true when it is read. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    static char block[3000];
    char path[4096], line[100];
    int open_files[4], total[4] = {0};
    if (argc < 3)
        return 2;
    snprintf(path, sizeof path, "%s/tree", argv[1]);
    if (mkdir(path, 0755) != 0)
        return 3;
    snprintf(path, sizeof path, "%s/tree/log", argv[1]);
    int log = open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
    for (int n = 0; n < 4; n++) {
        snprintf(path, sizeof path, "%s/tree/open-%d", argv[1], n);
        open_files[n] = open(path, O_WRONLY | O_CREAT | (n % 2 ? O_APPEND : 0), 0644);
    }
    for (int n = 0; n < atoi(argv[2]); n++) {
        int len = n * 37 % (int)sizeof block, which = n % 4, ok = 1;
        memset(block, 'a' + n % 26, len);
        snprintf(path, sizeof path, "%s/tree/file-%d", argv[1], n);
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
        ok &= fd >= 0 && write(fd, block, len) == len && close(fd) == 0;
        ok &= write(log, "writer\n", 7) == 7;
        ok &= write(open_files[which], block, 100) == 100;
        total[which] += 100;
        len = snprintf(line, sizeof line, "%s %d %d open-%d %d\n", ok ? "done" : "failed", n, len, which, total[which]);
        if (write(1, line, len) != len)
            return 1;
    }
    return 0;
}
