/* direct_file.c - what SQLite does with a file: see direct.c. */
#include "direct_file.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define lib direct_lib

/* ---- journals that are kept ---- */

void direct_drop_journal(struct direct_database *d) {
    if (d->journal == NULL || d->journal_users > 0)
        return;
    lib.ccfs_file_close(d->journal);
    close(d->journal_fd);
    d->journal = NULL;
    d->journal_fd = -1;
}

/* The kept journal is what its name leads to: nobody else has looked it up. Under the database's lock. */
int direct_has_journal(struct direct_database *d) {
    return d->journal != NULL && !direct_is_another_user(d) && lib.ccfs_file_is_direct(d->journal);
}

/* ---- files ---- */

const char *direct_last_name(const char *name) {
    const char *slash = strrchr(name, '/');
    return slash == NULL ? name : slash + 1;
}

/* From here on the file is used by its descriptor. The kernel asks for its size now: it has not heard of what was posted. */
void direct_fall(struct direct_file *f) {
    struct stat st;
    pthread_mutex_lock(&f->d->lock);
    if (f->file != NULL) {
        if (!f->shared)
            lib.ccfs_file_close(f->file);
        f->file = NULL;
        if (KIND(f, SQLITE_OPEN_MAIN_DB))
            f->d->content.head_known = 0;
    }
    pthread_mutex_unlock(&f->d->lock);
    if (fstat(f->fd, &st) != 0)
        return; /* So does what follows. */
}

static int is_held(struct direct_file *f) {
    if (f->file == NULL)
        return 0;
    if (lib.ccfs_file_is_direct(f->file))
        return 1;
    direct_fall(f);
    return 0;
}

/* A call on a held file has failed. True: since it is held no more. */
static int fell(struct direct_file *f) {
    if (errno != ESTALE)
        return 0;
    direct_fall(f);
    return 1;
}

static int failed(int error) {
    return errno == ENOSPC || errno == EDQUOT ? SQLITE_FULL : error;
}

static int read_all(int fd, unsigned char *to, int n, sqlite3_int64 at) {
    int done = 0;
    while (done < n) {
        ssize_t got = pread(fd, to + done, (size_t)(n - done), at + done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        done += (int)got;
    }
    return done;
}

static int write_all(int fd, const unsigned char *from, int n, sqlite3_int64 at) {
    int done = 0;
    while (done < n) {
        ssize_t put = pwrite(fd, from + done, (size_t)(n - done), at + done);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return -1;
        done += (int)put;
    }
    return done;
}

/* What is known of the file; NULL: of a log, nothing. */
static struct direct_content *content_of(struct direct_file *f) {
    return f->shared ? &f->d->journal_content : KIND(f, SQLITE_OPEN_MAIN_DB) ? &f->d->content : NULL;
}

/* Bytes that every transaction looks at. */
static int read_head(struct direct_file *f, void *to, int n, sqlite3_int64 at) {
    struct direct_content *c = content_of(f);
    const sqlite3_int64 head = sizeof c->head;
    int known = 0;
    if (c == NULL || at + n > head)
        return 0;
    pthread_mutex_lock(&f->d->lock);
    if (!c->head_known && c->size >= head)
        c->head_known = lib.ccfs_file_read(f->file, c->head, sizeof c->head, 0) == head;
    /* The hold is looked at last: as long as it lasts nobody else has written anything. */
    if (c->head_known) {
        memcpy(to, c->head + at, (size_t)n);
        known = lib.ccfs_file_is_direct(f->file);
    }
    pthread_mutex_unlock(&f->d->lock);
    return known;
}

static int direct_read(sqlite3_file *base, void *to, int n, sqlite3_int64 at) {
    struct direct_file *f = FILE(base);
    int got = -1;
    if (direct_is_real(f))
        return REAL(f, xRead, to, n, at);
    if (is_held(f)) {
        if (read_head(f, to, n, at))
            return SQLITE_OK;
        got = (int)lib.ccfs_file_read(f->file, to, (size_t)n, at);
        if (got < 0 && !fell(f))
            return SQLITE_IOERR_READ;
    }
    if (got < 0)
        got = read_all(f->fd, to, n, at);
    if (got < 0)
        return SQLITE_IOERR_READ;
    if (got < n) {
        memset((char *)to + got, 0, (size_t)(n - got));
        return SQLITE_IOERR_SHORT_READ;
    }
    return SQLITE_OK;
}

/* What is known of a held file after a write. */
static void note_write(struct direct_file *f, const void *from, int n, sqlite3_int64 at) {
    struct direct_content *c = content_of(f);
    const sqlite3_int64 head = sizeof c->head;
    if (c == NULL)
        return;
    pthread_mutex_lock(&f->d->lock);
    if (at + n > c->size)
        c->size = at + n;
    if (at < head) {
        memcpy(c->head + at, from, (size_t)(at + n < head ? n : head - at));
        c->head_known |= at == 0 && n >= head;
    }
    if (f->shared)
        f->d->journal_gone = 0;
    pthread_mutex_unlock(&f->d->lock);
}

/* And after a change of its size. */
static void note_size(struct direct_file *f, sqlite3_int64 size) {
    struct direct_content *c = content_of(f);
    if (c == NULL)
        return;
    pthread_mutex_lock(&f->d->lock);
    c->size = size;
    c->head_known = 0;
    pthread_mutex_unlock(&f->d->lock);
}

static int direct_write(sqlite3_file *base, const void *from, int n, sqlite3_int64 at) {
    struct direct_file *f = FILE(base);
    struct visit visit;
    int rc = SQLITE_OK;
    if (!direct_is_real(f) && is_held(f)) {
        if (lib.ccfs_file_write(f->file, from, (size_t)n, at) == n) {
            note_write(f, from, n, at);
            return SQLITE_OK;
        }
        if (!fell(f))
            return failed(SQLITE_IOERR_WRITE);
    }
    visit = ccfs_enter(f->v);
    if (direct_is_real(f))
        rc = REAL(f, xWrite, from, n, at);
    else if (write_all(f->fd, from, n, at) != n)
        rc = failed(SQLITE_IOERR_WRITE);
    ccfs_leave(f->v, visit);
    return rc;
}

static int direct_truncate(sqlite3_file *base, sqlite3_int64 size) {
    struct direct_file *f = FILE(base);
    struct visit visit;
    int rc = SQLITE_OK;
    if (!direct_is_real(f) && is_held(f)) {
        if (lib.ccfs_file_truncate(f->file, size) == 0) {
            note_size(f, size);
            return SQLITE_OK;
        }
        if (!fell(f))
            return failed(SQLITE_IOERR_TRUNCATE);
    }
    visit = ccfs_enter(f->v);
    if (direct_is_real(f))
        rc = REAL(f, xTruncate, size);
    else if (ftruncate(f->fd, size) != 0)
        rc = failed(SQLITE_IOERR_TRUNCATE);
    ccfs_leave(f->v, visit);
    return rc;
}

/* At home, if that matters: the VFS sees to it. */
static int direct_sync(sqlite3_file *base, int flags) {
    struct direct_file *f = FILE(base);
    if (direct_is_real(f))
        return REAL(f, xSync, flags);
    if (is_held(f)) {
        if (lib.ccfs_file_sync(f->file) == 0)
            return SQLITE_OK;
        if (direct_is_another_user(f->d))
            direct_fall(f);
        else if (!fell(f))
            return SQLITE_IOERR_FSYNC;
    }
    return fsync(f->fd) == 0 ? SQLITE_OK : SQLITE_IOERR_FSYNC;
}

static int direct_size(sqlite3_file *base, sqlite3_int64 *size) {
    struct direct_file *f = FILE(base);
    struct stat st;
    int known = 0;
    if (direct_is_real(f))
        return REAL(f, xFileSize, size);
    if (is_held(f) && content_of(f) != NULL) {
        pthread_mutex_lock(&f->d->lock);
        *size = content_of(f)->size;
        known = lib.ccfs_file_is_direct(f->file);
        pthread_mutex_unlock(&f->d->lock);
    }
    if (known)
        return SQLITE_OK;
    if (is_held(f)) {
        if (lib.ccfs_file_stat(f->file, &st) == 0) {
            *size = st.st_size;
            return SQLITE_OK;
        }
        if (!fell(f))
            return SQLITE_IOERR_FSTAT;
    }
    if (fstat(f->fd, &st) != 0)
        return SQLITE_IOERR_FSTAT;
    *size = st.st_size;
    return SQLITE_OK;
}

/* ---- the rest of a file ---- */

/* It was renamed or deleted, which nobody can do unseen while it is held. */
static int has_moved(struct direct_file *f) {
    struct stat there, here;
    if (is_held(f))
        return 0;
    return stat(f->name, &there) != 0 || fstat(f->fd, &here) != 0 || there.st_ino != here.st_ino || there.st_dev != here.st_dev;
}

static int direct_control(sqlite3_file *base, int op, void *arg) {
    struct direct_file *f = FILE(base);
    if (op == SQLITE_FCNTL_VFSNAME) {
        *(char **)arg = sqlite3_mprintf("direct/%s", f->vfs->zName);
        return SQLITE_OK;
    }
    if (direct_is_real(f)) {
        const int changes = op == SQLITE_FCNTL_SIZE_HINT;
        struct visit visit = {0, 0, 0};
        int rc;
        if (changes)
            visit = ccfs_enter(f->v);
        rc = REAL(f, xFileControl, op, arg);
        if (changes)
            ccfs_leave(f->v, visit);
        return rc;
    }
    switch (op) {
    case SQLITE_FCNTL_PERSIST_WAL:
        if (*(int *)arg >= 0)
            f->persist_wal = *(int *)arg != 0;
        *(int *)arg = f->persist_wal;
        return SQLITE_OK;
    case SQLITE_FCNTL_LOCKSTATE:
        *(int *)arg = f->level;
        return SQLITE_OK;
    case SQLITE_FCNTL_HAS_MOVED:
        *(int *)arg = has_moved(f);
        return SQLITE_OK;
    case SQLITE_FCNTL_SIZE_HINT:
        return SQLITE_OK;
    default:
        return SQLITE_NOTFOUND;
    }
}

static int direct_sector_size(sqlite3_file *base) {
    (void)base;
    return 4096;
}

static int direct_characteristics(sqlite3_file *base) {
    (void)base;
    return SQLITE_IOCAP_POWERSAFE_OVERWRITE;
}

/* The last connection closes: a journal that SQLite has deleted goes now, if no other program begins to use it at this very moment. It is as if
 * there were none, and who finds such a one and has this lock may delete it. */
static void delete_empty_journal(struct direct_file *f) {
    const char *name = direct_last_name(f->name);
    size_t n = strlen(name);
    char *journal = malloc(n + sizeof "-journal");
    struct stat st;
    if (journal == NULL)
        return;
    memcpy(journal, name, n);
    memcpy(journal + n, "-journal", sizeof "-journal");
    if (direct_set_lock(f, F_WRLCK, DIRECT_RESERVED, 1) == SQLITE_OK && lib.ccfs_dir_stat(f->d->dir, journal, &st) == 0 && st.st_size == 0) {
        struct visit visit = ccfs_enter(f->v);
        lib.ccfs_dir_unlink(f->d->dir, journal);
        ccfs_leave(f->v, visit);
    }
    free(journal);
}

/* A connection has the database open no more, or in the wrapped VFS's way. */
static void leave_ours(struct direct_file *f) {
    struct direct_database *d = f->d;
    int deletes;
    pthread_mutex_lock(&d->lock);
    deletes = --d->ours == 0 && d->journal_gone && d->journal_users == 0;
    pthread_mutex_unlock(&d->lock);
    if (deletes)
        delete_empty_journal(f);
}

static int direct_close(sqlite3_file *base) {
    struct direct_file *f = FILE(base), **at = &direct_files;
    struct direct_database *d = f->d;
    int rc = SQLITE_OK;
    if (direct_is_real(f))
        rc = REAL(f, xClose);
    pthread_mutex_lock(&direct_list);
    while (*at != f)
        at = &(*at)->next;
    *at = f->next;
    pthread_mutex_unlock(&direct_list);
    if (KIND(f, SQLITE_OPEN_MAIN_DB)) {
        if (direct_is_real(f))
            direct_theirs(d, -1);
        else
            leave_ours(f);
    }
    pthread_mutex_lock(&d->lock);
    if (f->file != NULL && !f->shared)
        lib.ccfs_file_close(f->file);
    direct_drop_fd(f);
    if (f->shared) {
        d->journal_users--;
        if (!direct_has_journal(d))
            direct_drop_journal(d);
    }
    pthread_mutex_unlock(&d->lock);
    base->pMethods = NULL;
    return rc;
}

/* A write-ahead log begins: its index is shared memory, which is the wrapped VFS's. SQLite has the SHARED lock then, which both can have at a time. */
static int become_real(struct direct_file *f) {
    struct visit visit;
    int rc, out;
    if (direct_is_real(f))
        return SQLITE_OK;
    if (f->level > SQLITE_LOCK_SHARED)
        return SQLITE_BUSY;
    visit = ccfs_enter(f->v);
    rc = f->vfs->xOpen(f->vfs, f->name, f->real, f->flags, &out);
    ccfs_leave(f->v, visit);
    if (rc == SQLITE_OK && f->persist_wal)
        REAL(f, xFileControl, SQLITE_FCNTL_PERSIST_WAL, &f->persist_wal);
    if (rc == SQLITE_OK && f->level != SQLITE_LOCK_NONE)
        rc = REAL(f, xLock, f->level);
    if (rc != SQLITE_OK) {
        if (direct_is_real(f))
            REAL(f, xClose);
        f->real->pMethods = NULL;
        return rc;
    }
    leave_ours(f);
    direct_fall(f);
    pthread_mutex_lock(&f->d->lock);
    f->d->theirs++;
    direct_drop_fd(f);
    pthread_mutex_unlock(&f->d->lock);
    return SQLITE_OK;
}

static int direct_shm_map(sqlite3_file *base, int region, int size, int extend, void volatile **to) {
    struct direct_file *f = FILE(base);
    int rc = become_real(f);
    return rc == SQLITE_OK ? REAL(f, xShmMap, region, size, extend, to) : rc;
}

static int direct_shm_lock(sqlite3_file *base, int offset, int n, int flags) {
    struct direct_file *f = FILE(base);
    return direct_is_real(f) ? REAL(f, xShmLock, offset, n, flags) : SQLITE_IOERR_SHMLOCK;
}

static void direct_shm_barrier(sqlite3_file *base) {
    struct direct_file *f = FILE(base);
    if (direct_is_real(f))
        REAL(f, xShmBarrier);
}

static int direct_shm_unmap(sqlite3_file *base, int delete_it) {
    struct direct_file *f = FILE(base);
    return direct_is_real(f) ? REAL(f, xShmUnmap, delete_it) : SQLITE_OK;
}

const sqlite3_io_methods direct_methods = {
    2,
    direct_close, direct_read, direct_write, direct_truncate, direct_sync, direct_size,
    direct_lock, direct_unlock, direct_check_reserved,
    direct_control, direct_sector_size, direct_characteristics,
    direct_shm_map, direct_shm_lock, direct_shm_barrier, direct_shm_unmap,
    NULL, NULL,
};
