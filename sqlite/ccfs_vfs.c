/* ccfs_vfs.c - an SQLite extension that makes COMMITs on ccfs cost one sync instead of three or four.
 *
 * It wraps SQLite's default VFS. On ccfs all updates of a stream keep their order across a crash, so of the syncs of a
 * transaction only the last one is needed, which makes the COMMIT durable. On other file systems it changes nothing.
 *
 * What it promises, as SQLite's documentation does for `synchronous`: with FULL (and NORMAL, outside of WAL mode) a COMMIT that was
 * acknowledged survives a crash; with OFF a crash may cost the last COMMITs, but (unlike elsewhere) never more than a suffix of them.
 *
 * How:
 * 1. One stream per process and volume: that of the thread which opened the first database ("home"). A program chooses it by
 *    entering a stream before it opens a database. SQLite's connections move between threads, and threads can be in different
 *    streams, so each call that changes a file asks for the thread's stream (one ioctl); if it is not home, the call is made at home
 *    and the thread goes back. All databases of a connection are thus in one order, also attached ones.
 * 2. Files are reported as SQLITE_IOCAP_SEQUENTIAL: SQLite then leaves out the syncs that only keep order.
 * 3. The sync of a database while its rollback journal is live is put off: the COMMIT takes effect when the journal ends
 *    (deleted, truncated, or its header zeroed), and that is what becomes durable, with all before it, before the call returns.
 * 4. All other syncs (write-ahead logs, databases without a journal on disk) are made as they are. An fsync on ccfs covers what every
 *    stream did to that file, so processes in different streams can share a database.
 * 5. A transaction over several databases takes effect when its super-journal is deleted: made durable there. If the databases
 *    are on several file systems, no stream orders them: while a super-journal is open, nothing is put off then.
 * 6. An SQLite that writes to databases through mappings (SQLITE_MMAP_READWRITE) is refused: no stream orders such stores.
 * 7. If home cannot be entered any more (the process has become another user), the volume's open files are synced at once, and from
 *    then on SQLite's syncs are made as they are, those of directories too: nothing orders what was done at home and what follows.
 *
 * 8. On a mount with direct=on databases and their journals are used without the kernel as long as nobody else looks at them: direct.c.
 *
 * Build: cc -O2 -fPIC -shared -o ccfs_vfs.so *.c -I<where ccfs.h is>
 */
#define _GNU_SOURCE
#include "direct.h"
SQLITE_EXTENSION_INIT1
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* A mounted ccfs volume with open databases. */
struct volume {
    struct volume *next;
    dev_t dev;
    int fd; /* a directory of it */
    int refs;
    ccfs_stream_t home;
    atomic_int lost; /* rule 7 */
    struct direct_volume direct;
};

/* A database's name: what its connections and their journals share. Only the connection that holds SQLite's write lock
 * changes the flags. */
struct database {
    struct database *next;
    struct volume *volume;
    int refs;
    struct direct_database direct;
    atomic_int live;   /* the journal on disk holds what a crash would roll back */
    atomic_int wanted; /* a sync was put off: the end of the journal has to be durable */
    char name[];
};

struct file {
    sqlite3_file base;
    sqlite3_io_methods methods;
    struct file *next; /* under table */
    struct database *db;
    int kind;    /* SQLITE_OPEN_MAIN_DB, _MAIN_JOURNAL, _WAL or _SUPER_JOURNAL */
    int wrote;   /* a journal that made the database's `live` */
    int settled; /* a journal's end is durable already */
    int theirs;  /* a database that is not used by direct.c */
    sqlite3_file *real;
};

static sqlite3_vfs *real_vfs;
static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER;
static struct volume *volumes;     /* under table */
static struct database *databases; /* under table */
static struct file *files;         /* under table; those that are open */
static atomic_int volumes_open;
static atomic_int elsewhere; /* databases on other file systems were opened */
static atomic_int supers;    /* super-journals that are open */

/* ---- streams ---- */

static int call(int fd, unsigned long number, struct ccfs_stream_arg *arg) {
    int result;
    arg->version = CCFS_ABI_VERSION;
    do
        result = ioctl(fd, number, arg);
    while (result < 0 && errno == EINTR);
    return result;
}

static int move(struct volume *v, ccfs_stream_t stream) {
    struct ccfs_stream_arg arg = {.id = stream, .flags = CCFS_KEEP_FLAGS};
    return call(v->fd, CCFS_IOC_SET_STREAM, &arg);
}

/* Makes durable what was done to the open files of a volume, or of one database of it. */
static int sync_files(struct volume *v, struct database *db) {
    int rc = SQLITE_OK;
    pthread_mutex_lock(&table);
    for (struct file *f = files; f != NULL && rc == SQLITE_OK; f = f->next)
        if (f->db->volume == v && (db == NULL || f->db == db))
            rc = f->real->pMethods->xSync(f->real, SQLITE_SYNC_NORMAL);
    pthread_mutex_unlock(&table);
    return rc;
}

/* Rule 7. What was done at home is durable before anything is done elsewhere; if this fails, so will the syncs that follow. (syncfs
 * would not do: before Linux 6.18, and on mounts without a block device, the kernel does not pass it on.) */
static void lose(struct volume *v) {
    sync_files(v, NULL);
    v->lost = 1;
}

/* The journal is about to end. A sync that was put off at home, before that was lost, is made now: the database comes first. */
static int before_end(struct database *db) {
    return db->volume->lost && db->wanted ? sync_files(db->volume, db) : SQLITE_OK;
}

void ccfs_leave(struct volume *v, struct visit visit) {
    if (visit.away)
        move(v, visit.before);
}

struct visit ccfs_enter(struct volume *v) {
    struct visit visit = {0, 0, 0};
    struct ccfs_stream_arg arg = {0};
    if (v->lost)
        return visit;
    if (call(v->fd, CCFS_IOC_GET_STREAM, &arg) != 0) {
        lose(v);
        return visit;
    }
    if (arg.id != v->home) {
        visit.away = 1;
        visit.before = arg.flags & CCFS_CHOSEN ? arg.id : 0;
        if (move(v, v->home) != 0 || call(v->fd, CCFS_IOC_GET_STREAM, &arg) != 0 || arg.id != v->home) {
            ccfs_leave(v, visit);
            visit.away = 0;
            lose(v);
            return visit;
        }
    }
    visit.ignores_fsync = (arg.flags & CCFS_IGNORE_FSYNC) != 0;
    return visit;
}

static const struct visit nowhere = {0, 0, 0};

/* For a change of a file. What does not go through the mount is done at home wherever the thread is. */
static struct visit visit_for(struct file *f, int settles) {
    return direct_is(f->real) && !settles ? nowhere : ccfs_enter(f->db->volume);
}

/* Everything that was done in the thread's stream is durable: home, between enter and leave, unless that was lost. */
static int make_durable(struct volume *v) {
    struct ccfs_stream_arg arg = {0};
    return call(v->fd, CCFS_IOC_STREAM_SYNC, &arg) == 0 ? SQLITE_OK : SQLITE_IOERR_FSYNC;
}

/* ---- volumes and databases ---- */

int ccfs_open_parent(const char *name) {
    const char *slash = strrchr(name, '/');
    char *dir = slash == NULL ? strdup(".") : strndup(name, slash == name ? 1 : (size_t)(slash - name));
    int fd = dir == NULL ? -1 : open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(dir);
    return fd;
}

/* The volume that holds the file, with one more reference; NULL if it is not ccfs. Called under table. */
static struct volume *take_volume(const char *name) {
    struct ccfs_stream_arg arg = {0};
    struct stat st;
    struct volume *v;
    int fd = ccfs_open_parent(name);
    if (fd < 0)
        return NULL;
    if (fstat(fd, &st) != 0 || call(fd, CCFS_IOC_GET_STREAM, &arg) != 0) {
        close(fd);
        return NULL;
    }
    for (v = volumes; v != NULL; v = v->next) {
        struct ccfs_stream_arg alive = {0};
        /* A mount that died and came back can have the same number. */
        if (v->dev == st.st_dev && call(v->fd, CCFS_IOC_GET_STREAM, &alive) == 0)
            break;
    }
    if (v != NULL) {
        close(fd);
    } else {
        v = calloc(1, sizeof *v);
        if (v == NULL) {
            close(fd);
            return NULL;
        }
        v->dev = st.st_dev;
        v->fd = fd;
        v->home = arg.id;
        v->next = volumes;
        volumes = v;
        volumes_open++;
    }
    v->refs++;
    return v;
}

static void drop_volume(struct volume *v) {
    struct volume **at = &volumes;
    if (--v->refs > 0)
        return;
    while (*at != v)
        at = &(*at)->next;
    *at = v->next;
    volumes_open--;
    direct_volume_end(&v->direct);
    close(v->fd);
    free(v);
}

static struct database *find(const char *name, size_t length) {
    struct database *db = databases;
    while (db != NULL && (strlen(db->name) != length || memcmp(db->name, name, length) != 0))
        db = db->next;
    return db;
}

/* Length of the database's name in that of one of its files. */
static size_t stem(const char *name) {
    static const char *const endings[] = {"-journal", "-wal"};
    size_t length = strlen(name);
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(endings[i]);
        if (length > n && memcmp(name + length - n, endings[i], n) == 0)
            return length - n;
    }
    return length;
}

/* The database that a file belongs to, with one more reference; NULL on other file systems. */
static struct database *take_database(const char *name) {
    size_t length = stem(name);
    struct database *db;
    pthread_mutex_lock(&table);
    db = find(name, length);
    if (db == NULL) {
        struct volume *v = take_volume(name);
        db = v == NULL ? NULL : calloc(1, sizeof *db + length + 1);
        if (db != NULL) {
            memcpy(db->name, name, length);
            direct_database_begin(&db->direct);
            db->volume = v;
            db->next = databases;
            databases = db;
        } else if (v != NULL) {
            drop_volume(v);
        }
    }
    if (db != NULL)
        db->refs++;
    pthread_mutex_unlock(&table);
    return db;
}

static void drop_database(struct database *db) {
    struct database **at = &databases;
    pthread_mutex_lock(&table);
    if (--db->refs == 0) {
        while (*at != db)
            at = &(*at)->next;
        *at = db->next;
        direct_database_end(&db->direct);
        drop_volume(db->volume);
        free(db);
    }
    pthread_mutex_unlock(&table);
}

/* Rule 5: a transaction may span file systems. */
static int spans_file_systems(void) {
    return volumes_open > 1 || elsewhere;
}

static int may_put_off(struct database *db) {
    return !db->volume->lost && !(supers > 0 && spans_file_systems());
}

/* ---- files ---- */

#define REAL(f) (((struct file *)(f))->real)
#define CALL(f, method, ...) REAL(f)->pMethods->method(REAL(f), ##__VA_ARGS__)

static int ccfs_close(sqlite3_file *base) {
    struct file *f = (struct file *)base;
    struct file **at = &files;
    int rc;
    pthread_mutex_lock(&table);
    while (*at != f)
        at = &(*at)->next;
    *at = f->next;
    pthread_mutex_unlock(&table);
    rc = CALL(f, xClose);
    if (f->kind == SQLITE_OPEN_SUPER_JOURNAL)
        supers--;
    if (f->theirs)
        direct_theirs(&f->db->direct, -1);
    /* A journal that is given up; somebody else may roll it back and remove it. */
    if (f->wrote)
        f->db->live = 0;
    drop_database(f->db);
    base->pMethods = NULL;
    return rc;
}

static int ccfs_read(sqlite3_file *f, void *to, int n, sqlite3_int64 at) {
    return CALL(f, xRead, to, n, at);
}

/* The transaction has taken effect (or was rolled back): durable, if SQLite asked for a sync in it. At home; elsewhere SQLite's own
 * sync follows, and is a real one. */
static int journal_ended(struct file *f) {
    int rc = SQLITE_OK;
    f->wrote = f->db->live = 0;
    if (f->db->volume->lost)
        f->db->wanted = 0;
    else if (f->db->wanted && (rc = make_durable(f->db->volume)) == SQLITE_OK) {
        f->db->wanted = 0;
        f->settled = 1;
    }
    return rc;
}

/* SQLite ends a journal that it keeps by writing 28 zero bytes over its header; new headers are a sector long. */
static int is_end(const void *bytes, int n, sqlite3_int64 at) {
    static const char zeroes[28];
    return at == 0 && n == (int)sizeof zeroes && memcmp(bytes, zeroes, sizeof zeroes) == 0;
}

static int ccfs_write(sqlite3_file *base, const void *from, int n, sqlite3_int64 at) {
    struct file *f = (struct file *)base;
    struct volume *v = f->db->volume;
    int ends = f->kind == SQLITE_OPEN_MAIN_JOURNAL && is_end(from, n, at);
    struct visit visit = visit_for(f, ends && f->db->wanted);
    int rc = ends ? before_end(f->db) : SQLITE_OK;
    if (rc == SQLITE_OK)
        rc = CALL(f, xWrite, from, n, at);
    if (f->kind == SQLITE_OPEN_MAIN_JOURNAL) {
        f->settled = 0;
        if (!ends)
            f->wrote = f->db->live = 1;
        else if (rc == SQLITE_OK)
            rc = journal_ended(f);
    }
    ccfs_leave(v, visit);
    return rc;
}

static int ccfs_truncate(sqlite3_file *base, sqlite3_int64 size) {
    struct file *f = (struct file *)base;
    struct volume *v = f->db->volume;
    int ends = f->kind == SQLITE_OPEN_MAIN_JOURNAL && size == 0;
    struct visit visit = visit_for(f, ends && f->db->wanted);
    int rc = ends ? before_end(f->db) : SQLITE_OK;
    if (rc == SQLITE_OK)
        rc = CALL(f, xTruncate, size);
    if (ends && rc == SQLITE_OK) {
        f->settled = 0;
        rc = journal_ended(f);
    }
    ccfs_leave(v, visit);
    return rc;
}

static int real_sync(struct file *f, int flags) {
    struct volume *v = f->db->volume;
    struct visit visit = ccfs_enter(v);
    int rc = CALL(f, xSync, flags);
    if (rc == SQLITE_OK && visit.ignores_fsync)
        rc = make_durable(v);
    ccfs_leave(v, visit);
    return rc;
}

static int ccfs_sync(sqlite3_file *base, int flags) {
    struct file *f = (struct file *)base;
    struct database *db = f->db;
    switch (f->kind) {
    case SQLITE_OPEN_MAIN_DB:
    case SQLITE_OPEN_MAIN_JOURNAL:
        if (db->live) {
            /* The commit point is still to come. */
            db->wanted = 1;
            return may_put_off(db) ? SQLITE_OK : real_sync(f, flags);
        }
        if (f->kind == SQLITE_OPEN_MAIN_JOURNAL && f->settled)
            return SQLITE_OK;
        return real_sync(f, flags);
    case SQLITE_OPEN_SUPER_JOURNAL:
        return may_put_off(db) ? SQLITE_OK : real_sync(f, flags);
    default:
        return real_sync(f, flags);
    }
}

static int ccfs_file_size(sqlite3_file *f, sqlite3_int64 *size) {
    return CALL(f, xFileSize, size);
}

static int ccfs_lock(sqlite3_file *f, int level) {
    return CALL(f, xLock, level);
}

static int ccfs_unlock(sqlite3_file *f, int level) {
    return CALL(f, xUnlock, level);
}

static int ccfs_check_reserved_lock(sqlite3_file *f, int *result) {
    return CALL(f, xCheckReservedLock, result);
}

static int ccfs_file_control(sqlite3_file *base, int op, void *arg) {
    struct file *f = (struct file *)base;
    int rc;
    if (op == SQLITE_FCNTL_SIZE_HINT) { /* makes the file larger */
        struct visit visit = visit_for(f, 0);
        rc = CALL(f, xFileControl, op, arg);
        ccfs_leave(f->db->volume, visit);
        return rc;
    }
    rc = CALL(f, xFileControl, op, arg);
    if (op == SQLITE_FCNTL_VFSNAME && rc == SQLITE_OK)
        *(char **)arg = sqlite3_mprintf("ccfs/%z", *(char **)arg);
    return rc;
}

static int ccfs_sector_size(sqlite3_file *f) {
    return CALL(f, xSectorSize);
}

static int ccfs_device_characteristics(sqlite3_file *base) {
    struct file *f = (struct file *)base;
    int real = CALL(f, xDeviceCharacteristics) & ~SQLITE_IOCAP_BATCH_ATOMIC;
    int in_order = !f->db->volume->lost && !(f->kind == SQLITE_OPEN_SUPER_JOURNAL && spans_file_systems());
    return in_order ? real | SQLITE_IOCAP_SEQUENTIAL : real;
}

static int ccfs_shm_map(sqlite3_file *f, int region, int size, int extend, void volatile **to) {
    return CALL(f, xShmMap, region, size, extend, to);
}

static int ccfs_shm_lock(sqlite3_file *f, int offset, int n, int flags) {
    return CALL(f, xShmLock, offset, n, flags);
}

static void ccfs_shm_barrier(sqlite3_file *f) {
    CALL(f, xShmBarrier);
}

static int ccfs_shm_unmap(sqlite3_file *f, int delete_it) {
    return CALL(f, xShmUnmap, delete_it);
}

static int ccfs_fetch(sqlite3_file *f, sqlite3_int64 at, int n, void **to) {
    return CALL(f, xFetch, at, n, to);
}

static int ccfs_unfetch(sqlite3_file *f, sqlite3_int64 at, void *from) {
    return CALL(f, xUnfetch, at, from);
}

/* Ours, as far as the wrapped file has them. */
static sqlite3_io_methods methods_over(const sqlite3_io_methods *real) {
    sqlite3_io_methods ours = {
        real->iVersion < 3 ? real->iVersion : 3,
        ccfs_close, ccfs_read, ccfs_write, ccfs_truncate, ccfs_sync, ccfs_file_size,
        ccfs_lock, ccfs_unlock, ccfs_check_reserved_lock,
        ccfs_file_control, ccfs_sector_size, ccfs_device_characteristics,
        NULL, NULL, NULL, NULL, NULL, NULL,
    };
    if (real->iVersion >= 2 && real->xShmMap != NULL) {
        ours.xShmMap = ccfs_shm_map;
        ours.xShmLock = ccfs_shm_lock;
        ours.xShmBarrier = ccfs_shm_barrier;
        ours.xShmUnmap = ccfs_shm_unmap;
    }
    if (real->iVersion >= 3 && real->xFetch != NULL) {
        ours.xFetch = ccfs_fetch;
        ours.xUnfetch = ccfs_unfetch;
    }
    return ours;
}

/* ---- the VFS ---- */

static int ccfs_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *base, int flags, int *out) {
    const int ordered = SQLITE_OPEN_MAIN_DB | SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_WAL | SQLITE_OPEN_SUPER_JOURNAL;
    struct file *f = (struct file *)base;
    struct database *db = NULL;
    struct visit visit;
    int rc;
    (void)vfs;
    if (name != NULL && (flags & ordered) != 0)
        db = take_database(name);
    if (db == NULL) {
        if (name != NULL && (flags & SQLITE_OPEN_MAIN_DB) != 0)
            elsewhere = 1;
        return real_vfs->xOpen(real_vfs, name, base, flags, out);
    }
    memset(f, 0, sizeof *f);
    f->real = (sqlite3_file *)(f + 1);
    f->real->pMethods = NULL;
    f->db = db;
    f->kind = flags & ordered;
    rc = direct_open(real_vfs, db->volume, &db->volume->direct, &db->direct, name, f->real, flags, out);
    if (rc == SQLITE_NOTFOUND) {
        visit = ccfs_enter(db->volume);
        rc = real_vfs->xOpen(real_vfs, name, f->real, flags, out);
        ccfs_leave(db->volume, visit);
        f->theirs = f->kind == SQLITE_OPEN_MAIN_DB && f->real->pMethods != NULL;
        if (f->theirs)
            direct_theirs(&db->direct, 1);
    }
    if (f->real->pMethods == NULL) {
        drop_database(db);
        return rc;
    }
    /* SQLite closes a file that has methods even if opening it failed. */
    f->methods = methods_over(f->real->pMethods);
    base->pMethods = &f->methods;
    pthread_mutex_lock(&table);
    f->next = files;
    files = f;
    pthread_mutex_unlock(&table);
    if (f->kind == SQLITE_OPEN_SUPER_JOURNAL)
        supers++;
    return rc;
}

static int ccfs_delete(sqlite3_vfs *vfs, const char *name, int durable) {
    struct database *db = take_database(name);
    struct visit visit;
    int rc, is_journal, settles;
    (void)vfs;
    if (db == NULL)
        return real_vfs->xDelete(real_vfs, name, durable);
    /* The end of a rollback journal or of a super-journal is a commit. */
    is_journal = stem(name) + strlen("-journal") == strlen(name);
    settles = durable || (is_journal && db->wanted);
    if (is_journal && !settles && direct_journal_delete(&db->direct) == SQLITE_OK) {
        db->live = 0;
        drop_database(db);
        return SQLITE_OK;
    }
    visit = ccfs_enter(db->volume);
    rc = is_journal ? before_end(db) : SQLITE_OK;
    if (rc == SQLITE_OK && (!is_journal || db->volume->lost || direct_journal_delete(&db->direct) != SQLITE_OK))
        rc = real_vfs->xDelete(real_vfs, name, 0);
    if (rc == SQLITE_OK) {
        if (is_journal)
            db->live = 0;
        /* Not by the wrapped VFS: it takes a directory that it cannot open, as on a mount that died, for one that needs no sync. */
        if (settles)
            rc = make_durable(db->volume) == SQLITE_OK ? SQLITE_OK : SQLITE_IOERR_DIR_FSYNC;
        if (rc == SQLITE_OK && is_journal)
            db->wanted = 0;
    }
    ccfs_leave(db->volume, visit);
    drop_database(db);
    return rc;
}

static int ccfs_access(sqlite3_vfs *vfs, const char *name, int flags, int *out) {
    size_t length = stem(name);
    int kind, rc = SQLITE_NOTFOUND;
    (void)vfs;
    if (flags == SQLITE_ACCESS_EXISTS && name[length] != '\0') {
        struct database *db;
        kind = strcmp(name + length, "-wal") == 0 ? SQLITE_OPEN_WAL : SQLITE_OPEN_MAIN_JOURNAL;
        pthread_mutex_lock(&table);
        db = find(name, length);
        if (db != NULL)
            rc = direct_exists(&db->direct, kind, out);
        pthread_mutex_unlock(&table);
    }
    if (rc != SQLITE_NOTFOUND)
        return rc;
    return real_vfs->xAccess(real_vfs, name, flags, out);
}

/* The wrapped VFS looks every name up, which would end a database's being held. */
static int ccfs_full_pathname(sqlite3_vfs *vfs, const char *name, int n, char *out) {
    struct database *db;
    int known;
    (void)vfs;
    pthread_mutex_lock(&table);
    db = find(name, strlen(name));
    known = db != NULL && (int)strlen(name) < n && direct_has(&db->direct);
    pthread_mutex_unlock(&table);
    if (known) {
        memcpy(out, name, strlen(name) + 1);
        return SQLITE_OK;
    }
    return real_vfs->xFullPathname(real_vfs, name, n, out);
}

static void *ccfs_dl_open(sqlite3_vfs *vfs, const char *name) {
    (void)vfs;
    return real_vfs->xDlOpen(real_vfs, name);
}

static void ccfs_dl_error(sqlite3_vfs *vfs, int n, char *out) {
    (void)vfs;
    real_vfs->xDlError(real_vfs, n, out);
}

static void (*ccfs_dl_sym(sqlite3_vfs *vfs, void *library, const char *name))(void) {
    (void)vfs;
    return real_vfs->xDlSym(real_vfs, library, name);
}

static void ccfs_dl_close(sqlite3_vfs *vfs, void *library) {
    (void)vfs;
    real_vfs->xDlClose(real_vfs, library);
}

static int ccfs_randomness(sqlite3_vfs *vfs, int n, char *out) {
    (void)vfs;
    return real_vfs->xRandomness(real_vfs, n, out);
}

static int ccfs_sleep(sqlite3_vfs *vfs, int microseconds) {
    (void)vfs;
    return real_vfs->xSleep(real_vfs, microseconds);
}

static int ccfs_current_time(sqlite3_vfs *vfs, double *out) {
    (void)vfs;
    return real_vfs->xCurrentTime(real_vfs, out);
}

static int ccfs_get_last_error(sqlite3_vfs *vfs, int n, char *out) {
    (void)vfs;
    return real_vfs->xGetLastError(real_vfs, n, out);
}

static int ccfs_current_time_int64(sqlite3_vfs *vfs, sqlite3_int64 *out) {
    (void)vfs;
    return real_vfs->xCurrentTimeInt64(real_vfs, out);
}

static sqlite3_vfs ccfs_vfs = {
    .zName = "ccfs",
    .xOpen = ccfs_open,
    .xDelete = ccfs_delete,
    .xAccess = ccfs_access,
    .xFullPathname = ccfs_full_pathname,
    .xDlOpen = ccfs_dl_open,
    .xDlError = ccfs_dl_error,
    .xDlSym = ccfs_dl_sym,
    .xDlClose = ccfs_dl_close,
    .xRandomness = ccfs_randomness,
    .xSleep = ccfs_sleep,
    .xCurrentTime = ccfs_current_time,
    .xGetLastError = ccfs_get_last_error,
    .xCurrentTimeInt64 = ccfs_current_time_int64,
};

/* Why the VFS that is the default now cannot be wrapped; NULL: it can. */
static const char *unfit(const sqlite3_vfs *vfs) {
    if (vfs == NULL || vfs->iVersion < 2)
        return "no default VFS of version 2 or later to wrap";
    if (sqlite3_compileoption_used("MMAP_READWRITE"))
        return "this SQLite writes through mappings (SQLITE_MMAP_READWRITE), which no stream orders";
    return NULL;
}

/* Makes "ccfs" the VFS of all databases that are opened from now on; file:NAME?vfs=unix takes the old one. */
int sqlite3_ccfsvfs_init(sqlite3 *db, char **error, const sqlite3_api_routines *api) {
    int rc = SQLITE_OK;
    (void)db;
    SQLITE_EXTENSION_INIT2(api);
    pthread_mutex_lock(&table);
    if (real_vfs == NULL) {
        sqlite3_vfs *vfs = sqlite3_vfs_find(NULL);
        const char *why = unfit(vfs);
        if (why != NULL) {
            if (error != NULL)
                *error = sqlite3_mprintf("ccfs: %s", why);
            rc = SQLITE_ERROR;
        } else {
            real_vfs = vfs;
            ccfs_vfs.iVersion = 2;
            ccfs_vfs.szOsFile = (int)sizeof(struct file) + direct_file_size(real_vfs);
            ccfs_vfs.mxPathname = real_vfs->mxPathname;
            rc = sqlite3_vfs_register(&ccfs_vfs, 1);
        }
    }
    pthread_mutex_unlock(&table);
    return rc == SQLITE_OK ? SQLITE_OK_LOAD_PERMANENTLY : rc;
}
