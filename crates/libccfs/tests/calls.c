/* Every function of ccfs.h, on a volume and elsewhere. usage: calls MOUNT ELSEWHERE (the current directory is elsewhere as well) */
#include <ccfs.h>
#include "check.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static void *seen_by_thread(void *fd) {
    static ccfs_stream_t seen;
    seen = ccfs_getstream_fd(*(int *)fd, NULL);
    return &seen;
}

static void elsewhere(const char *path) {
    int fd = open(path, O_RDONLY);
    unsigned int flags = 77;
    CHECK(fd >= 0);
    CHECK(ccfs_is_supported(path) == 0);
    CHECK(ccfs_is_supported_fd(fd) == 0);
    FAILS(setstream(5, 0) == -1, ENOTSUP);
    FAILS(getstream() == 0, ENOTSUP);
    FAILS(newstream(0) == 0, ENOTSUP);
    FAILS(streamsync() == -1, ENOTSUP);
    FAILS(ccfs_setstream_fd(fd, 5, 0) == -1, ENOTSUP);
    FAILS(ccfs_getstream_fd(fd, &flags) == 0, ENOTSUP);
    CHECK(flags == 77);
    FAILS(ccfs_newstream_path(path, 0) == 0, ENOTSUP);
    FAILS(ccfs_streamsync_path(path, 0) == -1, ENOTSUP);
    FAILS(ccfs_syncfs(fd) == -1, ENOTSUP);
    FAILS(ccfs_syncfs(-1) == -1, EBADF);
    FAILS(fbarrier(fd) == -1, ENOTSUP);
    FAILS(fdatabarrier(fd) == -1, ENOTSUP);
    FAILS(cfs_begin() == -1, ENOTSUP);
    FAILS(cfs_commit() == -1, ENOTSUP);
    FAILS(cfs_abort() == -1, ENOTSUP);
    FAILS(ccfs_begin_fd(fd, 0) == 0, ENOTSUP);
    FAILS(ccfs_enter_fd(fd, 7) == -1, ENOTSUP);
    FAILS(ccfs_make_atomic(fd) == -1, ENOTSUP);
    FAILS(ccfs_syncv(&fd, 1) == -1, ENOTSUP);
    /* Nothing is left of a file that could not be made so. */
    char made[64];
    snprintf(made, sizeof made, "/tmp/ccfs-made-%ld", (long)getpid());
    FAILS(ccfs_open_atomic(made, O_RDWR | O_CREAT, 0600) == -1, ENOTSUP);
    FAILS(ccfs_open_atomic(made, O_RDWR | O_CREAT | O_EXCL, 0600) == -1, ENOTSUP);
    FAILS(access(made, F_OK) == -1, ENOENT);
    close(fd);
}

static void wrong(const char *path) {
    FAILS(ccfs_setstream_fd(-1, 5, 0) == -1, EBADF);
    FAILS(ccfs_getstream_fd(987654, NULL) == 0, EBADF);
    FAILS(fbarrier(-1) == -1, EBADF);
    FAILS(fdatabarrier(987654) == -1, EBADF);
    FAILS(ccfs_begin_fd(-1, 0) == 0, EBADF);
    FAILS(ccfs_make_atomic(-1) == -1, EBADF);
    FAILS(ccfs_open_atomic(NULL, O_RDWR, 0) == -1, EFAULT);
    FAILS(ccfs_open_atomic("/nowhere/at/all", O_RDWR, 0) == -1, ENOENT);
    FAILS(ccfs_syncv(NULL, 1) == -1, EFAULT);
    FAILS(ccfs_syncv(NULL, 0) == -1, EINVAL);
    FAILS(ccfs_syncv(NULL, -1) == -1, EINVAL);
    FAILS(ccfs_commit_fd(987654, 0, 0) == -1, EBADF);
    FAILS(ccfs_abort_fd(-1, 0) == -1, EBADF);
    FAILS(ccfs_is_supported(NULL) == -1, EFAULT);
    FAILS(ccfs_is_supported("") == -1, ENOENT);
    FAILS(ccfs_is_supported("/no/such/place") == -1, ENOENT);
    FAILS(ccfs_setstream_path(path, 0, 0) == -1, EINVAL);
    FAILS(ccfs_setstream_path(path, 5, 0x20000000u) == -1, EINVAL);
    FAILS(ccfs_setstream_path(path, CCFS_STREAM_DEFAULT, CCFS_IGNORE_FSYNC) == -1, EINVAL);
    FAILS(ccfs_newstream_path(path, 2) == 0, EINVAL);
}

/* On files, mapped or not, and on directories; also in a stream whose syncs are ignored. */
static void barriers(const char *path) {
    char name[4096];
    snprintf(name, sizeof name, "%s/barriers", path);
    int dir = open(path, O_RDONLY), fd = open(name, O_RDWR | O_CREAT, 0644);
    CHECK(dir >= 0 && fd >= 0 && ftruncate(fd, 8192) == 0);
    CHECK(fbarrier(fd) == 0 && fdatabarrier(fd) == 0 && fbarrier(dir) == 0);
    char *map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    for (int i = 0; i < 100; i++) {
        map[i * 80] = 'm';
        CHECK(pwrite(fd, "x", 1, i) == 1 && fdatabarrier(fd) == 0);
    }
    CHECK(munmap(map, 8192) == 0 && fsync(fd) == 0);
    close(fd);
    close(dir);
}

/* The file in a group: made, and gone or there. */
static void change(const char *name) {
    int fd = open(name, O_RDWR | O_CREAT, 0644);
    CHECK(fd >= 0 && write(fd, "group", 5) == 5);
    close(fd);
}

static void *member(void *name) {
    change(name);
    return NULL;
}

static void groups(const char *path) {
    char name[4096];
    int fd = open(path, O_RDONLY), status;
    pthread_t thread;
    snprintf(name, sizeof name, "%s/grouped", path);
    FAILS(ccfs_commit_fd(fd, 0, 0) == -1, ENOENT);
    FAILS(ccfs_abort_fd(fd, 0) == -1, ENOENT);
    FAILS(ccfs_enter_fd(fd, 0) == -1, EINVAL);
    FAILS(ccfs_enter_fd(fd, 7) == -1, ENOENT);
    ccfs_group_t group = ccfs_begin_fd(fd, 600000);
    CHECK(group != 0);
    FAILS(ccfs_begin_fd(fd, 0) == 0, EBUSY);
    FAILS(ccfs_setstream_fd(fd, 5, 0) == -1, EBUSY);
    FAILS(ccfs_commit_fd(fd, group, 2) == -1, EINVAL);
    CHECK(pthread_create(&thread, NULL, member, name) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(access(name, F_OK) == 0 && ccfs_abort_fd(fd, group) == 0);
    FAILS(access(name, F_OK) == -1, ENOENT);
    CHECK(ccfs_taken_back() != NULL && strcmp(ccfs_taken_back(), "it was asked for") == 0);
    /* One whose time is up. */
    CHECK((group = ccfs_begin_fd(fd, 100)) != 0);
    change(name);
    while (access(name, F_OK) == 0)
        usleep(10000);
    FAILS(ccfs_commit_fd(fd, group, 0) == -1, ECANCELED);
    CHECK(ccfs_taken_back() != NULL && strcmp(ccfs_taken_back(), "its time of 0.1 s was up") == 0);
    /* A child that enters by the handle, and commits for all. */
    int to_parent[2], to_child[2];
    char byte = 0;
    CHECK(pipe(to_parent) == 0 && pipe(to_child) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(read(to_child[0], &group, sizeof group) == sizeof group && ccfs_enter_fd(fd, group) == 0);
        change(name);
        CHECK(ccfs_commit_fd(fd, group, CCFS_ORDERED) == 0 && write(to_parent[1], &byte, 1) == 1);
        _exit(0);
    }
    CHECK((group = ccfs_begin_fd(fd, 0)) != 0 && write(to_child[1], &group, sizeof group) == sizeof group);
    CHECK(read(to_parent[0], &byte, 1) == 1 && waitpid(child, &status, 0) == child && status == 0);
    CHECK(access(name, F_OK) == 0 && ccfs_getstream_fd(fd, NULL) == CCFS_STREAM_DEFAULT);
    /* The short forms. */
    CHECK(setenv("CCFS_MOUNT", path, 1) == 0);
    CHECK(cfs_begin() == 0 && unlink(name) == 0 && cfs_abort() == 0 && access(name, F_OK) == 0);
    CHECK(cfs_begin() == 0 && unlink(name) == 0 && cfs_commit() == 0 && ccfs_taken_back() == NULL);
    FAILS(access(name, F_OK) == -1, ENOENT);
    CHECK(unsetenv("CCFS_MOUNT") == 0);
    close(fd);
}

static void streams(const char *path) {
    int fd = open(path, O_RDONLY), status;
    unsigned int flags = 77;
    char missing[4096];
    pthread_t thread;
    void *seen;
    CHECK(fd >= 0);
    snprintf(missing, sizeof missing, "%s/not-there", path);
    CHECK(ccfs_is_supported(path) == 1 && ccfs_is_supported(missing) == 1 && ccfs_is_supported_fd(fd) == 1);
    CHECK(ccfs_getstream_path(path, &flags) == CCFS_STREAM_DEFAULT && flags == 0);
    ccfs_stream_t one = ccfs_newstream_fd(fd, CCFS_IGNORE_FSYNC), two = ccfs_newstream_path(missing, 0);
    CHECK(one > 1 && two > 1 && one != two);
    CHECK(ccfs_getstream_fd(fd, NULL) == CCFS_STREAM_DEFAULT);
    CHECK(ccfs_setstream_fd(fd, one, CCFS_KEEP_FLAGS) == 0);
    CHECK(ccfs_getstream_fd(fd, &flags) == one && flags == (CCFS_IGNORE_FSYNC | CCFS_CHOSEN));
    CHECK(ccfs_setstream_path(path, one, CCFS_CHOSEN) == 0);
    CHECK(ccfs_getstream_fd(fd, &flags) == one && flags == CCFS_CHOSEN);
    /* Threads and children inherit. */
    CHECK(pthread_create(&thread, NULL, seen_by_thread, &fd) == 0 && pthread_join(thread, &seen) == 0);
    CHECK(*(ccfs_stream_t *)seen == one);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(ccfs_getstream_fd(fd, NULL) == one ? 0 : 1);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(ccfs_streamsync_fd(fd, 0) == 0 && ccfs_streamsync_path(path, two) == 0);
    CHECK(ccfs_syncfs(fd) == 0);
    /* The short forms, through the environment. */
    CHECK(setenv("CCFS_MOUNT", path, 1) == 0);
    CHECK(getstream() == one);
    ccfs_stream_t three = newstream(CCFS_IGNORE_FSYNC);
    CHECK(three > 1 && setstream(three, CCFS_KEEP_FLAGS) == 0 && getstream() == three);
    CHECK(streamsync() == 0);
    CHECK(setstream(CCFS_STREAM_DEFAULT, 0) == 0 && getstream() == CCFS_STREAM_DEFAULT);
    CHECK(ccfs_getstream_fd(fd, &flags) == CCFS_STREAM_DEFAULT && flags == CCFS_CHOSEN);
    /* As it was at first. */
    FAILS(setstream(CCFS_STREAM_POLICY, CCFS_IGNORE_FSYNC) == -1, EINVAL);
    CHECK(setstream(CCFS_STREAM_POLICY, CCFS_KEEP_FLAGS) == 0);
    CHECK(ccfs_getstream_fd(fd, &flags) == CCFS_STREAM_DEFAULT && flags == 0);
    /* And through the current directory. */
    CHECK(setenv("CCFS_MOUNT", "", 1) == 0);
    FAILS(getstream() == 0, ENOTSUP);
    CHECK(chdir(path) == 0 && getstream() == CCFS_STREAM_DEFAULT);
    close(fd);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    elsewhere(argv[2]);
    wrong(argv[1]);
    barriers(argv[1]);
    groups(argv[1]);
    streams(argv[1]);
    puts("all calls");
    return 0;
}
