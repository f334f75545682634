/* direct_session.c - libccfs.so, sessions of volumes, and what a database has for all connections: see direct.c. */
#include "direct_file.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

/* Sessions of volumes that are not in use at the moment, and volumes that have none: to find out either costs more than opening a small
 * database. Under beginning. */
static struct known {
    struct direct_volume v;
    time_t until; /* of one without a session */
} known[8];
static unsigned next_known;
static pthread_mutex_t beginning = PTHREAD_MUTEX_INITIALIZER;
#define NONE_FOR 60 /* s */

/* Takes out what is known. */
static int recall(struct direct_volume *dv) {
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        struct known *k = &known[i];
        if (!k->v.asked || k->v.dev != dv->dev || k->v.home != dv->home || k->v.uid != dv->uid || k->v.gid != dv->gid)
            continue;
        if (k->v.session == NULL)
            return time(NULL) < k->until;
        dv->session = k->v.session;
        k->v.asked = 0;
        if (lib.ccfs_session_is_direct(dv->session))
            return 1;
        /* A child has no part in its parent's. */
        lib.ccfs_session_end(dv->session);
        dv->session = NULL;
    }
    return 0;
}

static void remember(struct direct_volume *dv) {
    struct known *k = &known[next_known++ % (sizeof known / sizeof *known)];
    if (k->v.asked && k->v.session != NULL)
        lib.ccfs_session_end(k->v.session);
    k->v = *dv;
    k->until = time(NULL) + NONE_FOR;
}

/* The directory of a database as its volume's session has it, which is begun in the volume's stream. NULL: there is none. */
ccfs_dir *direct_directory(struct volume *v, struct direct_volume *dv, struct direct_database *d, const char *name) {
    int fd;
    pthread_mutex_lock(&beginning);
    if (!dv->asked) {
        dv->uid = geteuid();
        dv->gid = getegid();
        dv->asked = 1;
        if (!recall(dv) && (fd = ccfs_open_parent(name)) >= 0) {
            struct visit visit = ccfs_enter(v);
            dv->session = lib.ccfs_session_begin_in_stream(fd);
            ccfs_leave(v, visit);
            close(fd);
            if (dv->session != NULL && !lib.ccfs_session_is_direct(dv->session)) {
                lib.ccfs_session_end(dv->session);
                dv->session = NULL;
            }
            if (dv->session == NULL)
                remember(dv);
        }
    }
    if (d->dir == NULL && dv->session != NULL && (fd = ccfs_open_parent(name)) >= 0) {
        d->dir = lib.ccfs_session_dir(dv->session, fd);
        close(fd);
    }
    pthread_mutex_unlock(&beginning);
    return d->dir;
}

void direct_volume_end(struct direct_volume *dv) {
    if (dv->session == NULL)
        return;
    pthread_mutex_lock(&beginning);
    remember(dv);
    pthread_mutex_unlock(&beginning);
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
