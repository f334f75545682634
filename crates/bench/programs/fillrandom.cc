// Puts N keys of 1000 bytes in random order, as LevelDB's benchmark does. usage: fillrandom DB N
// With FILLRANDOM_NO_SYNC set LevelDB's own syncs do nothing: the functions below stand before those of the C library.
#include <leveldb/db.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

static bool no_sync() {
  static const bool set = std::getenv("FILLRANDOM_NO_SYNC") != nullptr;
  return set;
}
extern "C" int fsync(int fd) { return no_sync() ? 0 : static_cast<int>(syscall(SYS_fsync, fd)); }
extern "C" int fdatasync(int fd) { return no_sync() ? 0 : static_cast<int>(syscall(SYS_fdatasync, fd)); }

static void must(const leveldb::Status& s) {
  if (!s.ok()) { std::fprintf(stderr, "%s\n", s.ToString().c_str()); std::exit(1); }
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const long keys = std::atol(argv[2]);
  leveldb::Options options;
  options.create_if_missing = true;
  leveldb::DB* db = nullptr;
  must(leveldb::DB::Open(options, argv[1], &db));
  uint64_t state = 1;
  std::string value(1000, ' ');
  for (long i = 0; i < keys; i++) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    char key[24];
    std::snprintf(key, sizeof key, "%016llu", static_cast<unsigned long long>((state >> 33) % static_cast<uint64_t>(keys)));
    // Half of it can be compressed, as in LevelDB's benchmark.
    for (size_t at = 0; at < value.size() / 2; at++) value[at] = static_cast<char>(state >> (at % 57));
    must(db->Put(leveldb::WriteOptions(), key, value));
  }
  delete db;
  return 0;
}
