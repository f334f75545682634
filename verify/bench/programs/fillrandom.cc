// Puts N keys of 1000 bytes in random order, as LevelDB's benchmark does. usage: fillrandom DB N
// With FILLRANDOM_NO_SYNC set no sync does anything: the functions below stand before those of the C library, and of what is preloaded (eatmydata).
#include <dlfcn.h>
#include <fcntl.h>
#include <leveldb/db.h>
#include <leveldb/env.h>
#include <unistd.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

static bool no_sync() {
  static const bool set = std::getenv("FILLRANDOM_NO_SYNC") != nullptr;
  return set;
}
static int next(const char* name, int fd) {
  using Call = int (*)(int);
  const Call call = reinterpret_cast<Call>(dlsym(RTLD_NEXT, name));
  return no_sync() ? 0 : call(fd);
}
extern "C" int fsync(int fd) { return next("fsync", fd); }
extern "C" int fdatasync(int fd) { return next("fdatasync", fd); }

static void must(const leveldb::Status& s) {
  if (!s.ok()) { std::fprintf(stderr, "%s\n", s.ToString().c_str()); std::exit(1); }
}

// LevelDB syncs its tables and its list of them, but no log. So that keys survive a power cut in the order in which they were put, also where the file system
// reorders, two syncs must be added, as the ccfs paper did for ext4: of a log before the next one is begun, and of the directory in which a log was made.
class Log : public leveldb::WritableFile {
 public:
  explicit Log(leveldb::WritableFile* file) : file_(file) {}
  ~Log() override {
    if (!closed_) must(file_->Sync());
    delete file_;
  }
  leveldb::Status Append(const leveldb::Slice& data) override { return file_->Append(data); }
  leveldb::Status Flush() override { return file_->Flush(); }
  leveldb::Status Sync() override { return file_->Sync(); }
  leveldb::Status Close() override {
    closed_ = true;
    const leveldb::Status synced = file_->Sync();
    const leveldb::Status closed = file_->Close();
    return synced.ok() ? closed : synced;
  }

 private:
  leveldb::WritableFile* file_;
  bool closed_ = false;
};

class Ordered : public leveldb::EnvWrapper {
 public:
  Ordered() : leveldb::EnvWrapper(leveldb::Env::Default()) {}
  leveldb::Status NewWritableFile(const std::string& name, leveldb::WritableFile** file) override {
    const leveldb::Status made = target()->NewWritableFile(name, file);
    if (!made.ok() || name.size() < 4 || name.compare(name.size() - 4, 4, ".log") != 0) return made;
    *file = new Log(*file);
    const int dir = open(name.substr(0, name.rfind('/')).c_str(), O_RDONLY | O_DIRECTORY);
    const bool synced = dir >= 0 && fsync(dir) == 0;
    if (dir >= 0) close(dir);
    return synced ? made : leveldb::Status::IOError(name, "the directory cannot be synced");
  }
};

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const long keys = std::atol(argv[2]);
  Ordered env;
  leveldb::Options options;
  options.env = &env;
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
