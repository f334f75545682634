//! Names of system calls of x86-64: those that concern files, and those that end a file's direct use.

const NAMES: &[(u16, &str)] = &[
    (0, "read"),
    (1, "write"),
    (2, "open"),
    (3, "close"),
    (4, "stat"),
    (5, "fstat"),
    (6, "lstat"),
    (7, "poll"),
    (8, "lseek"),
    (9, "mmap"),
    (16, "ioctl"),
    (17, "pread64"),
    (18, "pwrite64"),
    (19, "readv"),
    (20, "writev"),
    (21, "access"),
    (32, "dup"),
    (33, "dup2"),
    (40, "sendfile"),
    (72, "fcntl"),
    (73, "flock"),
    (74, "fsync"),
    (75, "fdatasync"),
    (76, "truncate"),
    (77, "ftruncate"),
    (78, "getdents"),
    (79, "getcwd"),
    (80, "chdir"),
    (81, "fchdir"),
    (82, "rename"),
    (83, "mkdir"),
    (84, "rmdir"),
    (85, "creat"),
    (86, "link"),
    (87, "unlink"),
    (88, "symlink"),
    (89, "readlink"),
    (90, "chmod"),
    (91, "fchmod"),
    (92, "chown"),
    (93, "fchown"),
    (94, "lchown"),
    (132, "utime"),
    (133, "mknod"),
    (137, "statfs"),
    (138, "fstatfs"),
    (162, "sync"),
    (187, "readahead"),
    (188, "setxattr"),
    (189, "lsetxattr"),
    (190, "fsetxattr"),
    (191, "getxattr"),
    (192, "lgetxattr"),
    (193, "fgetxattr"),
    (194, "listxattr"),
    (195, "llistxattr"),
    (196, "flistxattr"),
    (197, "removexattr"),
    (198, "lremovexattr"),
    (199, "fremovexattr"),
    (217, "getdents64"),
    (221, "fadvise64"),
    (235, "utimes"),
    (257, "openat"),
    (258, "mkdirat"),
    (259, "mknodat"),
    (260, "fchownat"),
    (261, "futimesat"),
    (262, "newfstatat"),
    (263, "unlinkat"),
    (264, "renameat"),
    (265, "linkat"),
    (266, "symlinkat"),
    (267, "readlinkat"),
    (268, "fchmodat"),
    (269, "faccessat"),
    (275, "splice"),
    (277, "sync_file_range"),
    (280, "utimensat"),
    (285, "fallocate"),
    (292, "dup3"),
    (295, "preadv"),
    (296, "pwritev"),
    (306, "syncfs"),
    (316, "renameat2"),
    (326, "copy_file_range"),
    (327, "preadv2"),
    (328, "pwritev2"),
    (332, "statx"),
    (436, "close_range"),
    (437, "openat2"),
    (439, "faccessat2"),
    (452, "fchmodat2"),
];

/// The name of a system call, if it is one of those.
pub fn name(number: usize) -> Option<&'static str> {
    let at = NAMES.binary_search_by_key(&number, |(n, _)| usize::from(*n));
    at.ok().map(|at| NAMES[at].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_by_number() {
        assert!(NAMES.is_sorted_by(|a, b| a.0 < b.0));
        for (number, known) in [(0, "read"), (257, "openat"), (452, "fchmodat2")] {
            assert_eq!(name(number), Some(known));
        }
        assert_eq!(name(511), None);
    }
}
