// The program of ordered.c in C++, with a path instead of the current directory, and a scope for the stream.
//
// usage: ordered DIR ROUNDS
// Build: c++ ordered.cc $(pkg-config --cflags --libs ccfs)
#include <ccfs.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <system_error>

// The calling thread is in a stream of its own for as long as this object lives.
class Stream {
  public:
    explicit Stream(std::string path) : path_(std::move(path)), before_(ccfs_getstream_path(path_.c_str(), nullptr)) {
        if (before_ == 0) {
            if (errno != ENOTSUP) throw std::system_error(errno, std::generic_category(), path_);
            return;
        }
        own_ = ccfs_newstream_path(path_.c_str(), CCFS_IGNORE_FSYNC);
        if (own_ == 0 || ccfs_setstream_path(path_.c_str(), own_, CCFS_KEEP_FLAGS) != 0)
            throw std::system_error(errno, std::generic_category(), path_);
    }
    Stream(const Stream &) = delete;
    Stream &operator=(const Stream &) = delete;
    ~Stream() {
        if (own_ != 0) ccfs_setstream_path(path_.c_str(), before_, CCFS_KEEP_FLAGS);
    }
    bool ordered() const { return own_ != 0; }
    // Everything that the stream did is durable. On other file systems: all of the file system.
    void sync() {
        int result;
        if (ordered()) {
            result = ccfs_streamsync_path(path_.c_str(), own_);
        } else {
            int fd = open(path_.c_str(), O_RDONLY);
            result = fd < 0 ? -1 : syncfs(fd);
            if (fd >= 0) close(fd);
        }
        if (result != 0) throw std::system_error(errno, std::generic_category(), "sync");
    }

  private:
    std::string path_;
    ccfs_stream_t before_;
    ccfs_stream_t own_ = 0;
};

int main(int argc, char **argv) try {
    if (argc != 3) {
        std::cerr << "usage: ordered DIR ROUNDS\n";
        return 2;
    }
    const std::string dir = argv[1];
    Stream stream(dir);
    std::cout << (stream.ordered() ? "ordered" : "plain") << std::endl;
    std::ofstream log(dir + "/log", std::ios::app);
    log.exceptions(std::ios::failbit | std::ios::badbit);
    for (long round = 1, rounds = std::stol(argv[2]); round <= rounds; round++) {
        log << "record " << round << "\n" << std::flush;
        if (!stream.ordered()) stream.sync();
        std::ofstream state(dir + "/state.new");
        state.exceptions(std::ios::failbit | std::ios::badbit);
        state << round << "\n";
        state.close();
        if (!stream.ordered()) stream.sync();
        if (std::rename((dir + "/state.new").c_str(), (dir + "/state").c_str()) != 0)
            throw std::system_error(errno, std::generic_category(), "rename");
        if (round % 10 == 0) {
            stream.sync();
            std::cout << "synced " << round << std::endl;
        }
    }
} catch (const std::exception &e) {
    std::cerr << e.what() << "\n";
    return 1;
}
