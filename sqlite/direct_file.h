/* direct_file.h - what direct.c, direct_session.c, direct_locks.c and direct_file.c share. */
#ifndef CCFS_SQLITE_DIRECT_FILE_H
#define CCFS_SQLITE_DIRECT_FILE_H
#define _GNU_SOURCE
#include "direct.h"
SQLITE_EXTENSION_INIT3
#include <fcntl.h>
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
    int persist_wal; /* SQLITE_FCNTL_PERSIST_WAL, for the wrapped VFS */
    ccfs_file *file; /* NULL: through the mount */
    int fd;
    int shared;      /* both belong to the database: a kept journal */
    sqlite3_file *real; /* has methods: a database with a write-ahead log */
};

#define FILE(base) ((struct direct_file *)(base))
#define KIND(f, kind) (((f)->flags & (kind)) != 0)
#define REAL(f, method, ...) (f)->real->pMethods->method((f)->real, ##__VA_ARGS__)

/* The wrapped VFS has it. */
static inline int direct_is_real(const struct direct_file *f) {
    return f->real->pMethods != NULL;
}

/* direct_session.c: the calls of libccfs.so, and all files that are open here. */
#define EACH(X)                                                                                                                      \
    X(ccfs_session_begin_in_stream) X(ccfs_session_is_direct) X(ccfs_session_end) X(ccfs_session_dir) X(ccfs_dir_close) X(ccfs_dir_stat) X(ccfs_dir_unlink) X(ccfs_file_take)  \
    X(ccfs_file_descriptor) X(ccfs_file_close) X(ccfs_file_is_direct) X(ccfs_file_stat) X(ccfs_file_chmod) X(ccfs_file_read)               \
    X(ccfs_file_write) X(ccfs_file_truncate) X(ccfs_file_sync)

struct direct_library {
#define MEMBER(name) __typeof__(name) *name;
    EACH(MEMBER)
};
extern struct direct_library direct_lib;
extern pthread_mutex_t direct_list;
extern struct direct_file *direct_files;
int direct_is_loaded(void);
/* The directory of a database as its volume's session has it. NULL: there is none. */
ccfs_dir *direct_directory(struct volume *v, struct direct_volume *dv, struct direct_database *d, const char *name);
/* What is asked by another user is refused, and what is posted would be done as the first one. */
int direct_is_another_user(const struct direct_database *d);

/* direct_locks.c: a database's descriptors, under its lock, and the locks that are taken by them. */
int direct_take_spare(const struct direct_database *d, int writes);
void direct_drop_fd(struct direct_file *f);
/* Those that nobody else in the process needs. */
void direct_close_spares(void);
/* False: a child would share its parent's locks. */
int direct_watch_forks(void);
int direct_set_lock(struct direct_file *f, short type, off_t start, off_t len);
int direct_lock(sqlite3_file *base, int level);
int direct_unlock(sqlite3_file *base, int level);
int direct_check_reserved(sqlite3_file *base, int *result);
#define DIRECT_PENDING 0x40000000
#define DIRECT_RESERVED (DIRECT_PENDING + 1)
#define DIRECT_SHARED (DIRECT_PENDING + 2)
#define DIRECT_SHARED_SIZE 510

/* direct_file.c */
const char *direct_last_name(const char *name);
extern const sqlite3_io_methods direct_methods;
void direct_fall(struct direct_file *f);
/* The kept journal of a database, under its lock: that it is what its name leads to, and closing it when nobody uses it. */
int direct_has_journal(struct direct_database *d);
void direct_drop_journal(struct direct_database *d);
#endif
