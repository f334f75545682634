/* direct.h - files of databases that are used without the kernel (ccfs_session_begin(3)), below the VFS of ccfs_vfs.c. */
#ifndef CCFS_SQLITE_DIRECT_H
#define CCFS_SQLITE_DIRECT_H
#include <ccfs.h>
#include <pthread.h>
#include <sqlite3ext.h>
#include <sys/stat.h>

/* What the VFS does around each call that changes something through the mount: the thread is in the volume's stream then. */
struct volume;
struct visit {
    int away;             /* it was not at home, but in: */
    ccfs_stream_t before; /* 0: where the mount's policy puts it */
    int ignores_fsync;
};
struct visit ccfs_enter(struct volume *v);
void ccfs_leave(struct volume *v, struct visit visit);
/* Opens the directory that holds the file. */
int ccfs_open_parent(const char *name);

/* What a volume has of it. */
struct direct_volume {
    ccfs_session *session; /* NULL: none is to be had, or nobody has asked yet */
    int asked;
    uid_t uid; /* whose it is: a process that has become another user has no session any more */
    gid_t gid;
};

/* What is known of a file while it is held. */
struct direct_content {
    sqlite3_int64 size;
    unsigned char head[100]; /* its first bytes */
    int head_known;
};

/* What a database has of it, for all connections of the process. All zeros at first. */
struct direct_database {
    pthread_mutex_t lock;
    struct direct_volume *volume;
    int ours;               /* database files that are open here: locks are taken by descriptors of their own */
    int theirs;             /* and by the wrapped VFS */
    ccfs_dir *dir;          /* where it is */
    struct stat st;         /* the database's owner and mode, which its journals get */
    struct direct_content content;
    ccfs_file *journal;     /* kept, since making a file costs more than all that is written to it */
    int journal_fd;
    int journal_users;
    int journal_gone;       /* SQLite has deleted it: it is empty */
    struct direct_content journal_content;
};

void direct_volume_end(struct direct_volume *dv);
void direct_database_begin(struct direct_database *d);
void direct_database_end(struct direct_database *d);
/* The wrapped VFS has opened (1) or closed (-1) a database. */
void direct_theirs(struct direct_database *d, int change);

/* A file below the VFS: its size, and opening one in place of the wrapped VFS. SQLITE_NOTFOUND: that has to do it. */
int direct_file_size(const sqlite3_vfs *real);
int direct_open(sqlite3_vfs *real, struct volume *v, struct direct_volume *dv, struct direct_database *d, const char *name,
                sqlite3_file *file, int flags, int *out);
/* It is one of these files, whose calls need no visit. */
int direct_is(const sqlite3_file *file);

/* Whether a journal or log has any content, and deleting a journal; SQLITE_NOTFOUND: it is not held, and the wrapped VFS knows. */
int direct_exists(struct direct_database *d, int kind, int *out);
int direct_journal_delete(struct direct_database *d);
/* The database is open, and held by this process: its name is not to be looked up. */
int direct_has(struct direct_database *d);
#endif
