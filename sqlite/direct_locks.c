/* direct_locks.c - the descriptors of databases, and the locks that are taken by them: see direct.c. */
#include "direct_file.h"
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

/* ---- descriptors for locks ---- */

/* Descriptors of databases that no connection uses. Closing one would take away the POSIX locks that others in this process may have on the
 * file, so it is kept as long as they have the file open. Under keeping, which is the innermost lock. */
static struct spare {
    struct spare *next;
    int fd;
    dev_t dev;
    ino_t ino;
    int writes;
    int needed; /* while it is decided which ones to close */
} *spares;
static pthread_mutex_t keeping = PTHREAD_MUTEX_INITIALIZER;

/* A descriptor of the database that another connection has left, or -1. writes: it is open for writing. */
int direct_take_spare(const struct direct_database *d, int writes) {
    struct spare **at = &spares, *one;
    int fd = -1;
    pthread_mutex_lock(&keeping);
    while ((one = *at) != NULL && !(one->writes >= writes && one->ino == d->st.st_ino && one->dev == d->st.st_dev))
        at = &one->next;
    if (one != NULL) {
        fd = one->fd;
        *at = one->next;
        free(one);
    }
    pthread_mutex_unlock(&keeping);
    return fd;
}

static void keep(int fd, const struct stat *st, int writes) {
    struct spare *one = malloc(sizeof *one);
    if (one == NULL)
        return; /* It stays open. */
    pthread_mutex_lock(&keeping);
    *one = (struct spare){spares, fd, st->st_dev, st->st_ino, writes, 0};
    spares = one;
    pthread_mutex_unlock(&keeping);
}

/* Under the database's lock. */
void direct_drop_fd(struct direct_file *f) {
    struct stat st;
    if (f->shared || f->fd < 0)
        return;
    direct_set_lock(f, F_UNLCK, 0, 0);
    /* Without fstat the mount is gone, and all locks with it. */
    if (KIND(f, SQLITE_OPEN_MAIN_DB) && fstat(f->fd, &st) == 0)
        keep(f->fd, &st, (fcntl(f->fd, F_GETFL) & O_ACCMODE) == O_RDWR);
    else
        close(f->fd);
    f->fd = -1;
}

static int is_spare(int fd) {
    const struct spare *one = spares;
    while (one != NULL && one->fd != fd)
        one = one->next;
    return one != NULL;
}

/* Marks those whose file somebody else in this process has open. (Nobody is asked for attributes: that could wait.) */
static void mark_needed(void) {
    DIR *all = opendir("/proc/self/fd");
    struct dirent *entry;
    for (struct spare *one = spares; one != NULL; one = one->next)
        one->needed = all == NULL;
    if (all == NULL)
        return;
    while ((entry = readdir(all)) != NULL) {
        struct statx st;
        int fd = atoi(entry->d_name);
        if (entry->d_name[0] == '.' || fd == dirfd(all) || is_spare(fd) ||
            statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO, &st) != 0)
            continue;
        for (struct spare *one = spares; one != NULL; one = one->next)
            one->needed |= st.stx_ino == one->ino && makedev(st.stx_dev_major, st.stx_dev_minor) == one->dev;
    }
    closedir(all);
}

static void close_spares(int all) {
    for (struct spare **at = &spares; *at != NULL;) {
        struct spare *one = *at;
        if (one->needed && !all) {
            at = &one->next;
            continue;
        }
        close(one->fd);
        *at = one->next;
        free(one);
    }
}

void direct_close_spares(void) {
    pthread_mutex_lock(&keeping);
    if (spares != NULL)
        mark_needed();
    close_spares(0);
    pthread_mutex_unlock(&keeping);
}

/* ---- forks ---- */

/* A child must have none of its parent's descriptors: a lock belongs to all copies of the one that took it. */
static void before_fork(void) {
    pthread_mutex_lock(&direct_list);
    pthread_mutex_lock(&keeping);
}

static void parent_forked(void) {
    pthread_mutex_unlock(&keeping);
    pthread_mutex_unlock(&direct_list);
}

static void child_forked(void) {
    for (struct direct_file *f = direct_files; f != NULL; f = f->next)
        if (f->fd >= 0 && !f->shared) {
            close(f->fd);
            f->fd = -1;
        }
    close_spares(1);
    parent_forked();
}

int direct_watch_forks(void) {
    return pthread_atfork(before_fork, parent_forked, child_forked) == 0;
}

/* ---- locks: those of SQLite's unix VFS, at the same places ---- */

int direct_set_lock(struct direct_file *f, short type, off_t start, off_t len) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
    int rc;
    do
        rc = fcntl(f->fd, F_OFD_SETLK, &lock);
    while (rc != 0 && errno == EINTR);
    if (rc == 0)
        return SQLITE_OK;
    return errno == EAGAIN || errno == EACCES ? SQLITE_BUSY : SQLITE_IOERR_LOCK;
}

int direct_lock(sqlite3_file *base, int level) {
    struct direct_file *f = FILE(base);
    int rc = SQLITE_OK;
    if (direct_is_real(f))
        return REAL(f, xLock, level);
    if (level <= f->level)
        return SQLITE_OK;
    if (level == SQLITE_LOCK_SHARED) {
        if (f->file != NULL && direct_is_another_user(f->d))
            direct_fall(f);
        rc = direct_set_lock(f, F_RDLCK, DIRECT_PENDING, 1);
        if (rc == SQLITE_OK) {
            rc = direct_set_lock(f, F_RDLCK, DIRECT_SHARED, DIRECT_SHARED_SIZE);
            if (direct_set_lock(f, F_UNLCK, DIRECT_PENDING, 1) != SQLITE_OK && rc == SQLITE_OK)
                rc = SQLITE_IOERR_UNLOCK;
        }
    } else if (level == SQLITE_LOCK_RESERVED) {
        rc = direct_set_lock(f, F_WRLCK, DIRECT_RESERVED, 1);
    } else {
        if (f->level < SQLITE_LOCK_PENDING && (rc = direct_set_lock(f, F_WRLCK, DIRECT_PENDING, 1)) == SQLITE_OK)
            f->level = SQLITE_LOCK_PENDING;
        if (rc == SQLITE_OK && level == SQLITE_LOCK_EXCLUSIVE)
            rc = direct_set_lock(f, F_WRLCK, DIRECT_SHARED, DIRECT_SHARED_SIZE);
    }
    if (rc == SQLITE_OK)
        f->level = level;
    return rc;
}

int direct_unlock(sqlite3_file *base, int level) {
    struct direct_file *f = FILE(base);
    if (direct_is_real(f))
        return REAL(f, xUnlock, level);
    if (level >= f->level)
        return SQLITE_OK;
    if (level == SQLITE_LOCK_SHARED) {
        if (direct_set_lock(f, F_RDLCK, DIRECT_SHARED, DIRECT_SHARED_SIZE) != SQLITE_OK)
            return SQLITE_IOERR_RDLOCK;
        if (direct_set_lock(f, F_UNLCK, DIRECT_PENDING, 2) != SQLITE_OK)
            return SQLITE_IOERR_UNLOCK;
    } else if (direct_set_lock(f, F_UNLCK, 0, 0) != SQLITE_OK) {
        return SQLITE_IOERR_UNLOCK;
    }
    f->level = level;
    return SQLITE_OK;
}

int direct_check_reserved(sqlite3_file *base, int *result) {
    struct direct_file *f = FILE(base);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = DIRECT_RESERVED, .l_len = 1};
    if (direct_is_real(f))
        return REAL(f, xCheckReservedLock, result);
    *result = f->level > SQLITE_LOCK_SHARED;
    if (*result)
        return SQLITE_OK;
    if (fcntl(f->fd, F_OFD_GETLK, &lock) != 0)
        return SQLITE_IOERR_CHECKRESERVEDLOCK;
    *result = lock.l_type != F_UNLCK;
    return SQLITE_OK;
}
