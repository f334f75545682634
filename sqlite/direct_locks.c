/* direct_locks.c - the descriptors of databases, and the locks that are taken by them: see direct.c. */
#include "direct_file.h"
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

/* ---- descriptors for locks ---- */

/* Those of databases that nobody has open here, but that others in this process had open, in ways of their own, when the last of ours was closed. */
static struct direct_spare *kept;
static pthread_mutex_t keeping = PTHREAD_MUTEX_INITIALIZER;

static struct direct_spare *push(struct direct_spare *list, int fd, dev_t dev, ino_t ino, int writes) {
    struct direct_spare *one = malloc(sizeof *one);
    if (one == NULL)
        return list; /* It stays open. */
    *one = (struct direct_spare){list, fd, dev, ino, writes};
    return one;
}

static int pop(struct direct_spare **list, dev_t dev, ino_t ino, int writes) {
    for (struct direct_spare **at = list; *at != NULL; at = &(*at)->next)
        if ((*at)->dev == dev && (*at)->ino == ino && (*at)->writes >= writes) {
            struct direct_spare *one = *at;
            int fd = one->fd;
            *at = one->next;
            free(one);
            return fd;
        }
    return -1;
}

static int has_fd(const struct direct_spare *list, int fd) {
    while (list != NULL && list->fd != fd)
        list = list->next;
    return list != NULL;
}

/* Somebody else in this process has the file open, and locks of it perhaps. (Nobody is asked for attributes: that could wait.) */
static int is_used_by_others(int fd, dev_t dev, ino_t ino, const struct direct_spare *ours) {
    DIR *all = opendir("/proc/self/fd");
    struct dirent *entry;
    int used = 0;
    if (all == NULL)
        return 1;
    while (!used && (entry = readdir(all)) != NULL) {
        struct statx st;
        int other = atoi(entry->d_name);
        if (entry->d_name[0] == '.' || other == fd || other == dirfd(all) || has_fd(ours, other) || has_fd(kept, other))
            continue;
        if (statx(other, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO, &st) == 0)
            used = st.stx_ino == ino && makedev(st.stx_dev_major, st.stx_dev_minor) == dev;
    }
    closedir(all);
    return used;
}

/* The last one of ours is not needed any more. */
void direct_end_fd(int fd, const struct stat *st, int writes, const struct direct_spare *ours) {
    pthread_mutex_lock(&keeping);
    if (is_used_by_others(fd, st->st_dev, st->st_ino, ours)) {
        kept = push(kept, fd, st->st_dev, st->st_ino, writes);
    } else {
        int old;
        close(fd);
        while ((old = pop(&kept, st->st_dev, st->st_ino, 0)) >= 0)
            close(old);
    }
    pthread_mutex_unlock(&keeping);
}

/* A descriptor of the database, open for reading and writing, that another connection has left, or -1. */
int direct_take_spare(struct direct_database *d) {
    int fd = pop(&d->spare, d->st.st_dev, d->st.st_ino, 1);
    if (fd < 0) {
        pthread_mutex_lock(&keeping);
        fd = pop(&kept, d->st.st_dev, d->st.st_ino, 1);
        pthread_mutex_unlock(&keeping);
    }
    return fd;
}

/* Under the database's lock. */
void direct_drop_fd(struct direct_file *f) {
    struct direct_database *d = f->d;
    struct stat st;
    if (f->shared || f->fd < 0)
        return;
    direct_set_lock(f, F_UNLCK, 0, 0);
    if (!KIND(f, SQLITE_OPEN_MAIN_DB)) {
        close(f->fd);
    } else if (fstat(f->fd, &st) != 0) {
        close(f->fd); /* The mount is gone, and all locks with it. */
    } else if (d->ours > 0 || d->theirs > 0) {
        d->spare = push(d->spare, f->fd, st.st_dev, st.st_ino, KIND(f, SQLITE_OPEN_READWRITE));
    } else {
        direct_end_fd(f->fd, &st, KIND(f, SQLITE_OPEN_READWRITE), d->spare);
    }
    f->fd = -1;
}

void direct_end_spares(struct direct_database *d) {
    while (d->spare != NULL) {
        struct direct_spare *one = d->spare;
        struct stat st = {.st_dev = one->dev, .st_ino = one->ino};
        d->spare = one->next;
        direct_end_fd(one->fd, &st, one->writes, d->spare);
        free(one);
    }
}

/* ---- locks: those of SQLite's unix VFS, at the same places ---- */

#define PENDING 0x40000000
#define RESERVED (PENDING + 1)
#define SHARED (PENDING + 2)
#define SHARED_SIZE 510
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
        rc = direct_set_lock(f, F_RDLCK, PENDING, 1);
        if (rc == SQLITE_OK) {
            rc = direct_set_lock(f, F_RDLCK, SHARED, SHARED_SIZE);
            if (direct_set_lock(f, F_UNLCK, PENDING, 1) != SQLITE_OK && rc == SQLITE_OK)
                rc = SQLITE_IOERR_UNLOCK;
        }
    } else if (level == SQLITE_LOCK_RESERVED) {
        rc = direct_set_lock(f, F_WRLCK, RESERVED, 1);
    } else {
        if (f->level < SQLITE_LOCK_PENDING && (rc = direct_set_lock(f, F_WRLCK, PENDING, 1)) == SQLITE_OK)
            f->level = SQLITE_LOCK_PENDING;
        if (rc == SQLITE_OK && level == SQLITE_LOCK_EXCLUSIVE)
            rc = direct_set_lock(f, F_WRLCK, SHARED, SHARED_SIZE);
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
        if (direct_set_lock(f, F_RDLCK, SHARED, SHARED_SIZE) != SQLITE_OK)
            return SQLITE_IOERR_RDLOCK;
        if (direct_set_lock(f, F_UNLCK, PENDING, 2) != SQLITE_OK)
            return SQLITE_IOERR_UNLOCK;
    } else if (direct_set_lock(f, F_UNLCK, 0, 0) != SQLITE_OK) {
        return SQLITE_IOERR_UNLOCK;
    }
    f->level = level;
    return SQLITE_OK;
}

int direct_check_reserved(sqlite3_file *base, int *result) {
    struct direct_file *f = FILE(base);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = RESERVED, .l_len = 1};
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
