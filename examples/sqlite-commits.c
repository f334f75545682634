/* Commits that count: rows written to SQLite in one of many ways, each COMMIT acknowledged on stdout. For speed and for crashes.
 *
 * usage: sqlite-commits [OPTION...] DIR
 *   --extension FILE   load this extension first (ccfs_vfs.so)
 *   --journal MODE     delete, truncate, persist, memory, wal (default delete)
 *   --synchronous S    off, normal, full, extra (default full)
 *   --threads N        so many threads, each with a connection of its own (default 1)
 *   --shared           the threads share one connection: one thread begins, the next one commits
 *   --streams          each thread is in another stream: the first one where the mount's policy puts it, the others and the one that
 *                      opens the databases in streams of their own (needs ccfs)
 *   --attach           each transaction writes to two databases
 *   --exclusive        PRAGMA locking_mode=EXCLUSIVE
 *   --become UID       all in a stream; within the 20th transaction the process becomes another user (needs ccfs, root, one thread)
 *   --commits N        in all (default 1000)
 *   --quiet            no acknowledgements; at the end: commits a second
 *
 * Prints "ack THREAD ROW" after each COMMIT; the rows of a thread are 1, 2, 3 ...
 *
 * Build: cc sqlite-commits.c $(pkg-config --cflags ccfs sqlite3) -lsqlite3 -lpthread
 */
#define _GNU_SOURCE
#include <ccfs.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *dir, *extension, *journal = "delete", *synchronous = "full";
static int threads = 1, shared, streams, attach, exclusive, quiet;
static long commits = 1000, become;
static sqlite3 *common;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t next_turn = PTHREAD_COND_INITIALIZER;
static int whose;

static void fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void run(sqlite3 *db, const char *sql) {
    char *error = NULL;
    if (sqlite3_exec(db, sql, NULL, NULL, &error) != SQLITE_OK)
        fail(sql, error);
}

static sqlite3 *connect(void) {
    char text[4096];
    sqlite3 *db;
    snprintf(text, sizeof text, "%s/one.db", dir);
    if (sqlite3_open(text, &db) != SQLITE_OK)
        fail(text, sqlite3_errmsg(db));
    sqlite3_busy_timeout(db, 600000);
    if (attach) {
        char *sql = sqlite3_mprintf("ATTACH '%q/two.db' AS two", dir);
        run(db, sql);
        sqlite3_free(sql);
    }
    for (int i = 0; i <= attach; i++) {
        const char *name = i == 0 ? "main" : "two";
        if (exclusive) {
            snprintf(text, sizeof text, "PRAGMA %s.locking_mode=EXCLUSIVE", name);
            run(db, text);
        }
        snprintf(text, sizeof text, "PRAGMA %s.journal_mode=%s; PRAGMA %s.synchronous=%s", name, journal, name, synchronous);
        run(db, text);
        snprintf(text, sizeof text, "CREATE TABLE IF NOT EXISTS %s.t(thread INT, row INT, fill TEXT, PRIMARY KEY(thread, row))", name);
        run(db, text);
    }
    return db;
}

/* One thread's part of a transaction. */
static void insert(sqlite3 *db, int thread, long row) {
    for (int i = 0; i <= attach; i++) {
        char *sql = sqlite3_mprintf("INSERT INTO %s.t VALUES(%d, %ld, hex(randomblob(%d)))", i == 0 ? "main" : "two", thread, row,
                                    (int)(row * 37 % 300));
        run(db, sql);
        sqlite3_free(sql);
    }
}

static void acknowledge(int thread, long row) {
    char line[64];
    int n = snprintf(line, sizeof line, "ack %d %ld\n", thread, row);
    if (!quiet && write(STDOUT_FILENO, line, (size_t)n) != n)
        exit(1);
}

static void enter_stream(void) {
    struct ccfs_stream_arg arg = {.version = CCFS_ABI_VERSION};
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || ioctl(fd, CCFS_IOC_NEW_STREAM, &arg) != 0)
        fail("a new stream", strerror(errno));
    arg.flags = CCFS_KEEP_FLAGS;
    if (ioctl(fd, CCFS_IOC_SET_STREAM, &arg) != 0)
        fail("entering a stream", strerror(errno));
    close(fd);
}

/* Where the mount's policy puts the thread. */
static void leave_stream(void) {
    struct ccfs_stream_arg arg = {.version = CCFS_ABI_VERSION, .flags = CCFS_KEEP_FLAGS};
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || ioctl(fd, CCFS_IOC_SET_STREAM, &arg) != 0)
        fail("leaving a stream", strerror(errno));
    close(fd);
}

static struct ccfs_stream_arg where_am_i(void) {
    struct ccfs_stream_arg arg = {.version = CCFS_ABI_VERSION};
    if (!streams)
        return arg;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || ioctl(fd, CCFS_IOC_GET_STREAM, &arg) != 0)
        fail("the thread's stream", strerror(errno));
    close(fd);
    return arg;
}

/* SQLite leaves the thread where it was. */
static void still_there(const struct ccfs_stream_arg *before) {
    struct ccfs_stream_arg now = where_am_i();
    if (now.id != before->id || now.flags != before->flags)
        fail("the thread is in another stream", "after a transaction");
}

/* With a shared connection the threads take turns in the middle of transactions. */
static void pass_turn(int thread) {
    if (!shared)
        return;
    whose = (thread + 1) % threads;
    pthread_cond_broadcast(&next_turn);
    while (whose != thread)
        pthread_cond_wait(&next_turn, &turn);
}

static void *work(void *argument) {
    int thread = (int)(long)argument;
    if (streams && thread == 0)
        leave_stream();
    else if (streams)
        enter_stream();
    struct ccfs_stream_arg place = where_am_i();
    if (shared) {
        /* One thread at a time; each commits what the one before began, and begins a transaction for the next. */
        pthread_mutex_lock(&turn);
        while (whose != thread)
            pthread_cond_wait(&next_turn, &turn);
        for (long row = 1; row <= commits / threads; row++) {
            int before = (thread + threads - 1) % threads;
            if (row > 1 || thread > 0) {
                run(common, "COMMIT");
                acknowledge(before, thread > 0 ? row : row - 1);
            }
            run(common, "BEGIN IMMEDIATE");
            insert(common, thread, row);
            still_there(&place);
            if (row < commits / threads)
                pass_turn(thread);
        }
        whose = (thread + 1) % threads;
        pthread_cond_broadcast(&next_turn);
        pthread_mutex_unlock(&turn);
        return NULL;
    }
    sqlite3 *db = threads == 1 ? common : connect();
    for (long row = 1; row <= commits / threads; row++) {
        run(db, "BEGIN IMMEDIATE");
        insert(db, thread, row);
        if (become != 0 && row == 20 && setuid((uid_t)become) != 0)
            fail("another user", strerror(errno));
        run(db, "COMMIT");
        still_there(&place);
        acknowledge(thread, row);
    }
    if (db != common)
        sqlite3_close(db);
    return NULL;
}

static void load(void) {
    sqlite3 *db;
    char *error = NULL;
    if (sqlite3_open(":memory:", &db) != SQLITE_OK)
        fail("SQLite", sqlite3_errmsg(db));
    sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 1, NULL);
    if (sqlite3_load_extension(db, extension, NULL, &error) != SQLITE_OK)
        fail(extension, error);
    sqlite3_close(db);
}

static void options(int argc, char **argv) {
    static const struct option table[] = {
        {"extension", 1, NULL, 'x'}, {"journal", 1, NULL, 'j'}, {"synchronous", 1, NULL, 's'}, {"threads", 1, NULL, 't'},
        {"shared", 0, &shared, 1}, {"streams", 0, &streams, 1}, {"attach", 0, &attach, 1}, {"exclusive", 0, &exclusive, 1},
        {"become", 1, NULL, 'b'}, {"commits", 1, NULL, 'c'}, {"quiet", 0, &quiet, 1}, {NULL, 0, NULL, 0},
    };
    int option;
    while ((option = getopt_long(argc, argv, "", table, NULL)) != -1) {
        switch (option) {
        case 0: break;
        case 'x': extension = optarg; break;
        case 'j': journal = optarg; break;
        case 's': synchronous = optarg; break;
        case 't': threads = atoi(optarg); break;
        case 'b': become = atol(optarg); break;
        case 'c': commits = atol(optarg); break;
        default: exit(2);
        }
    }
    if (optind + 1 != argc || threads < 1 || threads > 64)
        fail("usage", "sqlite-commits [OPTION...] DIR");
    dir = argv[optind];
}

int main(int argc, char **argv) {
    pthread_t ids[64];
    struct timespec start, end;
    options(argc, argv);
    if (extension != NULL)
        load();
    if (become != 0) {
        /* The other user goes on with the same files: SQLite gives journals the permissions of the database. */
        char name[4096];
        snprintf(name, sizeof name, "%s/one.db", dir);
        enter_stream();
        umask(0);
        close(open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    }
    if (streams)
        enter_stream();
    common = connect();
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (long i = 0; i < threads; i++)
        if (pthread_create(&ids[i], NULL, work, (void *)i) != 0)
            fail("a thread", "cannot start");
    for (int i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    if (shared) {
        run(common, "COMMIT");
        acknowledge(threads - 1, commits / threads);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    if (quiet) {
        double seconds = (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) / 1e9;
        printf("%.0f commits a second\n", (double)(commits / threads * threads) / seconds);
    }
    sqlite3_close(common);
    return 0;
}
