/* LMDB: transactions of three puts, each marked after its commit.
 * Consistent: the environment opens, transactions are whole and a prefix, it takes another one, and none that was answered for is lost (exit code 3). */
#include <lmdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PER = 3, SETUP = 4, ALL = 24 };

static void must(int code, const char *what) {
    if (code) { printf("error: %s: %s\n", what, mdb_strerror(code)); exit(1); }
}

static void mark(int i) {
    char command[4096];
    const char *program = getenv("CCFS");
    if (!getenv("CCFS_CRASH_MARK") || !program) return;
    snprintf(command, sizeof command, "%s crash mark 'transaction %d'", program, i);
    if (system(command)) exit(2);
}

static void fill(char *buf, size_t *len, int i, int j) {
    *len = 200 + (size_t)(i * 131 + j * 17) % 1500;
    memset(buf, 'a' + (i + j) % 26, *len);
}

static void put(MDB_env *env, int i) {
    MDB_txn *txn; MDB_dbi dbi; char name[32], buf[2048]; size_t len;
    must(mdb_txn_begin(env, NULL, 0, &txn), "begin");
    must(mdb_dbi_open(txn, NULL, 0, &dbi), "database");
    for (int j = 0; j < PER; j++) {
        fill(buf, &len, i, j);
        MDB_val k = { (size_t)snprintf(name, sizeof name, "%05d-%d", i, j), name }, v = { len, buf };
        must(mdb_put(txn, dbi, &k, &v, 0), "put");
    }
    must(mdb_txn_commit(txn), "commit");
}

static int check(MDB_env *env, const char *marks) {
    int answered = SETUP - 1, there = 0, n, i, j;
    char line[256], name[32], buf[2048]; size_t len;
    FILE *f = fopen(marks, "r");
    while (f && fgets(line, sizeof line, f)) if (sscanf(line, "transaction %d", &n) == 1) answered = n;
    MDB_txn *txn; MDB_dbi dbi;
    must(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn), "begin");
    must(mdb_dbi_open(txn, NULL, 0, &dbi), "database");
    for (i = 0; i < ALL; i++) for (j = 0; j < PER; j++) {
        MDB_val k = { (size_t)snprintf(name, sizeof name, "%05d-%d", i, j), name }, v;
        int code = mdb_get(txn, dbi, &k, &v);
        if (code == MDB_NOTFOUND) { if (j > 0 && there == i * PER + j) { puts("error: a transaction is there in part"); return 1; } continue; }
        must(code, "get");
        if (there != i * PER + j) { puts("error: a transaction is lost and a later one is there"); return 1; }
        fill(buf, &len, i, j);
        if (v.mv_size != len || memcmp(v.mv_data, buf, len)) { puts("error: a wrong value"); return 1; }
        there++;
    }
    mdb_txn_abort(txn);
    put(env, ALL);
    if (there < (answered + 1) * PER) { puts("error: a transaction that was answered for is lost"); return 3; }
    return 0;
}

int main(int argc, char **argv) {
    MDB_env *env; int code = 0;
    if (argc < 3) return 2;
    mkdir(argv[2], 0755);
    must(mdb_env_create(&env), "create");
    must(mdb_env_set_mapsize(env, 8 << 20), "map size");
    must(mdb_env_open(env, argv[2], 0, 0644), "open");
    if (!strcmp(argv[1], "setup")) for (int i = 0; i < SETUP; i++) put(env, i);
    if (!strcmp(argv[1], "work")) for (int i = SETUP; i < ALL; i++) { put(env, i); mark(i); }
    if (!strcmp(argv[1], "check")) code = check(env, argc > 3 ? argv[3] : "/dev/null");
    mdb_env_close(env);
    return code;
}
