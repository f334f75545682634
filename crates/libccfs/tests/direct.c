/* The direct calls of ccfs.h, compared with what ordinary system calls see. Compiled as C and as C++.
 * usage: direct DIR IS_DIRECT (1: the volume is mounted with direct=on; 0: anywhere else, where all goes through the mount) */
#include <ccfs.h>
#include "check.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define BIG (300u << 10)

static int direct;
static char big[BIG], seen[BIG + 1];

/* What the kernel says of a file is what is meant to be there. */
static void holds(int dirfd, const char *path, const void *data, size_t length) {
    int fd = openat(dirfd, path, O_RDONLY);
    CHECK(fd >= 0 && read(fd, seen, length + 1) == (ssize_t)length && memcmp(seen, data, length) == 0);
    close(fd);
}

/* The same by both calls; of what is held the direct one is asked first. */
static void same_stat(const struct stat *a, int dirfd, const char *path) {
    struct stat b;
    CHECK(fstatat(dirfd, path, &b, AT_SYMLINK_NOFOLLOW) == 0);
    CHECK(a->st_dev == b.st_dev && a->st_ino == b.st_ino && a->st_mode == b.st_mode && a->st_nlink == b.st_nlink);
    CHECK(a->st_uid == b.st_uid && a->st_gid == b.st_gid && a->st_size == b.st_size && a->st_blocks == b.st_blocks);
    CHECK(a->st_mtim.tv_sec == b.st_mtim.tv_sec && a->st_mtim.tv_nsec == b.st_mtim.tv_nsec);
    CHECK(a->st_ctim.tv_sec == b.st_ctim.tv_sec && a->st_ctim.tv_nsec == b.st_ctim.tv_nsec);
}

/* Names seen, and when to stop. */
struct listing {
    int count, of_dirs, stop_at;
    ccfs_dir *dir;
};

static int each_name(void *context, const char *name, uint64_t ino, unsigned char type) {
    struct listing *l = (struct listing *)context;
    struct stat st;
    /* Calls can be made from here. */
    CHECK(ccfs_dir_stat(l->dir, name, &st) == 0 && st.st_ino == ino);
    CHECK(type == (S_ISDIR(st.st_mode) ? DT_DIR : DT_REG));
    l->of_dirs += type == DT_DIR;
    return ++l->count == l->stop_at ? 7 : 0;
}

static void wrong(ccfs_session *session, ccfs_dir *dir, int fd) {
    struct stat st;
    char byte;
    FAILS(ccfs_session_begin(-1) == NULL, EBADF);
    FAILS(ccfs_session_begin(987654) == NULL, EBADF);
    FAILS(ccfs_session_is_direct(NULL) == -1, EFAULT);
    FAILS(ccfs_session_why_not(NULL) == -1, EFAULT);
    FAILS(ccfs_session_drain(NULL) == -1, EFAULT);
    FAILS(ccfs_session_root(NULL) == NULL, EFAULT);
    FAILS(ccfs_dir_open(NULL, "a") == NULL, EFAULT);
    FAILS(ccfs_dir_open(dir, NULL) == NULL, EFAULT);
    FAILS(ccfs_dir_make(NULL, "a", 0777) == NULL, EFAULT);
    FAILS(ccfs_dir_make(dir, NULL, 0777) == NULL, EFAULT);
    FAILS(ccfs_dir_unlink(NULL, "a") == -1, EFAULT);
    FAILS(ccfs_dir_unlink(dir, NULL) == -1, EFAULT);
    FAILS(ccfs_dir_rmdir(NULL, "a") == -1, EFAULT);
    FAILS(ccfs_dir_rmdir(dir, NULL) == -1, EFAULT);
    FAILS(ccfs_dir_rename(dir, "a", NULL, "b") == -1, EFAULT);
    FAILS(ccfs_dir_rename(NULL, "a", dir, "b") == -1, EFAULT);
    FAILS(ccfs_dir_rename(dir, NULL, dir, "b") == -1, EFAULT);
    FAILS(ccfs_dir_rename(dir, "a", dir, NULL) == -1, EFAULT);
    FAILS(ccfs_dir_stat(NULL, "a", &st) == -1, EFAULT);
    FAILS(ccfs_dir_stat(dir, NULL, &st) == -1, EFAULT);
    FAILS(ccfs_dir_list(NULL, each_name, NULL) == -1, EFAULT);
    FAILS(ccfs_dir_list(dir, NULL, NULL) == -1, EFAULT);
    FAILS(ccfs_dir_sync(NULL) == -1, EFAULT);
    FAILS(ccfs_file_open(NULL, "a", O_RDONLY, 0) == NULL, EFAULT);
    FAILS(ccfs_file_open(dir, NULL, O_RDONLY, 0) == NULL, EFAULT);
    FAILS(ccfs_file_read(NULL, &byte, 1, 0) == -1, EFAULT);
    FAILS(ccfs_file_write(NULL, "x", 1, 0) == -1, EFAULT);
    FAILS(ccfs_file_append(NULL, "x", 1) == -1, EFAULT);
    FAILS(ccfs_file_truncate(NULL, 0) == -1, EFAULT);
    FAILS(ccfs_file_stat(NULL, &st) == -1, EFAULT);
    FAILS(ccfs_file_chmod(NULL, 0600) == -1, EFAULT);
    FAILS(ccfs_file_sync(NULL) == -1, EFAULT);
    FAILS(ccfs_file_barrier(NULL) == -1, EFAULT);
    FAILS(ccfs_file_is_direct(NULL) == -1, EFAULT);
    ccfs_session_end(NULL);
    ccfs_dir_close(NULL);
    ccfs_file_close(NULL);
    /* Names and flags. */
    FAILS(ccfs_file_open(dir, "", O_RDONLY, 0) == NULL, ENOENT);
    FAILS(ccfs_file_open(dir, "..", O_RDONLY, 0) == NULL, EINVAL);
    FAILS(ccfs_dir_make(dir, "a/b", 0777) == NULL, EINVAL);
    FAILS(ccfs_file_open(dir, "a", O_RDWR | O_APPEND, 0) == NULL, EINVAL);
    FAILS(ccfs_file_open(dir, "a", O_ACCMODE, 0) == NULL, EINVAL);
    FAILS(ccfs_file_open(dir, "a", O_RDWR | O_EXCL, 0) == NULL, EINVAL);
    FAILS(ccfs_file_open(dir, "a", O_RDONLY | O_CREAT | O_TRUNC, 0600) == NULL, EINVAL);
    FAILS(ccfs_file_open(dir, "a", O_RDONLY, 0) == NULL, ENOENT);
    FAILS(ccfs_dir_stat(dir, "a", &st) == -1, ENOENT);
    FAILS(ccfs_dir_unlink(dir, "a") == -1, ENOENT);
    FAILS(faccessat(fd, "a", F_OK, 0) == -1, ENOENT);
    CHECK(ccfs_session_drain(session) == 0);
}

static void files(ccfs_dir *tree, int tree_at) {
    struct stat st;
    ccfs_file *file = ccfs_file_open(tree, "file", O_RDWR | O_CREAT | O_EXCL, 0640);
    CHECK(file != NULL && ccfs_file_is_direct(file) == direct);
    FAILS(ccfs_file_open(tree, "file", O_RDWR | O_CREAT | O_EXCL, 0600) == NULL, EEXIST);
    CHECK(ccfs_file_write(file, big, BIG, 0) == BIG && ccfs_file_append(file, "end", 3) == 3);
    CHECK(ccfs_file_write(file, "begin", 5, 0) == 5 && ccfs_file_write(file, NULL, 0, 0) == 0);
    memcpy(big, "begin", 5);
    CHECK(ccfs_file_read(file, seen, BIG, 0) == BIG && memcmp(seen, big, BIG) == 0);
    CHECK(ccfs_file_read(file, seen, 10, BIG) == 3 && memcmp(seen, "end", 3) == 0);
    CHECK(ccfs_file_read(file, seen, 10, BIG + 3) == 0 && ccfs_file_read(file, NULL, 0, 0) == 0);
    FAILS(ccfs_file_read(file, NULL, 1, 0) == -1, EFAULT);
    FAILS(ccfs_file_write(file, NULL, 1, 0) == -1, EFAULT);
    FAILS(ccfs_file_append(file, NULL, 1) == -1, EFAULT);
    FAILS(ccfs_file_read(file, seen, 1, -1) == -1, EINVAL);
    FAILS(ccfs_file_write(file, "x", 1, -1) == -1, EINVAL);
    FAILS(ccfs_file_write(file, "x", (size_t)-1, 0) == -1, EINVAL);
    FAILS(ccfs_file_truncate(file, -1) == -1, EINVAL);
    FAILS(ccfs_file_stat(file, NULL) == -1, EFAULT);
    CHECK(ccfs_file_truncate(file, BIG) == 0 && ccfs_file_chmod(file, 0604) == 0);
    CHECK(ccfs_file_sync(file) == 0 && ccfs_file_stat(file, &st) == 0);
    CHECK(st.st_size == BIG && st.st_mode == (S_IFREG | 0604) && ccfs_file_is_direct(file) == direct);
    /* From here on the kernel knows it, and all goes on. */
    same_stat(&st, tree_at, "file");
    holds(tree_at, "file", big, BIG);
    CHECK(ccfs_file_append(file, "end", 3) == 3 && ccfs_file_is_direct(file) == 0);
    CHECK(ccfs_file_read(file, seen, 10, BIG) == 3 && memcmp(seen, "end", 3) == 0);
    CHECK(ccfs_file_stat(file, &st) == 0);
    same_stat(&st, tree_at, "file");
    ccfs_file_close(file);
    /* Access, and what truncates. */
    file = ccfs_file_open(tree, "file", O_RDONLY, 0);
    CHECK(file != NULL && ccfs_file_read(file, seen, 5, 0) == 5);
    FAILS(ccfs_file_write(file, "x", 1, 0) == -1, EBADF);
    FAILS(ccfs_file_append(file, "x", 1) == -1, EBADF);
    FAILS(ccfs_file_truncate(file, 0) == -1, EINVAL);
    ccfs_file_close(file);
    file = ccfs_file_open(tree, "file", O_WRONLY | O_TRUNC, 0);
    CHECK(file != NULL && ccfs_file_write(file, "new", 3, 1) == 3);
    FAILS(ccfs_file_read(file, seen, 1, 0) == -1, EBADF);
    holds(tree_at, "file", "\0new", 4);
    ccfs_file_close(file);
    file = ccfs_file_open(tree, "file", O_RDWR | O_CREAT, 0600);
    CHECK(file != NULL && ccfs_file_read(file, seen, 10, 0) == 4);
    ccfs_file_close(file);
}

static void names(ccfs_dir *tree, int top) {
    struct stat st;
    struct listing all = {0, 0, -1, NULL}, some = {0, 0, 2, NULL};
    ccfs_dir *sub = ccfs_dir_make(tree, "sub", 0750), *again;
    CHECK(sub != NULL);
    FAILS(ccfs_dir_make(tree, "sub", 0750) == NULL, EEXIST);
    for (int i = 0; i < 20; i++) {
        char name[16];
        snprintf(name, sizeof name, "n%d", i);
        ccfs_file *file = ccfs_file_open(sub, name, O_WRONLY | O_CREAT | O_EXCL, 0666);
        CHECK(file != NULL && ccfs_file_is_direct(file) == direct && ccfs_file_append(file, name, strlen(name)) > 0);
        ccfs_file_close(file);
    }
    ccfs_dir_close(ccfs_dir_make(sub, "deep", 0777));
    FAILS(ccfs_file_open(sub, "deep", O_RDONLY, 0) == NULL, EISDIR);
    FAILS(ccfs_dir_open(sub, "n0") == NULL, ENOTDIR);
    FAILS(ccfs_dir_rmdir(sub, "n0") == -1, ENOTDIR);
    FAILS(ccfs_dir_unlink(sub, "deep") == -1, EISDIR);
    FAILS(ccfs_dir_rmdir(tree, "sub") == -1, ENOTEMPTY);
    FAILS(ccfs_dir_stat(sub, "n0", NULL) == -1, EFAULT);
    CHECK(ccfs_dir_unlink(sub, "n19") == 0 && ccfs_dir_rename(sub, "n1", sub, "n2") == 0);
    CHECK(ccfs_dir_rename(sub, "n3", tree, "moved") == 0 && ccfs_dir_stat(sub, "n0", &st) == 0 && st.st_size == 2);
    /* Opened, looked at and read at once: what is held, and what is not. */
    for (int round = 0; round < 2; round++) {
        ccfs_dir *dir = round == 0 ? sub : tree;
        const char *name = round == 0 ? "n5" : "moved";
        size_t length = 1;
        ccfs_file *file = ccfs_file_open_and_read(dir, name, O_RDWR, &st, seen, &length);
        CHECK(file != NULL && length == 1 && seen[0] == 'n' && st.st_size == 2);
        CHECK(ccfs_file_is_direct(file) == direct);
        ccfs_file_close(file);
        length = 100;
        file = ccfs_file_open_and_read(dir, name, O_RDONLY, &st, seen, &length);
        CHECK(file != NULL && length == (size_t)st.st_size);
        ccfs_file_close(file);
        length = 0;
        file = ccfs_file_open_and_read(dir, name, O_RDONLY, &st, NULL, &length);
        CHECK(file != NULL && length == 0);
        ccfs_file_close(file);
        length = 1;
        FAILS(ccfs_file_open_and_read(dir, name, O_WRONLY, &st, seen, &length) == NULL, EBADF);
        FAILS(ccfs_file_open_and_read(dir, name, O_RDONLY, &st, NULL, &length) == NULL, EFAULT);
        FAILS(ccfs_file_open_and_read(dir, name, O_RDONLY, &st, seen, NULL) == NULL, EFAULT);
        FAILS(ccfs_file_open_and_read(dir, "none", O_RDONLY, &st, seen, &length) == NULL, ENOENT);
    }
    all.dir = some.dir = sub;
    CHECK(ccfs_dir_list(sub, each_name, &all) == 0 && all.count == 18 && all.of_dirs == 1);
    CHECK(ccfs_dir_list(sub, each_name, &some) == 7 && some.count == 2);
    again = ccfs_dir_open(tree, "sub");
    CHECK(again != NULL && ccfs_dir_unlink(again, "n4") == 0 && ccfs_dir_sync(again) == 0);
    FAILS(ccfs_dir_stat(sub, "n4", &st) == -1, ENOENT);
    CHECK(ccfs_dir_rmdir(sub, "deep") == 0 && ccfs_dir_stat(sub, "n0", &st) == 0);
    /* And now the kernel's calls. */
    same_stat(&st, top, "tree/sub/n0");
    holds(top, "tree/sub/n2", "n1", 2);
    holds(top, "tree/moved", "n3", 2);
    int fd = openat(top, "tree/sub", O_RDONLY | O_DIRECTORY), count = 0;
    CHECK(fd >= 0 && fstat(fd, &st) == 0 && st.st_mode == (S_IFDIR | 0750));
    DIR *list = fdopendir(fd);
    for (struct dirent *entry; (entry = readdir(list)) != NULL; count++)
        ;
    CHECK(closedir(list) == 0 && count == 2 + 16);
    FAILS(faccessat(top, "tree/sub/n1", F_OK, 0) == -1, ENOENT);
    FAILS(faccessat(top, "tree/sub/n19", F_OK, 0) == -1, ENOENT);
    CHECK(symlinkat("n0", top, "tree/sub/link") == 0);
    FAILS(ccfs_file_open(sub, "link", O_RDONLY, 0) == NULL, ELOOP);
    CHECK(ccfs_dir_stat(sub, "link", &st) == 0 && S_ISLNK(st.st_mode));
    ccfs_dir_close(again);
    ccfs_dir_close(sub);
}

/* Files that are taken from the kernel, in a directory by its descriptor. */
static void takes(int fd) {
    struct stat st;
    ccfs_session *session = ccfs_session_begin_in_stream(fd);
    ccfs_dir *dir = ccfs_session_dir(session, fd);
    CHECK(session != NULL && dir != NULL && ccfs_session_is_direct(session) == direct);
    FAILS(ccfs_session_dir(session, -1) == NULL, EBADF);
    ccfs_file *file = ccfs_file_take(dir, "taken", O_RDWR | O_CREAT | O_EXCL, 0640);
    if (!direct) {
        CHECK(file == NULL && errno == EBUSY);
    } else {
        int at = ccfs_file_descriptor(file);
        CHECK(file != NULL && at >= 0 && ccfs_file_write(file, "taken", 5, 0) == 5);
        CHECK(fstat(at, &st) == 0 && st.st_size == 5 && st.st_mode == (S_IFREG | 0640) && ccfs_file_is_direct(file) == 1);
        holds(fd, "taken", "taken", 5);
        FAILS(ccfs_file_write(file, "x", 1, 0) == -1, ESTALE);
        CHECK(ccfs_file_is_direct(file) == 0 && pwrite(at, "T", 1, 0) == 1);
        holds(fd, "taken", "Taken", 5);
        close(at);
        ccfs_file_close(file);
        CHECK(unlinkat(fd, "taken", 0) == 0);
    }
    file = ccfs_file_open(dir, "not-taken", O_RDWR | O_CREAT | O_EXCL, 0666);
    CHECK(file != NULL);
    FAILS(ccfs_file_descriptor(file) == -1, EINVAL);
    ccfs_file_close(file);
    CHECK(ccfs_dir_unlink(dir, "not-taken") == 0);
    ccfs_dir_close(dir);
    ccfs_session_end(session);
}

/* Whoever closes first, the others go on. A child has no part in what is held. */
static void ends(int fd) {
    int status;
    ccfs_session *session = ccfs_session_begin(fd);
    ccfs_dir *root = ccfs_session_root(session), *dir = ccfs_dir_make(root, "ends", 0777);
    CHECK(session != NULL && root != NULL && dir != NULL);
    ccfs_dir_close(root);
    ccfs_session_end(session);
    ccfs_file *file = ccfs_file_open(dir, "file", O_RDWR | O_CREAT | O_EXCL, 0666);
    CHECK(file != NULL && ccfs_file_is_direct(file) == direct);
    ccfs_dir_close(dir);
    CHECK(ccfs_file_append(file, "one", 3) == 3);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        if (direct)
            FAILS(ccfs_file_append(file, "no", 2) == -1, EBADF);
        ccfs_file_close(file);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(ccfs_file_append(file, "two", 3) == 3);
    CHECK(direct ? ccfs_file_barrier(file) == 0 : ccfs_file_barrier(file) == 0 || errno == ENOTSUP);
    ccfs_file_close(file);
    holds(fd, "ends/file", "onetwo", 6);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    direct = atoi(argv[2]);
    for (unsigned int i = 0; i < BIG; i++)
        big[i] = (char)(i * 7 + i / 251);
    int fd = open(argv[1], O_RDONLY | O_DIRECTORY);
    CHECK(fd >= 0);
    ccfs_session *session = ccfs_session_begin(fd);
    CHECK(session != NULL && ccfs_session_is_direct(session) == direct);
    CHECK(ccfs_session_why_not(session) == (direct ? 0 : ENOTSUP));
    ccfs_dir *root = ccfs_session_root(session), *tree = ccfs_dir_make(root, "tree", 0777);
    CHECK(root != NULL && tree != NULL);
    int plain = openat(fd, "plain", O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(plain >= 0 && write(plain, "plain", 5) == 5);
    FAILS(ccfs_dir_open(root, "plain") == NULL, ENOTDIR);
    wrong(session, root, fd);
    close(plain);
    names(tree, fd);
    /* The kernel knows the directory by now; what is made in it is held all the same. */
    int tree_at = openat(fd, "tree", O_RDONLY | O_DIRECTORY);
    CHECK(tree_at >= 0);
    files(tree, tree_at);
    close(tree_at);
    ccfs_dir_close(tree);
    ccfs_dir_close(root);
    ccfs_session_end(session);
    takes(fd);
    ends(fd);
    puts("all direct calls");
    return 0;
}
