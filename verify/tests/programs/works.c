/* Makes files with some content in a new directory, and looks at them: by calls, by a stream, in a thread, in a child. usage: works DIR CODE [overflow] */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int files;

__attribute__((noinline)) int make_one(const char *dir, int n)
{
    char path[300], text[100];
    snprintf(path, sizeof path, "%s/f%d", dir, n);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0644);
    if (fd < 0) {
        perror(path);
        exit(20);
    }
    int len = sprintf(text, "content %d\n", n);
    if (write(fd, text, len) != len)
        exit(21);
    memset(text, 0, sizeof text);
    if (pread(fd, text, sizeof text, 0) != len)
        exit(22);
    struct stat st;
    if (fstat(fd, &st) != 0 || st.st_size != len || close(fd) != 0)
        exit(23);
    return ++files;
}

static void *thread(void *dir)
{
    for (int n = 100; n < 140; n++)
        make_one(dir, n);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc < 3 || mkdir(argv[1], 0755) != 0) {
        perror("works");
        return 24;
    }
    const char *dir = argv[1];
    char path[300], line[20];
    for (int n = 0; n < 40; n++)
        make_one(dir, n);
    pthread_t other;
    pthread_create(&other, NULL, thread, (void *)dir);
    pthread_join(other, NULL);
    snprintf(path, sizeof path, "%s/stream", dir);
    FILE *file = fopen(path, "w+");
    fprintf(file, "hello\n");
    rewind(file);
    if (fgets(line, sizeof line, file))
        fputs(line, stdout);
    fclose(file);
    int entries = 0, status;
    DIR *listed = opendir(dir);
    while (readdir(listed))
        entries++;
    closedir(listed);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        snprintf(path, sizeof path, "%s/child", dir);
        file = fopen(path, "w");
        fputs("x", file);
        fclose(file);
        _exit(5);
    }
    waitpid(child, &status, 0);
    printf("%d files, %d entries, child %d\n", files, entries, WEXITSTATUS(status));
    if (argc > 3) {
        volatile char *small = malloc(files);
        small[files] = 1;
        free((void *)small);
    }
    return atoi(argv[2]);
}
