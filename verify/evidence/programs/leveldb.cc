// LevelDB: batches of two keys each, every twentieth synced (with `work db synced` each of them), and then marked.
// Consistent: the database opens, batches are whole and a prefix of what was written, it takes another one, and no synced batch is lost (exit code 3).
#include <leveldb/db.h>
#include <leveldb/write_batch.h>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

static void must(const leveldb::Status& s, const char* what) {
  if (!s.ok()) { std::printf("error: %s: %s\n", what, s.ToString().c_str()); std::exit(1); }
}
static std::string key(char kind, int i) { char b[32]; std::snprintf(b, sizeof b, "%c%06d", kind, i); return b; }
static std::string value(int i) { return std::to_string(i) + std::string(300 + i * 37 % 700, 'a' + i % 26); }
static void mark(int i) {
  const char* program = std::getenv("CCFS");
  if (!std::getenv("CCFS_CRASH_MARK") || !program) return;
  std::string command = std::string(program) + " crash mark 'batch " + std::to_string(i) + "'";
  if (std::system(command.c_str()) != 0) std::exit(2);
}
static void put(leveldb::DB* db, int i, bool sync) {
  leveldb::WriteOptions o; o.sync = sync;
  leveldb::WriteBatch b; b.Put(key('a', i), value(i)); b.Put(key('b', i), value(i));
  must(db->Write(o, &b), "write");
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  std::string verb = argv[1];
  leveldb::Options o; o.create_if_missing = verb == "setup"; o.write_buffer_size = 64 << 10;
  leveldb::DB* db;
  must(leveldb::DB::Open(o, argv[2], &db), "open");
  const int kSetup = 20, kAll = 240;
  if (verb == "setup") for (int i = 0; i < kSetup; i++) put(db, i, i == kSetup - 1);
  if (verb == "work") for (int i = kSetup; i < kAll; i++) { bool last = i % 20 == 19; put(db, i, last || argc > 3); if (last) mark(i); }
  if (verb == "check") {
    int synced = kSetup - 1;
    std::ifstream marks(argv[3]);
    for (std::string word; marks >> word >> synced;) {}
    if (synced < kSetup) synced = kSetup - 1;
    leveldb::ReadOptions r; r.verify_checksums = true;
    int there = 0;
    for (int i = 0; i < kAll; i++) {
      std::string a, b;
      leveldb::Status sa = db->Get(r, key('a', i), &a), sb = db->Get(r, key('b', i), &b);
      if (!sa.ok() && !sa.IsNotFound()) must(sa, "read");
      if (!sb.ok() && !sb.IsNotFound()) must(sb, "read");
      if (sa.ok() != sb.ok()) { std::printf("error: a batch is there in part\n"); return 1; }
      if (!sa.ok()) continue;
      if (a != value(i) || b != value(i)) { std::printf("error: a wrong value\n"); return 1; }
      if (there != i) { std::printf("error: a batch is lost and a later one is there\n"); return 1; }
      there = i + 1;
    }
    put(db, kAll, true);
    if (there <= synced) { std::printf("error: a synced batch is lost\n"); return 3; }
  }
  delete db;
  return 0;
}
