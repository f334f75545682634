// Puts numbered keys. usage: leveldb-order sync|stream DB N, or: leveldb-order check DB ACKNOWLEDGED
//   sync    every Put with WriteOptions::sync
//   stream  none; a stream that ignores LevelDB's own syncs, and ccfs's streamsync every 100 keys ("synced N")
//   check   the keys that are there are 1, 2, 3 ... without a gap, and at least so many
#include <ccfs.h>
#include <fcntl.h>
#include <leveldb/db.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>

static void must(bool ok, const std::string &what) {
    if (!ok) {
        std::cerr << what << ": " << std::strerror(errno) << "\n";
        std::exit(1);
    }
}
static void must(const leveldb::Status &s) {
    if (!s.ok()) {
        std::cerr << s.ToString() << "\n";
        std::exit(1);
    }
}
static std::string key(long n) {
    char text[24];
    std::snprintf(text, sizeof text, "%012ld", n);
    return text;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    const std::string mode = argv[1], path = argv[2];
    const long count = std::atol(argv[3]);
    const std::string parent = path.substr(0, path.rfind('/'));
    const int dir = open(parent.c_str(), O_RDONLY | O_DIRECTORY);
    must(dir >= 0, parent);
    // The ioctls of ccfs.h directly: this program links nothing but LevelDB.
    ccfs_stream_arg arg = {CCFS_ABI_VERSION, CCFS_IGNORE_FSYNC, 0};
    if (mode == "stream") {
        must(ioctl(dir, CCFS_IOC_NEW_STREAM, &arg) == 0, "a new stream");
        arg.flags = CCFS_KEEP_FLAGS;
        must(ioctl(dir, CCFS_IOC_SET_STREAM, &arg) == 0, "entering it");
    }
    leveldb::Options options;
    options.create_if_missing = mode != "check";
    options.paranoid_checks = true;
    options.write_buffer_size = 64 << 10;  // many tables, many compactions
    leveldb::DB *db = nullptr;
    must(leveldb::DB::Open(options, path, &db));
    if (mode == "check") {
        leveldb::ReadOptions verify;
        verify.verify_checksums = true;
        leveldb::Iterator *it = db->NewIterator(verify);
        long n = 0;
        for (it->SeekToFirst(); it->Valid(); it->Next()) {
            n++;
            if (it->key().ToString() != key(n)) {
                std::cerr << "key " << n << " is missing\n";
                return 1;
            }
        }
        must(it->status());
        delete it;
        std::cout << "after the crash: keys 1 to " << n << ", " << count << " were acknowledged\n";
        return n >= count ? 0 : 1;
    }
    leveldb::WriteOptions write;
    write.sync = mode == "sync";
    for (long n = 1; n <= count; n++) {
        must(db->Put(write, key(n), std::string(static_cast<size_t>(n * 37 % 500), 'x')));
        if (mode == "stream" && n % 100 == 0) {
            ccfs_stream_arg own = {CCFS_ABI_VERSION, 0, 0};
            must(ioctl(dir, CCFS_IOC_STREAM_SYNC, &own) == 0, "streamsync");
            std::cout << "synced " << n << std::endl;
        }
    }
    delete db;
}
