/* direct_session.c - libccfs.so, sessions of volumes, and what a database has for all connections: see direct.c. */
#include "direct_file.h"
#include <dlfcn.h>
#include <stdlib.h>

struct direct_library direct_lib;
#define lib direct_lib
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int loaded;

/* Files that are open here. */
pthread_mutex_t direct_list = PTHREAD_MUTEX_INITIALIZER;
struct direct_file *direct_files;

static void load(void) {
    const char *other = secure_getenv("CCFS_LIBRARY");
    void *so = dlopen(other != NULL && *other != '\0' ? other : "libccfs.so.1", RTLD_NOW | RTLD_LOCAL);
    if (so == NULL)
        return;
#define FIND(name)                                                                                                                   \
    if ((lib.name = (__typeof__(name) *)dlsym(so, #name)) == NULL)                                                                   \
        return;
    EACH(FIND)
    loaded = direct_watch_forks();
}

int direct_is_loaded(void) {
    pthread_once(&once, load);
    return loaded;
}

/* ---- volumes and databases ---- */

static pthread_mutex_t beginning = PTHREAD_MUTEX_INITIALIZER;

/* Begins a session in the volume's stream, if one is to be had. */
static void begin(struct volume *v, struct direct_volume *dv, int fd) {
    struct visit visit;
    dv->asked = 1;
    dv->uid = geteuid();
    dv->gid = getegid();
    visit = ccfs_enter(v);
    dv->session = lib.ccfs_session_begin_in_stream(fd);
    ccfs_leave(v, visit);
    if (dv->session != NULL && !lib.ccfs_session_is_direct(dv->session)) {
        lib.ccfs_session_end(dv->session);
        dv->session = NULL;
    }
}

/* The directory of a database as its volume's session has it. NULL: there is none. */
ccfs_dir *direct_directory(struct volume *v, struct direct_volume *dv, struct direct_database *d, const char *name) {
    int fd;
    pthread_mutex_lock(&beginning);
    if (d->dir == NULL && (dv->session != NULL || !dv->asked) && (fd = ccfs_open_parent(name)) >= 0) {
        if (!dv->asked)
            begin(v, dv, fd);
        if (dv->session != NULL)
            d->dir = lib.ccfs_session_dir(dv->session, fd);
        close(fd);
    }
    pthread_mutex_unlock(&beginning);
    return d->dir;
}

/* A session keeps its volume from being unmounted, and a user has few: it ends with the last database. */
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
int direct_is_another_user(const struct direct_database *d) {
    return geteuid() != d->volume->uid || getegid() != d->volume->gid;
}

void direct_database_end(struct direct_database *d) {
    direct_drop_journal(d);
    direct_close_spares();
    if (d->dir != NULL)
        lib.ccfs_dir_close(d->dir);
    pthread_mutex_destroy(&d->lock);
}
