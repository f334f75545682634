/* usage: reports DIR SEED: works in DIR until it is killed. Before each call a line that names it, behind it what it returned. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t state;

static unsigned below(unsigned n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
}

static void say(const char *format, ...)
{
    char line[300];
    va_list args;
    va_start(args, format);
    int len = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (write(1, line, len) != len)
        _exit(1);
}

static void name(char *to, size_t room)
{
    snprintf(to, room, "d%u/f%u", below(5), below(15));
}

int main(int argc, char **argv)
{
    static char block[9000];
    int slots[6] = {-1, -1, -1, -1, -1, -1};
    char a[40], b[40];
    if (argc < 3)
        return 2;
    state = strtoull(argv[2], NULL, 10);
    char dir[4096];
    snprintf(dir, sizeof dir, "%s", argv[1]);
    size_t end = strlen(dir);
#define IN(name) (dir[end] = '/', snprintf(dir + end + 1, sizeof dir - end - 1, "%s", name), dir)
    char other[4096];
    for (;;) {
        unsigned what = below(40), slot = below(6), len = below(8) ? below(1000) : below(9000), byte = 'a' + below(26);
        long got;
        name(a, sizeof a);
        name(b, sizeof b);
        snprintf(other, sizeof other, "%s/%s", argv[1], b);
        if (what < 10) {
            if (slots[slot] >= 0) {
                say("close %u\n", slot);
                say("= %d\n", close(slots[slot]));
                slots[slot] = -1;
            }
            say("open %u %s\n", slot, a);
            slots[slot] = open(IN(a), O_RDWR | O_CREAT | O_APPEND, 0644);
            got = slots[slot] < 0 ? -1 : 0;
        } else if (what < 25) {
            say("write %u %u %u\n", slot, len, byte);
            memset(block, byte, len);
            got = write(slots[slot], block, len);
        } else if (what < 27) {
            say("truncate %u %u\n", slot, len);
            got = ftruncate(slots[slot], len);
        } else if (what < 31) {
            say("rename %s %s\n", a, b);
            got = rename(IN(a), other);
        } else if (what < 34) {
            say("unlink %s\n", a);
            got = unlink(IN(a));
        } else if (what < 35) {
            say("link %s %s\n", a, b);
            got = link(IN(a), other);
        } else {
            a[2] = 0;
            say(what < 39 ? "mkdir %s\n" : "rmdir %s\n", a);
            got = what < 39 ? mkdir(IN(a), 0755) : rmdir(IN(a));
        }
        say("= %ld\n", got);
    }
}
