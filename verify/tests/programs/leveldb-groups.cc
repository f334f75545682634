// Transactions that put a key of 120 bytes into each of some LevelDBs. usage: leveldb-groups sync|group DIR DATABASES TRANSACTIONS
//   sync    every Put with WriteOptions::sync, one database after the other
//   group   none; an atomic group around the Puts of a transaction
#include <ccfs.h>
#include <leveldb/db.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

static void must(bool ok, const std::string &what) {
    if (!ok) {
        perror(what.c_str());
        exit(1);
    }
}

int main(int argc, char **argv) {
    if (argc != 5)
        return 2;
    const bool group = std::string(argv[1]) == "group";
    must(chdir(argv[2]) == 0, argv[2]);
    std::vector<std::unique_ptr<leveldb::DB>> all;
    for (int i = 0; i < atoi(argv[3]); i++) {
        leveldb::Options options;
        options.create_if_missing = true;
        leveldb::DB *db;
        const leveldb::Status opened = leveldb::DB::Open(options, "db" + std::to_string(i), &db);
        must(opened.ok(), opened.ToString());
        all.emplace_back(db);
    }
    leveldb::WriteOptions how;
    how.sync = !group;
    for (long n = atol(argv[4]); n > 0; n--) {
        if (group)
            must(cfs_begin() == 0, "cfs_begin");
        for (auto &db : all) {
            const leveldb::Status put = db->Put(how, "key" + std::to_string(n), std::string(120, char('a' + n % 26)));
            must(put.ok(), put.ToString());
        }
        if (group)
            must(cfs_commit() == 0, "cfs_commit");
    }
    return 0;
}
