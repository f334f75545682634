/* The mesobenchmark of the AdvFS paper (FAST'15, Table 1): N transactions that insert a key with a value of 1 KB each, N that replace its value, N that
 * delete it, each durable before the next begins. A std::map that lives in an O_ATOMIC file, mapped, with msync for a transaction, beside
 * SQLite, LevelDB and Kyoto Cabinet. Prints milliseconds an operation: insert, replace, delete.
 *
 * usage: mesobenchmark map|plain-map|sqlite|leveldb|kyoto DIR [TRANSACTIONS]
 * plain-map is the map in a file that is not O_ATOMIC, for comparison: a crash can tear it.
 *
 * Build: see mesobenchmark.sh
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <string>
#include <vector>
#include <ccfs.h>
#include <leveldb/db.h>
#include <sqlite3.h>
#include <kchashdb.h>

namespace {

constexpr size_t kValue = 1024;

void must(bool ok, const char *what) {
    if (!ok) {
        perror(what);
        exit(1);
    }
}

struct Store {
    virtual ~Store() = default;
    virtual void put(uint32_t key, const std::string &value) = 0;
    virtual void remove(uint32_t key) = 0;
    /* Keys that are there, to see that nothing was left out. */
    virtual size_t count() = 0;
};

/* A heap in a file that is mapped at one address: the simplest that a std::map needs. Freed pieces of a size are used again. */
constexpr size_t kHeap = 64 << 20;
void *const kPlace = reinterpret_cast<void *>(0x600000000000);

struct Heap {
    uint64_t magic, used;
    struct Free {
        uint64_t size;
        void *first;
    } lists[8];
    alignas(16) char root[64];

    void *take(size_t size) {
        size = (size + 15) & ~size_t{15};
        for (Free &list : lists)
            if (list.size == size && list.first) {
                void *piece = list.first;
                memcpy(&list.first, piece, sizeof list.first);
                return piece;
            }
        must(used + size <= kHeap, "the heap is full");
        void *piece = reinterpret_cast<char *>(this) + used;
        used += size;
        return piece;
    }
    void give(void *piece, size_t size) {
        size = (size + 15) & ~size_t{15};
        for (Free &list : lists)
            if (list.size == size || list.size == 0) {
                list.size = size;
                memcpy(piece, &list.first, sizeof list.first);
                list.first = piece;
                return;
            }
    }
};

Heap *heap() { return static_cast<Heap *>(kPlace); }

template <typename T>
struct InFile {
    using value_type = T;
    InFile() = default;
    template <typename U>
    InFile(const InFile<U> &) {}
    T *allocate(size_t n) { return static_cast<T *>(heap()->take(n * sizeof(T))); }
    void deallocate(T *piece, size_t n) { heap()->give(piece, n * sizeof(T)); }
    bool operator==(const InFile &) const { return true; }
    bool operator!=(const InFile &) const { return false; }
};

struct Value {
    char bytes[kValue];
};
using Map = std::map<uint32_t, Value, std::less<uint32_t>, InFile<std::pair<const uint32_t, Value>>>;
static_assert(sizeof(Map) <= sizeof(Heap::root), "the root has room for the map");

struct MapStore : Store {
    int fd;
    Map *map;
    MapStore(const std::string &dir, bool atomic) {
        const std::string path = dir + "/map";
        fd = atomic ? ccfs_open_atomic(path.c_str(), O_RDWR | O_CREAT, 0644) : open(path.c_str(), O_RDWR | O_CREAT, 0644);
        must(fd >= 0, atomic ? "O_ATOMIC" : "open");
        must(ftruncate(fd, kHeap) == 0, "ftruncate");
        void *at = mmap(kPlace, kHeap, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
        must(at == kPlace, "mmap");
        if (heap()->magic == 0) {
            heap()->magic = 0x6d617020;
            heap()->used = (sizeof(Heap) + 4095) & ~size_t{4095};
            new (heap()->root) Map;
            sync();
        }
        map = reinterpret_cast<Map *>(heap()->root);
    }
    ~MapStore() override {
        munmap(kPlace, kHeap);
        close(fd);
    }
    void sync() { must(msync(kPlace, kHeap, MS_SYNC) == 0, "msync"); }
    void put(uint32_t key, const std::string &value) override {
        memcpy((*map)[key].bytes, value.data(), kValue);
        sync();
    }
    void remove(uint32_t key) override {
        map->erase(key);
        sync();
    }
    size_t count() override { return map->size(); }
};

struct Sqlite : Store {
    sqlite3 *db;
    sqlite3_stmt *put_, *remove_, *count_;
    sqlite3_stmt *prepare(const char *sql) {
        sqlite3_stmt *statement;
        must(sqlite3_prepare_v2(db, sql, -1, &statement, nullptr) == SQLITE_OK, sql);
        return statement;
    }
    explicit Sqlite(const std::string &dir) {
        must(sqlite3_open((dir + "/sqlite").c_str(), &db) == SQLITE_OK, "sqlite3_open");
        const char *sql = "PRAGMA synchronous=FULL; CREATE TABLE t (k INTEGER PRIMARY KEY, v BLOB)";
        must(sqlite3_exec(db, sql, nullptr, nullptr, nullptr) == SQLITE_OK, sql);
        put_ = prepare("INSERT OR REPLACE INTO t VALUES (?, ?)");
        remove_ = prepare("DELETE FROM t WHERE k = ?");
        count_ = prepare("SELECT count(*) FROM t");
    }
    ~Sqlite() override {
        for (sqlite3_stmt *statement : {put_, remove_, count_})
            sqlite3_finalize(statement);
        sqlite3_close(db);
    }
    void put(uint32_t key, const std::string &value) override {
        sqlite3_bind_int64(put_, 1, key);
        sqlite3_bind_blob(put_, 2, value.data(), kValue, SQLITE_STATIC);
        must(sqlite3_step(put_) == SQLITE_DONE, "insert");
        sqlite3_reset(put_);
    }
    void remove(uint32_t key) override {
        sqlite3_bind_int64(remove_, 1, key);
        must(sqlite3_step(remove_) == SQLITE_DONE, "delete");
        sqlite3_reset(remove_);
    }
    size_t count() override {
        must(sqlite3_step(count_) == SQLITE_ROW, "count");
        size_t n = sqlite3_column_int64(count_, 0);
        sqlite3_reset(count_);
        return n;
    }
};

struct LevelDb : Store {
    std::unique_ptr<leveldb::DB> db;
    leveldb::WriteOptions sync;
    explicit LevelDb(const std::string &dir) {
        leveldb::Options options;
        options.create_if_missing = true;
        leveldb::DB *opened;
        must(leveldb::DB::Open(options, dir + "/leveldb", &opened).ok(), "leveldb");
        db.reset(opened);
        sync.sync = true;
    }
    static leveldb::Slice slice(const uint32_t &key) { return {reinterpret_cast<const char *>(&key), sizeof key}; }
    void put(uint32_t key, const std::string &value) override { must(db->Put(sync, slice(key), value).ok(), "put"); }
    void remove(uint32_t key) override { must(db->Delete(sync, slice(key)).ok(), "delete"); }
    size_t count() override {
        size_t n = 0;
        std::unique_ptr<leveldb::Iterator> at(db->NewIterator(leveldb::ReadOptions()));
        for (at->SeekToFirst(); at->Valid(); at->Next())
            n++;
        return n;
    }
};

struct Kyoto : Store {
    kyotocabinet::HashDB db;
    explicit Kyoto(const std::string &dir) {
        using kyotocabinet::HashDB;
        must(db.open(dir + "/kyoto.kch", HashDB::OWRITER | HashDB::OCREATE), "kyoto");
    }
    void put(uint32_t key, const std::string &value) override {
        must(db.begin_transaction(true), "begin");
        must(db.set(reinterpret_cast<const char *>(&key), sizeof key, value.data(), kValue), "set");
        must(db.end_transaction(true), "end");
    }
    void remove(uint32_t key) override {
        must(db.begin_transaction(true), "begin");
        must(db.remove(reinterpret_cast<const char *>(&key), sizeof key), "remove");
        must(db.end_transaction(true), "end");
    }
    size_t count() override { return db.count(); }
};

std::unique_ptr<Store> open_store(const std::string &name, const std::string &dir) {
    if (name == "map" || name == "plain-map")
        return std::unique_ptr<Store>(new MapStore(dir, name == "map"));
    if (name == "sqlite")
        return std::unique_ptr<Store>(new Sqlite(dir));
    if (name == "leveldb")
        return std::unique_ptr<Store>(new LevelDb(dir));
    if (name == "kyoto")
        return std::unique_ptr<Store>(new Kyoto(dir));
    fprintf(stderr, "%s: no such store\n", name.c_str());
    exit(2);
}

}  // namespace

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: mesobenchmark map|plain-map|sqlite|leveldb|kyoto DIR [TRANSACTIONS]\n");
        return 2;
    }
    size_t transactions = argc > 3 ? strtoul(argv[3], nullptr, 10) : 3000;
    std::unique_ptr<Store> store = open_store(argv[1], argv[2]);
    std::mt19937 random(2015);
    std::vector<uint32_t> keys(transactions);
    std::iota(keys.begin(), keys.end(), 1);
    auto value = [&] {
        std::string bytes(kValue, 0);
        std::generate(bytes.begin(), bytes.end(), [&] { return char(random()); });
        return bytes;
    };
    auto phase = [&](size_t left, const std::function<void(uint32_t)> &step) {
        std::shuffle(keys.begin(), keys.end(), random);
        auto begin = std::chrono::steady_clock::now();
        for (uint32_t key : keys)
            step(key);
        std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
        must(store->count() == left, "the count of keys");
        printf(" %9.3f", took.count() / double(transactions));
    };
    printf("%-8s", argv[1]);
    phase(transactions, [&](uint32_t key) { store->put(key, value()); });
    phase(transactions, [&](uint32_t key) { store->put(key, value()); });
    phase(0, [&](uint32_t key) { store->remove(key); });
    printf("\n");
    return 0;
}
