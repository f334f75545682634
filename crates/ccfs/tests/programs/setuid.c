/* Belongs to root, with the bit S_ISUID: says who it is, writes a file, and becomes a command. usage: setuid FILE [COMMAND...] */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    printf("uid %d, effective %d, LD_PRELOAD %d\n", getuid(), geteuid(), getenv("LD_PRELOAD") != NULL);
    fflush(stdout);
    int fd = open(argv[1], O_WRONLY | O_CREAT | O_EXCL, 0644);
    if (fd < 0 || write(fd, "by root\n", 8) != 8 || close(fd) != 0)
        perror("setuid");
    if (argc > 2 && setuid(0) == 0)
        execvp(argv[2], argv + 2);
    return 4;
}
