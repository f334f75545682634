/* Puts N rows of 120 bytes into LMDB, each a transaction. usage: lmdb-puts DIR N
 * With LMDB_PUTS_NO_SYNC set LMDB makes no syncs. */
#include <lmdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void must(int code, const char *what) {
    if (code) { fprintf(stderr, "%s: %s\n", what, mdb_strerror(code)); exit(1); }
}

int main(int argc, char **argv) {
    MDB_env *env; MDB_txn *txn; MDB_dbi dbi; char row[120];
    if (argc != 3) return 2;
    const long rows = atol(argv[2]);
    mkdir(argv[1], 0755);
    must(mdb_env_create(&env), "create");
    must(mdb_env_set_mapsize(env, 256 << 20), "map size");
    must(mdb_env_open(env, argv[1], getenv("LMDB_PUTS_NO_SYNC") ? MDB_NOSYNC : 0, 0644), "open");
    for (long n = 1; n <= rows; n++) {
        char key[24];
        memset(row, '0' + n % 10, sizeof row);
        MDB_val k = { (size_t)snprintf(key, sizeof key, "%016ld", n), key }, v = { sizeof row, row };
        must(mdb_txn_begin(env, NULL, 0, &txn), "begin");
        must(mdb_dbi_open(txn, NULL, 0, &dbi), "database");
        must(mdb_put(txn, dbi, &k, &v, 0), "put");
        must(mdb_txn_commit(txn), "commit");
    }
    mdb_env_close(env);
    return 0;
}
