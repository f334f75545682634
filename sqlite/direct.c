/* direct.c - files of databases that are used without the kernel: see ccfs_session_begin(3), part take.
 *
 * A database is taken over from the kernel when its first connection opens it: what is written to it and to its journal is posted in one
 * order and costs no system call. Its locks are the kernel's, by a descriptor for each connection (open file description locks, which POSIX
 * locks of others see, and which connections of one process keep apart), at the places where SQLite's own unix VFS has them. As soon
 * as anybody else looks at the database it is used by that descriptor.
 *
 * A journal is not deleted but emptied, which is the same to SQLite, and kept open; it is deleted when the database is closed. So others may see an
 * empty journal, which says what no journal says.
 *
 * Databases with a write-ahead log are the wrapped VFS's, since that maps memory; only the log itself is taken over.
 *
 * What is not to be had here (another file system, a mount without direct=on, libccfs.so.1 is missing, a database that others have open) is the wrapped
 * VFS's as a whole. One process never has a database open in both ways: closing a descriptor takes POSIX locks away. */
#define _GNU_SOURCE
#include "direct.h"
SQLITE_EXTENSION_INIT3
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct direct_file {
    sqlite3_file base;
    struct direct_file *next; /* under list */
    struct volume *v;
    struct direct_database *d;
    sqlite3_vfs *vfs;
    const char *name;
    int flags;
    int level;       /* a database's SQLITE_LOCK_* */
    ccfs_file *file; /* NULL: through the mount */
    int fd;
    int shared;      /* both belong to the database: a kept journal */
    sqlite3_file *real; /* has methods: a database with a write-ahead log */
};

/* ---- the library ---- */

#define EACH(X)                                                                                                                      \
    X(ccfs_session_begin_in_stream) X(ccfs_session_is_direct) X(ccfs_session_end) X(ccfs_session_dir) X(ccfs_dir_close) X(ccfs_file_take)  \
    X(ccfs_file_descriptor) X(ccfs_file_close) X(ccfs_file_is_direct) X(ccfs_file_stat) X(ccfs_file_chmod) X(ccfs_file_read)               \
    X(ccfs_file_write) X(ccfs_file_truncate) X(ccfs_file_sync)

static struct {
#define MEMBER(name) __typeof__(name) *name;
    EACH(MEMBER)
} lib;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int loaded;

/* Files that are open here: a child must not have their descriptors, since locks live as long as any copy of them. */
static pthread_mutex_t list = PTHREAD_MUTEX_INITIALIZER;
static struct direct_file *files;

static void before_fork(void) {
    pthread_mutex_lock(&list);
}

static void parent_forked(void) {
    pthread_mutex_unlock(&list);
}

static void child_forked(void) {
    for (struct direct_file *f = files; f != NULL; f = f->next)
        if (f->fd >= 0 && !f->shared) {
            close(f->fd);
            f->fd = -1;
        }
    pthread_mutex_unlock(&list);
}

static void load(void) {
    const char *other = secure_getenv("CCFS_LIBRARY");
    void *so = dlopen(other != NULL && *other != '\0' ? other : "libccfs.so.1", RTLD_NOW | RTLD_LOCAL);
    if (so == NULL)
        return;
#define FIND(name)                                                                                                                   \
    if ((lib.name = (__typeof__(name) *)dlsym(so, #name)) == NULL)                                                                   \
        return;
    EACH(FIND)
    loaded = pthread_atfork(before_fork, parent_forked, child_forked) == 0;
}

/* ---- volumes and databases ---- */

/* The directory of a database as its volume's session has it, which is begun in the volume's stream. NULL: there is none. */
static ccfs_dir *directory_of(struct volume *v, struct direct_volume *dv, struct direct_database *d, const char *name) {
    static pthread_mutex_t beginning = PTHREAD_MUTEX_INITIALIZER;
    const char *slash = strrchr(name, '/');
    char *path = slash == NULL ? strdup(".") : strndup(name, slash == name ? 1 : (size_t)(slash - name));
    int fd = path == NULL ? -1 : open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(path);
    if (fd < 0)
        return NULL;
    pthread_mutex_lock(&beginning);
    if (!dv->asked) {
        struct visit visit = ccfs_enter(v);
        dv->asked = 1;
        dv->uid = geteuid();
        dv->gid = getegid();
        dv->session = lib.ccfs_session_begin_in_stream(fd);
        ccfs_leave(v, visit);
        if (dv->session != NULL && !lib.ccfs_session_is_direct(dv->session)) {
            lib.ccfs_session_end(dv->session);
            dv->session = NULL;
        }
    }
    if (d->dir == NULL && dv->session != NULL)
        d->dir = lib.ccfs_session_dir(dv->session, fd);
    pthread_mutex_unlock(&beginning);
    close(fd);
    return d->dir;
}

void direct_volume_end(struct direct_volume *dv) {
    if (dv->session != NULL)
        lib.ccfs_session_end(dv->session);
}

void direct_database_begin(struct direct_database *d) {
    pthread_mutex_init(&d->lock, NULL);
    d->journal_fd = -1;
}

void direct_theirs(struct direct_database *d, int change) {
    pthread_mutex_lock(&d->lock);
    d->theirs += change;
    pthread_mutex_unlock(&d->lock);
}

/* What is asked by another user is refused, and what is posted would be done as the first one. */
static int is_another_user(const struct direct_database *d) {
    return geteuid() != d->volume->uid || getegid() != d->volume->gid;
}

static void drop_journal(struct direct_database *d) {
    if (d->journal == NULL || d->journal_users > 0)
        return;
    lib.ccfs_file_close(d->journal);
    close(d->journal_fd);
    d->journal = NULL;
    d->journal_fd = -1;
    d->journal_gone = 0;
}

/* The kept journal is what its name leads to: nobody else has looked it up. Under the database's lock. */
static int has_journal(struct direct_database *d) {
    return d->journal != NULL && !is_another_user(d) && lib.ccfs_file_is_direct(d->journal);
}

void direct_database_end(struct direct_database *d) {
    drop_journal(d);
    for (int i = 0; i < d->spares; i++)
        close(d->spare[i]);
    free(d->spare);
    if (d->dir != NULL)
        lib.ccfs_dir_close(d->dir);
    pthread_mutex_destroy(&d->lock);
}

/* A descriptor that another connection has left, or -1. */
static int take_spare(struct direct_database *d) {
    return d->spares > 0 ? d->spare[--d->spares] : -1;
}

static void leave_spare(struct direct_database *d, int fd) {
    int *more = realloc(d->spare, (size_t)(d->spares + 1) * sizeof *more);
    if (more == NULL)
        return; /* It stays open. */
    d->spare = more;
    d->spare[d->spares++] = fd;
}

/* ---- files ---- */

#define FILE(base) ((struct direct_file *)(base))
#define KIND(f, kind) (((f)->flags & (kind)) != 0)
#define REAL(f, method, ...) (f)->real->pMethods->method((f)->real, ##__VA_ARGS__)

static int is_real(const struct direct_file *f) {
    return f->real->pMethods != NULL;
}

/* From here on the file is used by its descriptor. The kernel asks for its size now: it has not heard of what was posted. */
static void fall(struct direct_file *f) {
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
    fall(f);
    return 0;
}

/* A call on a held file has failed. True: since it is held no more. */
static int fell(struct direct_file *f) {
    if (errno != ESTALE)
        return 0;
    fall(f);
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
    if (is_real(f))
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
    if (!is_real(f) && is_held(f)) {
        if (lib.ccfs_file_write(f->file, from, (size_t)n, at) == n) {
            note_write(f, from, n, at);
            return SQLITE_OK;
        }
        if (!fell(f))
            return failed(SQLITE_IOERR_WRITE);
    }
    visit = ccfs_enter(f->v);
    if (is_real(f))
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
    if (!is_real(f) && is_held(f)) {
        if (lib.ccfs_file_truncate(f->file, size) == 0) {
            note_size(f, size);
            return SQLITE_OK;
        }
        if (!fell(f))
            return failed(SQLITE_IOERR_TRUNCATE);
    }
    visit = ccfs_enter(f->v);
    if (is_real(f))
        rc = REAL(f, xTruncate, size);
    else if (ftruncate(f->fd, size) != 0)
        rc = failed(SQLITE_IOERR_TRUNCATE);
    ccfs_leave(f->v, visit);
    return rc;
}

/* At home, if that matters: the VFS sees to it. */
static int direct_sync(sqlite3_file *base, int flags) {
    struct direct_file *f = FILE(base);
    if (is_real(f))
        return REAL(f, xSync, flags);
    if (is_held(f)) {
        if (lib.ccfs_file_sync(f->file) == 0)
            return SQLITE_OK;
        if (is_another_user(f->d))
            fall(f);
        else if (!fell(f))
            return SQLITE_IOERR_FSYNC;
    }
    return fsync(f->fd) == 0 ? SQLITE_OK : SQLITE_IOERR_FSYNC;
}

static int direct_size(sqlite3_file *base, sqlite3_int64 *size) {
    struct direct_file *f = FILE(base);
    struct stat st;
    int known = 0;
    if (is_real(f))
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

/* ---- locks: those of SQLite's unix VFS, at the same places ---- */

#define PENDING 0x40000000
#define RESERVED (PENDING + 1)
#define SHARED (PENDING + 2)
#define SHARED_SIZE 510

static int set_lock(struct direct_file *f, short type, off_t start, off_t len) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
    int rc;
    do
        rc = fcntl(f->fd, F_OFD_SETLK, &lock);
    while (rc != 0 && errno == EINTR);
    if (rc == 0)
        return SQLITE_OK;
    return errno == EAGAIN || errno == EACCES ? SQLITE_BUSY : SQLITE_IOERR_LOCK;
}

static int direct_lock(sqlite3_file *base, int level) {
    struct direct_file *f = FILE(base);
    int rc = SQLITE_OK;
    if (is_real(f))
        return REAL(f, xLock, level);
    if (level <= f->level)
        return SQLITE_OK;
    if (level == SQLITE_LOCK_SHARED) {
        if (f->file != NULL && is_another_user(f->d))
            fall(f);
        rc = set_lock(f, F_RDLCK, PENDING, 1);
        if (rc == SQLITE_OK) {
            rc = set_lock(f, F_RDLCK, SHARED, SHARED_SIZE);
            if (set_lock(f, F_UNLCK, PENDING, 1) != SQLITE_OK && rc == SQLITE_OK)
                rc = SQLITE_IOERR_UNLOCK;
        }
    } else if (level == SQLITE_LOCK_RESERVED) {
        rc = set_lock(f, F_WRLCK, RESERVED, 1);
    } else {
        if (f->level < SQLITE_LOCK_PENDING && (rc = set_lock(f, F_WRLCK, PENDING, 1)) == SQLITE_OK)
            f->level = SQLITE_LOCK_PENDING;
        if (rc == SQLITE_OK && level == SQLITE_LOCK_EXCLUSIVE)
            rc = set_lock(f, F_WRLCK, SHARED, SHARED_SIZE);
    }
    if (rc == SQLITE_OK)
        f->level = level;
    return rc;
}

static int direct_unlock(sqlite3_file *base, int level) {
    struct direct_file *f = FILE(base);
    if (is_real(f))
        return REAL(f, xUnlock, level);
    if (level >= f->level)
        return SQLITE_OK;
    if (level == SQLITE_LOCK_SHARED) {
        if (set_lock(f, F_RDLCK, SHARED, SHARED_SIZE) != SQLITE_OK)
            return SQLITE_IOERR_RDLOCK;
        if (set_lock(f, F_UNLCK, PENDING, 2) != SQLITE_OK)
            return SQLITE_IOERR_UNLOCK;
    } else if (set_lock(f, F_UNLCK, 0, 0) != SQLITE_OK) {
        return SQLITE_IOERR_UNLOCK;
    }
    f->level = level;
    return SQLITE_OK;
}

static int direct_check_reserved(sqlite3_file *base, int *result) {
    struct direct_file *f = FILE(base);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = RESERVED, .l_len = 1};
    if (is_real(f))
        return REAL(f, xCheckReservedLock, result);
    *result = f->level > SQLITE_LOCK_SHARED;
    if (*result)
        return SQLITE_OK;
    if (fcntl(f->fd, F_OFD_GETLK, &lock) != 0)
        return SQLITE_IOERR_CHECKRESERVEDLOCK;
    *result = lock.l_type != F_UNLCK;
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
    if (is_real(f))
        return REAL(f, xFileControl, op, arg);
    switch (op) {
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

/* Wherever the descriptor has locks of its own nobody of this process may have others. */
static void drop_fd(struct direct_file *f) {
    if (f->shared || f->fd < 0)
        return;
    if (!KIND(f, SQLITE_OPEN_MAIN_DB)) {
        close(f->fd);
    } else if (f->d->ours > 0 || f->d->theirs > 0) {
        set_lock(f, F_UNLCK, 0, 0);
        leave_spare(f->d, f->fd);
    } else {
        close(f->fd);
    }
    f->fd = -1;
}

/* The last connection closes: a journal that SQLite has deleted goes now, if no other program begins to use it at this very moment. */
static void delete_kept_journal(struct direct_file *f) {
    struct direct_database *d = f->d;
    size_t n = strlen(f->name);
    char *journal = malloc(n + sizeof "-journal");
    if (journal == NULL)
        return;
    memcpy(journal, f->name, n);
    memcpy(journal + n, "-journal", sizeof "-journal");
    if (set_lock(f, F_WRLCK, RESERVED, 1) == SQLITE_OK && has_journal(d)) {
        struct visit visit = ccfs_enter(f->v);
        unlink(journal);
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
        delete_kept_journal(f);
}

static int direct_close(sqlite3_file *base) {
    struct direct_file *f = FILE(base), **at = &files;
    struct direct_database *d = f->d;
    int rc = SQLITE_OK;
    if (is_real(f))
        rc = REAL(f, xClose);
    pthread_mutex_lock(&list);
    while (*at != f)
        at = &(*at)->next;
    *at = f->next;
    pthread_mutex_unlock(&list);
    if (KIND(f, SQLITE_OPEN_MAIN_DB)) {
        if (is_real(f))
            direct_theirs(d, -1);
        else
            leave_ours(f);
    }
    pthread_mutex_lock(&d->lock);
    if (f->file != NULL && !f->shared)
        lib.ccfs_file_close(f->file);
    drop_fd(f);
    if (f->shared) {
        d->journal_users--;
        if (!has_journal(d))
            drop_journal(d);
    }
    pthread_mutex_unlock(&d->lock);
    base->pMethods = NULL;
    return rc;
}

/* A write-ahead log begins: its index is shared memory, which is the wrapped VFS's. SQLite has the SHARED lock then, which both can have at a time. */
static int become_real(struct direct_file *f) {
    struct visit visit;
    int rc, out;
    if (is_real(f))
        return SQLITE_OK;
    if (f->level > SQLITE_LOCK_SHARED)
        return SQLITE_BUSY;
    visit = ccfs_enter(f->v);
    rc = f->vfs->xOpen(f->vfs, f->name, f->real, f->flags, &out);
    ccfs_leave(f->v, visit);
    if (rc == SQLITE_OK && f->level != SQLITE_LOCK_NONE)
        rc = REAL(f, xLock, f->level);
    if (rc != SQLITE_OK) {
        if (is_real(f))
            REAL(f, xClose);
        f->real->pMethods = NULL;
        return rc;
    }
    leave_ours(f);
    fall(f);
    pthread_mutex_lock(&f->d->lock);
    f->d->theirs++;
    drop_fd(f);
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
    return is_real(f) ? REAL(f, xShmLock, offset, n, flags) : SQLITE_IOERR_SHMLOCK;
}

static void direct_shm_barrier(sqlite3_file *base) {
    struct direct_file *f = FILE(base);
    if (is_real(f))
        REAL(f, xShmBarrier);
}

static int direct_shm_unmap(sqlite3_file *base, int delete_it) {
    struct direct_file *f = FILE(base);
    return is_real(f) ? REAL(f, xShmUnmap, delete_it) : SQLITE_OK;
}

static const sqlite3_io_methods methods = {
    2,
    direct_close, direct_read, direct_write, direct_truncate, direct_sync, direct_size,
    direct_lock, direct_unlock, direct_check_reserved,
    direct_control, direct_sector_size, direct_characteristics,
    direct_shm_map, direct_shm_lock, direct_shm_barrier, direct_shm_unmap,
    NULL, NULL,
};

int direct_is(const sqlite3_file *file) {
    return file->pMethods == &methods;
}

int direct_file_size(const sqlite3_vfs *real) {
    return (int)sizeof(struct direct_file) + real->szOsFile;
}

/* ---- opening ---- */

static const char *last_name(const char *name) {
    const char *slash = strrchr(name, '/');
    return slash == NULL ? name : slash + 1;
}

/* Takes a file and opens its descriptor. */
static int take(struct direct_file *f, int flags, mode_t mode) {
    f->file = lib.ccfs_file_take(f->d->dir, last_name(f->name), O_RDWR | flags, mode);
    if (f->file == NULL)
        return 0;
    if (f->fd < 0)
        f->fd = lib.ccfs_file_descriptor(f->file);
    if (f->fd >= 0)
        return 1;
    lib.ccfs_file_close(f->file);
    f->file = NULL;
    return 0;
}

static void untake(struct direct_file *f) {
    if (f->file != NULL)
        lib.ccfs_file_close(f->file);
    if (f->fd >= 0)
        close(f->fd);
    f->file = NULL;
    f->fd = -1;
}

/* It is a file of the database's owner, with its mode. */
static int has_mode_of(struct direct_file *f, const struct stat *database, struct stat *st) {
    const mode_t bits = 0777;
    if (lib.ccfs_file_stat(f->file, st) != 0 || st->st_uid != database->st_uid || st->st_gid != database->st_gid)
        return 0;
    return (st->st_mode & bits) == (database->st_mode & bits) || lib.ccfs_file_chmod(f->file, database->st_mode & bits) == 0;
}

/* Reads what the file says of itself. False: it is kept with a write-ahead log, or cannot be read. */
static int read_database(struct direct_file *f) {
    struct direct_database *d = f->d;
    struct direct_content *c = &d->content;
    ssize_t n;
    if (lib.ccfs_file_stat(f->file, &d->st) != 0)
        return 0;
    n = lib.ccfs_file_read(f->file, c->head, sizeof c->head, 0);
    c->size = d->st.st_size;
    c->head_known = n == (ssize_t)sizeof c->head;
    return n >= 0 && !(c->head_known && (c->head[18] == 2 || c->head[19] == 2));
}

/* One of several connections, of which the first one has taken the database: it is used as that one uses it by now. */
static int open_beside(struct direct_file *f) {
    const int writes = (f->flags & SQLITE_OPEN_READWRITE) != 0;
    const int flags = (writes ? O_RDWR : O_RDONLY) | O_CLOEXEC;
    if (writes)
        f->fd = take_spare(f->d);
    if (writes && !is_another_user(f->d) && take(f, 0, 0))
        return SQLITE_OK;
    if (f->fd < 0)
        f->fd = open(f->name, flags);
    return f->fd >= 0 ? SQLITE_OK : SQLITE_CANTOPEN;
}

static int open_database(struct direct_file *f) {
    struct direct_database *d = f->d;
    const int locks = !sqlite3_uri_boolean(f->name, "nolock", 0) && !sqlite3_uri_boolean(f->name, "immutable", 0);
    const int flags = (f->flags & SQLITE_OPEN_CREATE ? O_CREAT : 0) | (f->flags & SQLITE_OPEN_EXCLUSIVE ? O_EXCL : 0);
    int rc;
    if (d->theirs > 0 || !locks)
        return SQLITE_NOTFOUND;
    if (d->ours > 0) {
        rc = open_beside(f);
    } else if ((f->flags & SQLITE_OPEN_READWRITE) != 0 && take(f, flags, 0644) && read_database(f)) {
        rc = SQLITE_OK;
    } else {
        untake(f);
        rc = SQLITE_NOTFOUND;
    }
    if (rc == SQLITE_OK)
        d->ours++;
    return rc;
}

static int open_journal(struct direct_file *f) {
    struct direct_database *d = f->d;
    const int flags = f->flags & SQLITE_OPEN_CREATE ? O_CREAT : 0;
    struct stat st;
    if (d->ours == 0)
        return SQLITE_NOTFOUND;
    if (!has_journal(d)) {
        if (d->journal_users > 0)
            return SQLITE_NOTFOUND;
        drop_journal(d);
        if (!take(f, flags, d->st.st_mode & 0777))
            return SQLITE_NOTFOUND;
        if (!has_mode_of(f, &d->st, &st)) {
            untake(f);
            return SQLITE_NOTFOUND;
        }
        d->journal = f->file;
        d->journal_fd = f->fd;
        d->journal_content.size = st.st_size;
        d->journal_content.head_known = 0;
        d->journal_gone = 0;
    }
    f->file = d->journal;
    f->fd = d->journal_fd;
    f->shared = 1;
    d->journal_users++;
    return SQLITE_OK;
}

/* The database is the wrapped VFS's then. */
static int open_log(struct direct_file *f) {
    const int flags = f->flags & SQLITE_OPEN_CREATE ? O_CREAT : 0;
    const size_t n = strlen(f->name) - strlen("-wal");
    struct stat database, st;
    char *name = strndup(f->name, n);
    int found = name != NULL && stat(name, &database) == 0;
    free(name);
    if (!found || !take(f, flags, database.st_mode & 0777))
        return SQLITE_NOTFOUND;
    if (!has_mode_of(f, &database, &st)) {
        untake(f);
        return SQLITE_NOTFOUND;
    }
    return SQLITE_OK;
}

int direct_open(sqlite3_vfs *real, struct volume *v, struct direct_volume *dv, struct direct_database *d, const char *name,
                sqlite3_file *base, int flags, int *out) {
    struct direct_file *f = FILE(base);
    int rc;
    base->pMethods = NULL;
    pthread_once(&once, load);
    if (!loaded || directory_of(v, dv, d, name) == NULL)
        return SQLITE_NOTFOUND;
    memset(f, 0, sizeof *f);
    f->v = v;
    f->d = d;
    f->vfs = real;
    f->name = name;
    f->flags = flags;
    f->fd = -1;
    f->real = (sqlite3_file *)(f + 1);
    f->real->pMethods = NULL;
    pthread_mutex_lock(&d->lock);
    d->volume = dv;
    rc = SQLITE_NOTFOUND;
    if (KIND(f, SQLITE_OPEN_MAIN_DB))
        rc = d->ours > 0 || !is_another_user(d) ? open_database(f) : SQLITE_NOTFOUND;
    else if (is_another_user(d))
        drop_journal(d);
    else if (KIND(f, SQLITE_OPEN_MAIN_JOURNAL))
        rc = open_journal(f);
    else if (KIND(f, SQLITE_OPEN_WAL))
        rc = open_log(f);
    pthread_mutex_unlock(&d->lock);
    if (rc != SQLITE_OK)
        return rc;
    base->pMethods = &methods;
    pthread_mutex_lock(&list);
    f->next = files;
    files = f;
    pthread_mutex_unlock(&list);
    if (out != NULL)
        *out = flags;
    return SQLITE_OK;
}

/* ---- names ---- */

int direct_exists(struct direct_database *d, int kind, int *out) {
    struct direct_file *f;
    struct stat st;
    int rc = SQLITE_NOTFOUND;
    if (kind == SQLITE_OPEN_MAIN_JOURNAL) {
        pthread_mutex_lock(&d->lock);
        *out = d->journal_content.size > 0;
        if (has_journal(d))
            rc = SQLITE_OK;
        pthread_mutex_unlock(&d->lock);
        return rc;
    }
    pthread_mutex_lock(&list);
    for (f = files; f != NULL && rc != SQLITE_OK; f = f->next)
        if (f->d == d && KIND(f, SQLITE_OPEN_WAL) && f->file != NULL && lib.ccfs_file_stat(f->file, &st) == 0) {
            *out = st.st_size > 0;
            rc = SQLITE_OK;
        }
    pthread_mutex_unlock(&list);
    return rc;
}

int direct_journal_delete(struct direct_database *d) {
    int rc = SQLITE_NOTFOUND;
    pthread_mutex_lock(&d->lock);
    if (has_journal(d) && lib.ccfs_file_truncate(d->journal, 0) == 0) {
        d->journal_content.size = 0;
        d->journal_content.head_known = 0;
        d->journal_gone = 1;
        rc = SQLITE_OK;
    } else {
        drop_journal(d);
    }
    pthread_mutex_unlock(&d->lock);
    return rc;
}

int direct_has(struct direct_database *d) {
    int has;
    pthread_mutex_lock(&d->lock);
    has = d->ours > 0;
    pthread_mutex_unlock(&d->lock);
    return has;
}
