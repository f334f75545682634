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
 * VFS's as a whole. The connections of a process to one file go one way: closing any descriptor of a file takes away the POSIX locks that
 * its process has on it, so none is closed while somebody else in the process has the file open. */
#include "direct_file.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define lib direct_lib

/* ---- opening ---- */

static int take(struct direct_file *f, int flags, mode_t mode) {
    f->file = lib.ccfs_file_take(f->d->dir, direct_last_name(f->name), O_RDWR | flags, mode);
    return f->file != NULL;
}

/* Its descriptor: for a database's locks, and for everything once it is not held any more. */
static int give_fd(struct direct_file *f) {
    if (KIND(f, SQLITE_OPEN_MAIN_DB))
        f->fd = direct_take_spare(f->d, 1);
    if (f->fd < 0)
        f->fd = lib.ccfs_file_descriptor(f->file);
    return f->fd >= 0;
}

static void untake(struct direct_file *f) {
    if (f->file != NULL)
        lib.ccfs_file_close(f->file);
    f->file = NULL;
}

/* It is a file of the database's owner, with its mode. */
static int has_mode_of(struct direct_file *f, const struct stat *database, struct stat *st) {
    const mode_t bits = 0777;
    if (lib.ccfs_file_stat(f->file, st) != 0 || st->st_uid != database->st_uid || st->st_gid != database->st_gid)
        return 0;
    if ((st->st_mode & bits) == (database->st_mode & bits))
        return 1;
    return KIND(f, SQLITE_OPEN_CREATE) && lib.ccfs_file_chmod(f->file, database->st_mode & bits) == 0;
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

static int is_same_file(const struct stat *a, const struct stat *b) {
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev;
}

/* One of several connections, of which the first one has taken the database: it is used as that one uses it by now. What its name leads to by now
 * may be another file, or none: that is the wrapped VFS's. */
static int open_beside(struct direct_file *f) {
    struct direct_database *d = f->d;
    const int writes = KIND(f, SQLITE_OPEN_READWRITE);
    struct stat st;
    if (writes && !direct_is_another_user(d))
        take(f, 0, 0);
    if ((f->file != NULL ? lib.ccfs_file_stat(f->file, &st) : stat(f->name, &st)) != 0 || !is_same_file(&st, &d->st)) {
        untake(f);
        return SQLITE_NOTFOUND;
    }
    if (f->file != NULL && give_fd(f))
        return SQLITE_OK;
    untake(f);
    f->fd = direct_take_spare(d, writes);
    if (f->fd < 0)
        f->fd = open(f->name, (writes ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    return f->fd >= 0 ? SQLITE_OK : SQLITE_CANTOPEN;
}

static int open_database(struct direct_file *f) {
    struct direct_database *d = f->d;
    const int plain = !sqlite3_uri_boolean(f->name, "nolock", 0) && !sqlite3_uri_boolean(f->name, "immutable", 0) &&
                      sqlite3_uri_parameter(f->name, "modeof") == NULL;
    const int flags = (f->flags & SQLITE_OPEN_CREATE ? O_CREAT : 0) | (f->flags & SQLITE_OPEN_EXCLUSIVE ? O_EXCL : 0);
    int rc;
    if (d->theirs > 0 || !plain)
        return SQLITE_NOTFOUND;
    if (d->ours > 0) {
        rc = open_beside(f);
    } else if ((f->flags & SQLITE_OPEN_READWRITE) != 0 && take(f, flags, 0644) && read_database(f) && give_fd(f)) {
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
    if (d->ours == 0 || d->theirs > 0)
        return SQLITE_NOTFOUND;
    if (!direct_has_journal(d)) {
        if (d->journal_users > 0)
            return SQLITE_NOTFOUND;
        direct_drop_journal(d);
        if (!take(f, flags, d->st.st_mode & 0777))
            return SQLITE_NOTFOUND;
        if (!has_mode_of(f, &d->st, &st) || !give_fd(f)) {
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
    if (!has_mode_of(f, &database, &st) || !give_fd(f)) {
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
    if (!direct_is_loaded() || direct_directory(v, dv, d, name) == NULL)
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
        rc = d->ours > 0 || !direct_is_another_user(d) ? open_database(f) : SQLITE_NOTFOUND;
    else if (direct_is_another_user(d))
        direct_drop_journal(d);
    else if (KIND(f, SQLITE_OPEN_MAIN_JOURNAL))
        rc = open_journal(f);
    else if (KIND(f, SQLITE_OPEN_WAL))
        rc = open_log(f);
    pthread_mutex_unlock(&d->lock);
    if (rc != SQLITE_OK)
        return rc;
    base->pMethods = &direct_methods;
    pthread_mutex_lock(&direct_list);
    f->next = direct_files;
    direct_files = f;
    pthread_mutex_unlock(&direct_list);
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
        if (direct_has_journal(d))
            rc = SQLITE_OK;
        pthread_mutex_unlock(&d->lock);
        return rc;
    }
    pthread_mutex_lock(&direct_list);
    pthread_mutex_lock(&d->lock);
    for (f = direct_files; f != NULL && rc != SQLITE_OK; f = f->next)
        if (f->d == d && KIND(f, SQLITE_OPEN_WAL) && f->file != NULL && lib.ccfs_file_stat(f->file, &st) == 0) {
            *out = st.st_size > 0;
            rc = SQLITE_OK;
        }
    pthread_mutex_unlock(&d->lock);
    pthread_mutex_unlock(&direct_list);
    return rc;
}

int direct_journal_delete(struct direct_database *d) {
    int rc = SQLITE_NOTFOUND;
    pthread_mutex_lock(&d->lock);
    if (direct_has_journal(d) && lib.ccfs_file_truncate(d->journal, 0) == 0) {
        d->journal_content.size = 0;
        d->journal_content.head_known = 0;
        d->journal_gone = 1;
        rc = SQLITE_OK;
    } else {
        direct_drop_journal(d);
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

int direct_is(const sqlite3_file *file) {
    return file->pMethods == &direct_methods;
}

int direct_file_size(const sqlite3_vfs *real) {
    return (int)sizeof(struct direct_file) + real->szOsFile;
}
