/* ccfs.h - streams of ccfs, a file system that keeps every application's updates in order.
 *
 * A stream is a sequence of updates of which a crash keeps a prefix: a later update never survives without the earlier ones.
 * The calling thread is in one stream per volume; threads and processes that it starts inherit it. Who never chose is in the
 * default stream.
 *
 * All functions that return int return 0, or -1 with errno set; those that return a stream return it, or 0 with errno set. On
 * other file systems they fail with ENOTSUP and change nothing, so that a program can call them unconditionally.
 *
 * The forms without suffix work on the volume of the directory that the environment variable CCFS_MOUNT names (ignored in
 * set-user-id programs), else on that of the current directory. The _fd forms take any open file or directory of the volume, the
 * _path forms any path; one that does not exist stands for the directory that would hold it.
 *
 * Errors of all functions: ENOTSUP it is not a ccfs volume; EIO the volume was stopped; ENOTCONN its daemon died; those of open(2)
 * for the path.
 *
 * Link with -lccfs (pkg-config ccfs). Safe in any number of threads.
 */
#ifndef CCFS_H
#define CCFS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uint64_t ccfs_stream_t;

/* The stream of threads that never entered one. */
#define CCFS_STREAM_DEFAULT ((ccfs_stream_t)1)
/* For setstream: where the mount's policy puts the thread, as if it had never entered a stream. */
#define CCFS_STREAM_POLICY (~(ccfs_stream_t)0)
/* Flag of a stream: fsync, fdatasync, sync and O_SYNC of its threads return at once. Order stays; streamsync works. */
#define CCFS_IGNORE_FSYNC 1u
/* For setstream: the stream's flags stay as they are. */
#define CCFS_KEEP_FLAGS 0x80000000u
/* From getstream's long forms, beside the stream's flags: the thread, or who started it, chose the stream; without it the mount's
 * policy put the thread there. setstream takes no notice of it. */
#define CCFS_CHOSEN 0x40000000u

/* Moves the calling thread into a stream; CCFS_STREAM_DEFAULT leads back to the default stream. An id that nobody uses becomes a
 * stream of the caller's user. Flags: 0, CCFS_IGNORE_FSYNC or CCFS_KEEP_FLAGS; they are the stream's, not the thread's.
 * Errors: EPERM the stream belongs to another user (root may enter it with its flags as they are); EINVAL unknown flags, or flags
 * for the default stream; ENOSPC this user has too many streams; EBUSY the thread is in an atomic group; ESRCH the daemon cannot
 * see the thread. */
int setstream(ccfs_stream_t stream, unsigned int flags);
int ccfs_setstream_fd(int fd, ccfs_stream_t stream, unsigned int flags);
int ccfs_setstream_path(const char *path, ccfs_stream_t stream, unsigned int flags);

/* Returns the stream of the calling thread. The long forms also store its flags where flags points, unless that is NULL. To leave a
 * thread as it was found, keep both: setstream(flags & CCFS_CHOSEN ? stream : CCFS_STREAM_POLICY, CCFS_KEEP_FLAGS). */
ccfs_stream_t getstream(void);
ccfs_stream_t ccfs_getstream_fd(int fd, unsigned int *flags);
ccfs_stream_t ccfs_getstream_path(const char *path, unsigned int *flags);

/* Makes a stream that nobody uses, with these flags, and returns it. The caller does not enter it.
 * Errors: EINVAL unknown flags; ENOSPC this user has too many streams. */
ccfs_stream_t newstream(unsigned int flags);
ccfs_stream_t ccfs_newstream_fd(int fd, unsigned int flags);
ccfs_stream_t ccfs_newstream_path(const char *path, unsigned int flags);

/* Returns when everything that the stream did before the call is durable; 0 stands for the caller's stream. CCFS_IGNORE_FSYNC does
 * not concern this call. A stream that has ended is no error. Errors: EPERM the stream belongs to another user. */
int streamsync(void);
int ccfs_streamsync_fd(int fd, ccfs_stream_t stream);
int ccfs_streamsync_path(const char *path, ccfs_stream_t stream);

/* syncfs(2) that works on every kernel: returns when everything that anybody did on the volume of fd before the call is durable. On
 * plain FUSE mounts, and before Linux 6.18 without loop devices, ccfs is not told of syncfs(2) and sync(2): they succeed and make nothing
 * durable there, nor does this call what was stored through shared mappings without msync(2). */
int ccfs_syncfs(int fd);

/* Order without durability: what fsync(fd) would make durable is never missing after a crash in which something survives that the
 * caller's stream does after this call. Nothing is durable when it returns, and it waits for no device. A later fsync makes durable
 * all that the barriers before it ordered. CCFS_IGNORE_FSYNC does not concern it. On ccfs both calls are the same; fdatabarrier
 * stands where fdatasync would. What was stored through shared mappings of the file counts. ENOTSUP elsewhere: fsync instead orders
 * as well. */
int fbarrier(int fd);
int fdatabarrier(int fd);

/* An atomic group: what the calling thread, and threads and processes that it starts from then on, change on the volume between begin
 * and commit survives a crash whole or not at all, over any number of files and directories. Others see it at once. */
typedef uint64_t ccfs_group_t;
/* For commit: the group gets its place in the order of the stream in which it was begun, and becomes durable with that stream's next
 * sync; without it, all of it is durable when the call returns. */
#define CCFS_ORDERED 1u

/* Opens a group and moves the calling thread into it; the long form returns its handle, which nobody can guess. When it is open for
 * timeout_ms milliseconds (0: no limit), or when its last member has ended, it is taken back.
 * Errors: EBUSY the thread is in a group; EAGAIN too many groups are open, or the kernel has not been told of too many names that the
 * user's earlier groups had changed; EROFS; ESRCH the daemon cannot see the thread. */
int cfs_begin(void);
ccfs_group_t ccfs_begin_fd(int fd, uint64_t timeout_ms);

/* Commits a group (0: the caller's) and leaves it.
 * Errors: ECANCELED it was taken back (ccfs_taken_back says why), and nothing of it is there; ENOENT there is no such group; EALREADY it has been committed; EPERM another user's; EDQUOT it stored more through a mapping than a group can hold,
 * and was taken back. */
int cfs_commit(void);
int ccfs_commit_fd(int fd, ccfs_group_t group, unsigned int flags);

/* Takes a group (0: the caller's) back and leaves it: everything is as it was before. One that was taken back already is no error.
 * Errors: ENOENT, EALREADY and EPERM as above. */
int cfs_abort(void);
int ccfs_abort_fd(int fd, ccfs_group_t group);

/* Why a group was taken back: one line for people, of the calling thread's last abort, or last commit that failed with ECANCELED or
 * EDQUOT; also which limit it had exceeded, if it had. It lives until the thread's next commit or abort. NULL: it is not known. */
const char *ccfs_taken_back(void);

/* Moves the calling thread into the group of a handle, if it is the same user's.
 * Errors: EBUSY the thread is in a group; EINVAL group is 0; ENOENT, EALREADY and EPERM as above. */
int ccfs_enter_fd(int fd, ccfs_group_t group);

/* Opens a file as open(2) does, for writing, and O_ATOMIC: what the disk holds of it is at every moment its content of the last
 * successful fsync, fdatasync, msync or ccfs_syncv, whatever crashes, the program too. What was not synced when the last descriptor of
 * this open and its mappings are gone is taken back. Others see unsynced changes at once; what they change of the content joins them.
 * Names, mode, owner and attributes are not content. ccfs_make_atomic does it to a file that is open for writing, and makes durable
 * what was written to it before. O_TRUNC is content: it counts from the first sync on. An open of the file that is just being closed is
 * waited for; others may see what a close takes back for a moment after it.
 * Errors: ENOTSUP not such a mount; EBUSY the file is open O_ATOMIC, or an open atomic group has changed it; EBADF not open
 * for writing; later, in writes, EDQUOT so much unsynced content cannot be held: sync, or close. */
int ccfs_open_atomic(const char *path, int flags, unsigned int mode);
int ccfs_make_atomic(int fd);

/* Makes the changes of several files of one volume that are open O_ATOMIC durable together: after a crash all of them are there, or
 * none. What was stored through shared mappings of the files is among the changes. At most 256 files.
 * Errors: EINVAL no file, too many, one that is not open O_ATOMIC, or of another volume; EDQUOT together they are too large, nothing
 * was done; EBUSY the caller's own atomic group has changed the name or mode of one. */
int ccfs_syncv(const int *fds, int count);

/* Direct calls: file calls that do not go through the kernel, by memory that is shared with the daemon of a volume that is mounted with
 * -o direct=on. Elsewhere, and for what the kernel knows already, they go through the mount with the same results. Names are single
 * names, no paths, and not "." or ".."; a symbolic link is not followed. Every object keeps the session alive, so the order of closing does not
 * matter; each is closed once, by its own function, for which NULL is nothing. A NULL for an object, a name or a result is EFAULT.
 * Objects can be used by any number of threads. After a fork the child's calls on what is held by the session fail with EBADF; it
 * begins its own. */
typedef struct ccfs_session ccfs_session;
typedef struct ccfs_dir ccfs_dir;
typedef struct ccfs_file ccfs_file;

/* Begins a session on a directory, with the user, groups, capabilities and umask that the process has now. The descriptor can be
 * closed then. Where no session can be had the calls work through the mount: is_direct returns 0, and why_not the errno that
 * says why (ENOTSUP another file system, a mount without direct=on, or a process that is confined or cannot be seen; ENOSPC there are
 * too many), else 0. drain waits until all that was accepted is carried out, which nothing needs. begin_in_stream: what goes through the session
 * belongs to the stream in which this thread is now, whichever thread calls, and wherever it is then; it cannot be had in an atomic
 * group. Errors: those of open(2). */
ccfs_session *ccfs_session_begin(int dirfd);
ccfs_session *ccfs_session_begin_in_stream(int dirfd);
int ccfs_session_is_direct(const ccfs_session *session);
int ccfs_session_why_not(const ccfs_session *session);
int ccfs_session_drain(ccfs_session *session);
void ccfs_session_end(ccfs_session *session);

/* Directories: the session's own, one of its volume by a descriptor, one that is there, and a new one. NULL with errno set as by open(2)
 * and mkdir(2). */
ccfs_dir *ccfs_session_root(ccfs_session *session);
ccfs_dir *ccfs_session_dir(ccfs_session *session, int dirfd);
ccfs_dir *ccfs_dir_open(ccfs_dir *dir, const char *name);
ccfs_dir *ccfs_dir_make(ccfs_dir *dir, const char *name, mode_t mode);
void ccfs_dir_close(ccfs_dir *dir);

/* As unlink(2), rmdir(2), rename(2) (to a directory of the same session) and fstatat(2), with their errors. For stat st_dev is that of the
 * session's directory and st_rdev 0. */
int ccfs_dir_unlink(ccfs_dir *dir, const char *name);
int ccfs_dir_rmdir(ccfs_dir *dir, const char *name);
int ccfs_dir_rename(ccfs_dir *dir, const char *name, ccfs_dir *to, const char *new_name);
int ccfs_dir_stat(ccfs_dir *dir, const char *name, struct stat *st);

/* Calls each for every name but "." and "..", in no order, with its inode number and type (DT_* of dirent.h), until each returns
 * other than 0, which the call returns then. each may make any call. */
int ccfs_dir_list(ccfs_dir *dir, int (*each)(void *context, const char *name, uint64_t ino, unsigned char type), void *context);

/* All of the session's changes that come before are durable, with what they depend on. Errors: as fsync(2). */
int ccfs_dir_sync(ccfs_dir *dir);

/* Opens a file with these flags of open(2): O_RDONLY, O_WRONLY or O_RDWR, O_CREAT, O_EXCL with it, O_TRUNC for writing.
 * Errors: EINVAL other flags; ELOOP a symbolic link; EISDIR; EOPNOTSUPP no regular file; those of open(2). */
ccfs_file *ccfs_file_open(ccfs_dir *dir, const char *name, int flags, mode_t mode);
void ccfs_file_close(ccfs_file *file);

/* Opens a file that is there, likewise, with its attributes and up to *length bytes from its beginning (at most 128 KiB), in one call where it is
 * held; *length becomes how many there are. Errors: EBADF without reading; those of open. */
ccfs_file *ccfs_file_open_and_read(ccfs_dir *dir, const char *name, int flags, struct stat *st, void *data, size_t *length);

/* Opens a file, likewise, that is to be used without the kernel by one program and locked by others: the kernel is asked to forget it.
 * descriptor opens it through the mount, as it is open, for fcntl(2)'s locks. As soon as anything else is done with the file by
 * anybody, or once the kernel would be faster, all calls on it fail with ESTALE, and it is used by a descriptor. In a directory that the kernel
 * knows. Errors: EBUSY others have it open, its directory is held, or another session posts in the stream; EINVAL for descriptor, it was
 * not taken; those of open(2). */
ccfs_file *ccfs_file_take(ccfs_dir *dir, const char *name, int flags, mode_t mode);
int ccfs_file_descriptor(ccfs_file *file);

/* As pread(2) and pwrite(2): there is no position. A write writes all or fails; append writes at the file's end, in one piece up to 128
 * KiB. Errors: EBADF it is not open for that; EFBIG; EINVAL a negative offset or size,
 * or truncating what is not open for writing. */
ssize_t ccfs_file_read(ccfs_file *file, void *data, size_t length, off_t offset);
ssize_t ccfs_file_write(ccfs_file *file, const void *data, size_t length, off_t offset);
ssize_t ccfs_file_append(ccfs_file *file, const void *data, size_t length);
int ccfs_file_truncate(ccfs_file *file, off_t size);

/* As fstat(2), fchmod(2), fsync(2) and fbarrier. is_direct returns 1 where the file's calls do not go through the kernel, else 0: as
 * soon as somebody looks the file up through the mount it is used through the mount. */
int ccfs_file_stat(ccfs_file *file, struct stat *st);
int ccfs_file_chmod(ccfs_file *file, mode_t mode);
int ccfs_file_sync(ccfs_file *file);
int ccfs_file_barrier(ccfs_file *file);
int ccfs_file_is_direct(const ccfs_file *file);

/* Returns 1 on a mounted ccfs volume, 0 elsewhere, -1 with errno set where it cannot be told. */
int ccfs_is_supported(const char *path);
int ccfs_is_supported_fd(int fd);

/* The ioctls under the functions, for languages that reach them directly. version is CCFS_ABI_VERSION; for SET_STREAM, id 0 is the
 * policy's. Byte order is the machine's.
 * File systems that are not ccfs answer ENOTTY, ENOSYS or EOPNOTSUPP. */
#define CCFS_ABI_VERSION 1u
struct ccfs_stream_arg {
    uint32_t version;
    uint32_t flags;
    uint64_t id;
};
#define CCFS_IOC_SET_STREAM 0xc010cc80u
#define CCFS_IOC_GET_STREAM 0xc010cc81u
#define CCFS_IOC_NEW_STREAM 0xc010cc82u
#define CCFS_IOC_STREAM_SYNC 0xc010cc83u
/* Names of streams: 1 to 64 ASCII letters, digits and signs, no space; no number, and not "default". NAME_STREAM: id 0 is the caller's,
 * length 0 takes the name away. FIND_STREAM: id out. */
#define CCFS_STREAM_NAME_MAX 64
struct ccfs_stream_name_arg {
    uint32_t version;
    uint32_t length; /* of name, bytes */
    uint64_t id;
    char name[CCFS_STREAM_NAME_MAX];
};
#define CCFS_IOC_NAME_STREAM 0xc050cc86u
#define CCFS_IOC_FIND_STREAM 0xc050cc87u
struct ccfs_sync_volume_arg {
    uint32_t version;
    uint32_t reserved; /* 0 */
};
#define CCFS_IOC_SYNC_VOLUME 0xc008cca3u
/* On the file that the barrier is about. What was stored through shared mappings has to be written back first. */
#define CCFS_BARRIER_DATA 1u
struct ccfs_barrier_arg {
    uint32_t version;
    uint32_t flags; /* 0 or CCFS_BARRIER_DATA */
};
#define CCFS_IOC_BARRIER 0xc008cca0u
struct ccfs_group_arg {
    uint32_t version;
    uint32_t flags; /* COMMIT: 0 or CCFS_ORDERED */
    uint64_t handle; /* out of BEGIN; 0: the caller's group */
    uint64_t timeout_ms; /* BEGIN */
};
#define CCFS_IOC_GROUP_BEGIN 0xc018cc8au
#define CCFS_IOC_GROUP_COMMIT 0xc018cc8bu
#define CCFS_IOC_GROUP_ABORT 0xc018cc8cu
#define CCFS_IOC_GROUP_ENTER 0xc018cc8du
/* As for the barrier: what was stored through shared mappings has to be written back first. */
#define CCFS_ATOMIC_OPEN 1u
struct ccfs_atomic_arg {
    uint32_t version;
    uint32_t flags; /* 0 or CCFS_ATOMIC_OPEN */
    uint64_t token; /* out: for SYNCV */
    uint64_t reserved;
};
struct ccfs_syncv_arg {
    uint32_t version;
    uint32_t count;
    uint64_t tokens[256];
};
#define CCFS_IOC_ATOMIC 0xc018cca1u
#define CCFS_IOC_SYNCV 0xc808cca2u

#ifdef __cplusplus
}
#endif

#endif
