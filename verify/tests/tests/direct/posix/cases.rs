//! The calls: a name, and lines for `actors::Call`. Slot 0 of directories is the case's own. With `~` somebody else makes the call, by system
//! calls, with slots of his own.

/// For everybody.
pub const CASES: &[(&str, &str)] = &[
    (
        "open",
        "open 0 a 0 rwc 0644; fstat 0; open 0 a 1 rwce 0644; open 0 none 1 r 0; open 0 none 1 rw 0;
         open 0 b 1 rc 0400; write 1 0 5 1; append 1 5 1; truncate 1 0; fstat 1; open 0 b 2 rw 0;
         open 0 c 1 wc 0222; read 1 0 5; write 1 0 5 1; fstat 1; open 0 c 2 r 0; open 0 c 2 rc 0666;
         open 0 d 1 rwc 07777; fstat 1; open 0 e 1 rwc 0; close 1; lstat 0 e;
         open 0 e 1 r 0; open 0 e 2 rwce 0666; open 0 a 2 rwc 0; fstat 2; list 0",
    ),
    (
        "truncating_opens",
        "open 0 a 0 rwc 0644; write 0 0 900 1; open 0 a 1 rwt 0; fstat 0; fstat 1; write 0 0 900 1;
         open 0 a 1 rwct 0644; fstat 1; write 0 0 900 1; open 0 a 1 rt 0; fstat 0; write 1 0 5 1;
         open 0 a 1 rct 0644; open 0 a 1 wt 0; open 0 new 1 rwct 0644; open 0 new2 1 rwcet 0644;
         write 1 0 9 3; open 0 new2 2 rwcet 0644; fstat 1; open 0 w 1 rc 0444;
         open 0 w 2 rt 0; fstat 1; open 0 empty 1 rwc 0644; open 0 empty 2 rwt 0; fstat 1",
    ),
    (
        "data",
        "open 0 a 0 rwc 0644; write 0 0 100 1; write 0 50 100 2; read 0 0 500; write 0 5000 10 3;
         fstat 0; read 0 100 6000; read 0 5005 50; read 0 5010 50; read 0 99999 1; read 0 0 0;
         write 0 0 0 1; write 0 9000 0 1; fstat 0; append 0 10 4; append 0 0 4; fstat 0;
         write 0 3 300000 5; read 0 0 400000; append 0 300000 6; read 0 299990 400000; fstat 0;
         open 0 a 1 r 0; write 1 0 0 1; append 1 0 1; sync 0; sync 1; close 0; fstat 1; fstat 0",
    ),
    (
        "truncate",
        "open 0 a 0 rwc 0644; write 0 0 5000 1; truncate 0 100; fstat 0; read 0 0 9000;
         truncate 0 100; truncate 0 8000; read 0 0 9000; truncate 0 0; fstat 0; truncate 0 0;
         append 0 10 2; open 0 a 1 r 0; truncate 1 0; truncate 1 99; fstat 1; truncate 0 1000000;
         read 0 999990 20; append 0 5 3; fstat 0",
    ),
    (
        "sizes",
        "open 0 a 0 rwc 0644; truncate 0 17592186040320; fstat 0; append 0 1 1; fstat 0;
         write 0 17592186040320 1 1; write 0 17592186040319 1 9; read 0 17592186040310 20;
         truncate 0 17592186040321; truncate 0 9223372036854775807; fstat 0; append 0 0 1;
         read 0 9223372036854775807 5; read 0 9223372036854775806 5; read 0 17592186040320 5;
         read 0 9223372036854775808 5; truncate 0 9223372036854775808; truncate 0 18446744073709551615;
         write 0 9223372036854775807 5 1; write 0 9223372036854775807 0 1; fstat 0;
         write 0 9223372036854775808 5 1; write 0 18446744073709551615 5 1; write 0 17592186040320 0 1;
         read 0 17592186040300 9; write 0 4000000000 5 1; open 0 b 1 rwc 0644; write 1 0 5 1; fstat 1;
         truncate 0 1; fstat 0; append 0 5 2; read 0 0 20",
    ),
    (
        "unlinked_open",
        "open 0 a 0 rwc 0644; write 0 0 100 1; open 0 a 1 r 0; unlink 0 a; fstat 0; read 0 0 200;
         write 0 50 100 2; append 0 50 3; truncate 0 190; read 1 0 300; chmod 0 0600; fstat 1;
         open 0 a 2 rw 0; open 0 a 2 rwce 0644; fstat 0; fstat 2; sync 0; lstat 0 a; unlink 0 a; list 0;
         fstat 2; close 2; close 0; read 1 0 300",
    ),
    (
        "unlink_rmdir",
        "unlink 0 none; rmdir 0 none; open 0 f 0 rwc 0644; mkdir 0 d 1 0755; unlink 0 d; rmdir 0 f;
         open 1 x 1 rwc 0644; rmdir 0 d; unlink 1 x; mkdir 1 sub 2 0755; rmdir 0 d; lstat 0 d;
         rmdir 1 sub; lstat 0 d; open 2 x 2 rwc 0644; mkdir 2 x 3 0755; list 2; lstat 2 x; unlink 2 x;
         rmdir 0 d; list 1; open 1 y 2 rwc 0644; open 1 y 2 r 0; lstat 1 y; opendir 1 y 3; opendir 0 d 3;
         rename 0 f 1 f; rename 1 y 0 y; unlink 1 y; rmdir 1 y; mkdir 0 d 1 0700; list 0; unlink 0 f;
         fstat 0; list 0",
    ),
    (
        "mkdir",
        "mkdir 0 a 1 0755; lstat 0 a; mkdir 0 a 2 0755; open 0 f 0 rwc 0644; mkdir 0 f 2 0755;
         mkdir 0 all 2 07777; lstat 0 all; mkdir 0 setgid 2 02750; mkdir 0 sticky 2 01777; mkdir 0 setuid 2 04755;
         lstat 0 setgid; lstat 0 sticky; lstat 0 setuid; mkdir 1 b 2 0700; mkdir 2 c 3 0700; lstat 1 b; list 0;
         opendir 0 f 3; opendir 0 none 3; opendir 0 a 3; list 3; open 0 a 1 r 0; open 0 a 1 rw 0;
         open 0 a 1 rwc 0644; open 0 a 1 rwce 0644; open 0 a 1 rt 0; open 0 a 1 rwt 0; lstat 3 none",
    ),
    (
        "rename_files",
        "open 0 a 0 rwc 0644; write 0 0 9 1; rename 0 a 0 b; lstat 0 a; lstat 0 b; rename 0 a 0 x; rename 0 b 0 b;
         open 0 c 1 rwc 0600; write 1 0 5 2; rename 0 b 0 c; lstat 0 c; fstat 1; read 1 0 9; write 1 0 20 7;
         fstat 0; mkdir 0 d 1 0755; rename 0 c 0 d; rename 0 d 0 c; rename 0 c 1 c; list 0; list 1; lstat 0 d;
         rename 1 c 0 c; rename 0 none 1 c; rename 1 none 0 c; rename 0 c 1 c2; rename 1 c2 1 c3; append 0 5 1;
         fstat 0; unlink 1 c3; fstat 0; open 1 e 2 rwc 0644; open 0 e 3 rwc 0600; rename 0 e 1 e; fstat 2; fstat 3;
         list 0; list 1",
    ),
    (
        "rename_directories",
        "mkdir 0 a 1 0755; mkdir 1 b 2 0755; mkdir 2 c 3 0755; mkdir 0 e 4 0755; rename 0 a 1 x; rename 0 a 2 x;
         rename 0 a 3 x; rename 1 b 0 a; rename 2 c 0 a; rename 0 a 0 a; open 4 full 0 rwc 0644; rename 0 a 0 e;
         rename 1 b 0 e; unlink 4 full; rename 0 a 0 e; lstat 0 a; lstat 0 e; list 4; open 4 gone 1 rwc 0644;
         list 1; list 2; lstat 1 b; rename 1 b 0 moved; lstat 0 e; lstat 0 moved; list 1; mkdir 2 more 4 0700;
         rename 2 more 1 more; list 2; open 4 inside 1 rwc 0644; rename 0 moved 4 deep; rename 0 e 4 deep;
         lstat 4 deep; list 4; opendir 4 deep 1; list 1; rename 0 none 0 e; rename 4 inside 0 e; rename 4 deep 4 inside",
    ),
    (
        "rename_links",
        "open 0 a 0 rwc 0644; write 0 0 9 1; open 0 other 1 rwc 0644; ~link 0 a 0 b; fstat 0; lstat 0 b; rename 0 a 0 b;
         list 0; fstat 0; mkdir 0 d 1 0755; rename 0 b 1 b; rename 0 a 1 b; list 0; list 1; rename 0 other 0 a; fstat 0;
         lstat 1 b; unlink 1 b; fstat 0; append 0 9 1; fstat 0",
    ),
    (
        "links_by_others",
        "open 0 a 0 rwc 0644; mkdir 0 d 1 0755; open 1 x 1 rwc 0644; ~opendir 0 d 1; ~link 1 x 0 y; write 1 0 9 1;
         fstat 1; lstat 0 y; open 0 y 2 rw 0; write 2 5 9 2; read 1 0 90; ~link 0 a 1 z; unlink 0 a; fstat 0; list 1;
         ~unlink 1 z; fstat 0; write 0 0 5 1; ~rename 1 x 0 moved; lstat 1 x; lstat 0 moved; append 1 9 3; lstat 0 y;
         ~mkdir 0 theirs 2 0755; opendir 0 theirs 2; open 2 in 3 rwc 0644; ~rmdir 0 theirs; ~open 0 f 1 rwc 0640;
         open 0 f 4 rw 0; ~write 1 0 9 1; read 4 0 20; ~truncate 1 3; fstat 4; write 4 0 9 1; ~read 1 0 20; ~unlink 0 f;
         fstat 4; ~append 1 5 5; read 4 0 99; list 0",
    ),
    (
        "names",
        "open 0 *255 0 rwc 0644; lstat 0 *255; open 0 *256 1 rwc 0644; open 0 *256 1 r 0; lstat 0 *256; unlink 0 *256;
         mkdir 0 *256 1 0755; rmdir 0 *256; opendir 0 *256 1; rename 0 *256 0 x; rename 0 *255 0 *256; rename 0 *255 0 y;
         open 0 %ff%fe%0a%20 0 rwc 0644; lstat 0 %ff%fe%0a%20; rename 0 %ff%fe%0a%20 0 %01%7f; unlink 0 %01%7f;
         open 0 ... 0 rwc 0644; open 0 %20 0 rwc 0644; open 0 %5c%2a%3f 0 rwc 0644; mkdir 0 *254 1 0755;
         open 1 *255 1 rwc 0644; mkdir 0 %c3%a4 2 0755; open 0 A 1 rwc 0644; open 0 a 1 rwce 0644; rename 0 ... 2 .x; list 0;
         list 1; list 2; unlink 1 *255; rmdir 0 *254; unlink 0 y; list 0",
    ),
    (
        "symlinks",
        "mkdir 0 d 1 0755; ~symlink 0 l; ~opendir 0 d 1; ~symlink 1 l; open 0 l 0 r 0; open 0 l 0 rw 0; open 0 l 0 rwc 0644;
         open 0 l 0 rwce 0644; open 0 l 0 rwt 0; opendir 0 l 2; mkdir 0 l 2 0755; lstat 0 l; rmdir 0 l; rename 0 l 0 m;
         rename 0 m 1 m; list 1; open 1 l 0 r 0; unlink 1 l; list 1; open 0 f 0 rwc 0644; rename 0 f 1 m; lstat 1 m;
         fstat 0; ~symlink 0 n; rename 0 n 1 m; fstat 0; rename 0 d 0 n; rename 1 m 0 d; list 0",
    ),
    (
        "special_files",
        "mkdir 0 d 1 0755; ~mknod 0 fifo fifo; ~mknod 0 socket socket; ~mknod 0 device device; open 0 fifo 0 r 0;
         open 0 fifo 0 w 0; open 0 fifo 0 rw 0; open 0 fifo 0 rwc 0644; open 0 fifo 0 rwce 0644; open 0 socket 0 r 0;
         open 0 socket 0 rw 0; open 0 device 0 r 0; opendir 0 fifo 2; mkdir 0 fifo 2 0755; rmdir 0 fifo; lstat 0 fifo;
         lstat 0 socket; lstat 0 device; list 0; rename 0 fifo 1 p; rename 0 socket 1 p; rename 0 device 0 c; list 1;
         unlink 1 p; unlink 0 c; open 0 fifo 0 rwt 0; list 0",
    ),
    (
        "chmod",
        "open 0 a 0 rwc 0644; chmod 0 0600; fstat 0; chmod 0 0600; chmod 0 07777; fstat 0; chmod 0 0644; fstat 0; open 0 a 1 r 0;
         chmod 1 0700; fstat 0; close 0; chmod 1 0444; fstat 1; open 0 a 2 w 0; open 0 a 2 rwc 0666; open 0 a 2 r 0; chmod 2 0640;
         open 0 a 2 rw 0; write 2 0 5 1; truncate 2 0; unlink 0 a; chmod 2 0600; fstat 1",
    ),
    (
        "attributes",
        "open 0 a 0 rwc 06755; fchown 0 4294967295 60100; fstat 0; chmod 0 06755; fstat 0; fchown 0 65534 4294967295; fstat 0;
         chmod 0 02644; fchown 0 4294967295 60100; fstat 0; chmod 0 07777;
         fchown 0 60002 60002; fstat 0; futimens 0 1000 2000; fstat 0; futimens 0 now 5; fstat 0; futimens 0 omit omit; fstat 0;
         futimens 0 7 omit; fstat 0; futimens 0 now now; fstat 0; futimens 0 4000000000 20000000000; fstat 0;
         mkdir 0 d 1 0755; dchmod 1 02775; lstat 0 d; dchown 1 4294967295 60100; lstat 0 d; dutimens 1 9 9; lstat 0 d;
         open 1 x 1 rwc 0644; lstat 0 d; fstat 1; dchmod 1 0500; open 1 y 2 rwc 0644; unlink 1 x; list 1; unlink 1 x;
         dchmod 1 0700; unlink 1 x; list 1; dchmod 1 0300; open 1 z 2 rwc 0600; dchmod 1 0700; unlink 1 z;
         dchown 1 4294967295 4294967295; lstat 0 d; unlink 0 a; futimens 0 3 3; chmod 0 0600; fstat 0",
    ),
    (
        "links",
        "open 0 a 0 rwc 0644; write 0 0 9 1; link 0 a 0 b; fstat 0; link 0 a 0 b; link 0 none 0 c; mkdir 0 d 1 0755; link 0 b 1 a;
         fstat 0; rename 0 a 0 b; list 0; rename 0 a 1 a; list 0; list 1; renamex 0 a 1 a; renamex 0 a 0 a; renamex 0 none 1 a;
         open 0 a 1 rwce 0644; unlink 0 a; fstat 0; open 0 a 1 rwce 0644; rename 0 a 0 b; list 0; fstat 0; fstat 1; lstat 1 a;
         link 0 d 0 e; link 1 a 0 d; link 1 a 1 *256; symlink 0 s; readlink 0 s; readlink 0 b; readlink 0 d; readlink 0 none;
         symlink 0 s; symlink 0 b; symlink 0 d; symlink 1 *256; link 0 s 1 s; readlink 1 s; lstat 1 s; open 0 s 2 r 0; opendir 0 s 2;
         rename 0 s 1 s; list 0; list 1; unlink 1 s; renamex 0 b 1 b; renamex 0 d 1 x; renamex 0 d 1 b; list 1; unlink 1 a;
         fstat 0; read 0 0 20; mkdir 0 n1 3 0755; readlink 0 n1; rmdir 0 n1; readlink 0 s; unlink 0 s; list 0",
    ),
    (
        "listed",
        "mkdir 0 d 1 0755; open 1 a 0 rwc 0644; open 1 b 0 rwc 0644; symlink 1 l; mkdir 1 s 2 0755; close 0; list 1; unlink 1 a;
         unlink 1 a; list 1; unlink 1 l; unlink 1 s; rmdir 1 b; open 1 a 0 rwce 0600; open 1 b 0 rwce 0600; rename 1 b 1 a; list 1;
         unlink 1 b; rmdir 1 s; ~opendir 0 d 1; ~open 1 n 0 rwc 0644; list 1; unlink 1 n; ~open 1 n 0 rwce 0644; unlink 1 n; list 1",
    ),
    (
        "suid_clearing",
        "open 0 a 0 rwc 06755; fstat 0; write 0 0 5 1; fstat 0; chmod 0 06755; append 0 5 1; fstat 0; chmod 0 06755;
         truncate 0 3; fstat 0; chmod 0 02644; write 0 0 5 1; fstat 0; chmod 0 06755; truncate 0 5; fstat 0; chmod 0 04755;
         write 0 0 0 1; append 0 0 1; fstat 0; open 0 a 1 rwt 0; fstat 1; chmod 0 06777; open 0 a 1 rwt 0; fstat 1;
         chmod 0 02755; read 0 0 5; sync 0; rename 0 a 0 b; fstat 0; write 1 0 9 1; fstat 0",
    ),
    (
        "attributes_by_others",
        "open 0 a 0 rwc 0644; write 0 0 9 1; ~utimens 0 a; fstat 0; write 0 0 5 1; ~lchmod 0 a 04711; fstat 0; append 0 5 1;
         fstat 0; ~setxattr 0 a user.k v; fstat 0; truncate 0 3; chmod 0 0600; mkdir 0 d 1 0755; open 1 x 1 rwc 0644;
         ~setxattr 0 d user.d w; lstat 0 d; ~utimens 0 d; open 1 y 2 rwc 0644; lstat 0 d; ~lchmod 0 d 01700; lstat 0 d;
         rename 0 a 1 a; unlink 1 x; ~opendir 0 d 1; ~setxattr 1 y user.k v; write 2 0 9 1; ~utimens 1 y; fstat 2; read 2 0 9;
         unlink 1 y; fstat 2; list 1",
    ),
    (
        "setgid_directory",
        "mkdir 0 d 1 0755; ~chown 0 d 4294967295 60100; ~lchmod 0 d 02775; opendir 0 d 1; open 1 f 0 rwc 0664; fstat 0;
         mkdir 1 e 2 0755; lstat 1 e; open 2 f 1 rwc 0640; fstat 1; mkdir 2 g 3 0700; lstat 2 g; open 3 p 2 rwc 02755; fstat 2;
         open 3 q 2 rwc 06711; fstat 2; chmod 2 02755; fstat 2; write 2 0 5 1; fstat 2; rename 1 e 0 e; mkdir 2 h 3 0777;
         lstat 2 h; open 0 o 3 rwc 0644; rename 0 o 1 o; fstat 3; list 2",
    ),
    (
        "default_acl",
        "mkdir 0 d 1 0755; ~default_acl 0 d; open 1 f 0 rwc 0666; fstat 0; open 1 g 1 rwc 0600; fstat 1; mkdir 1 e 2 0777;
         lstat 1 e; open 2 f 2 rwc 0640; fstat 2; mkdir 2 h 3 0700; lstat 2 h; open 3 deep 3 rwc 0777; fstat 3; chmod 2 0664;
         fstat 2; write 2 0 5 1; rename 2 f 0 f; lstat 0 f; open 0 plain 4 rwc 0666; fstat 4; rename 0 plain 2 plain; fstat 4;
         list 2",
    ),
    (
        "modes_of_directories",
        "mkdir 0 ro 1 0555; lstat 0 ro; open 1 x 0 rwc 0644; mkdir 1 x 2 0755; unlink 1 none; rmdir 1 none; lstat 1 none;
         open 1 none 0 r 0; list 1; open 0 f 0 rwc 0644; rename 0 f 1 f; lstat 0 ro; mkdir 0 closed 2 0666; open 2 x 1 rwc 0644;
         open 2 x 1 r 0; lstat 2 x; list 2; unlink 2 x; rmdir 2 x; mkdir 2 x 3 0755; opendir 2 x 3; rename 0 f 2 f; rename 2 x 0 x;
         rename 0 closed 1 closed; rename 0 ro 2 ro; mkdir 0 to 3 0755; rename 0 ro 3 ro; rename 0 closed 3 closed; list 3;
         rename 0 ro 0 ro2; rmdir 0 ro2; rmdir 0 closed; list 0",
    ),
    (
        "reading",
        "list 0; open 0 a 0 rwc 0644; mkdir 0 d 1 0755; list 0; list 1; open 1 x 1 rwc 0644; lstat 0 d; lstat 0 a; opendir 0 d 2;
         list 2; read 1 0 9; read 0 0 9; open 0 a 2 r 0; read 2 0 9; sync 0; lstat 0 none; unlink 1 x; list 1; list 2; read 1 0 9",
    ),
];

/// For root.
pub const OF_ROOT: &[(&str, &str)] = &[
    (
        "chown_by_others",
        "open 0 a 0 rwc 06755; ~chown 0 a 65534 60100; fstat 0; write 0 0 9 1; fstat 0; chmod 0 06755; fstat 0; truncate 0 3; fstat 0;
         mkdir 0 d 1 0755; ~chown 0 d 65534 65534; open 1 x 1 rwc 0644; fstat 1; chmod 1 02711; rename 1 x 0 x; lstat 0 d; unlink 0 a;
         fstat 0",
    ),
    (
        "immutable",
        "open 0 a 0 rwc 0644; write 0 0 9 1; mkdir 0 d 1 0755; open 1 x 1 rwc 0644; ~chattr 0 a immutable; write 0 0 5 1; append 0 5 1;
         truncate 0 0; chmod 0 0600; fstat 0; unlink 0 a; rename 0 a 0 b; rename 1 x 0 a; read 0 0 9; ~link 0 a 0 l; ~chattr 0 a none;
         write 0 0 5 2; ~chattr 0 d immutable; open 1 y 2 rwc 0644; mkdir 1 y 2 0755; unlink 1 x; rename 1 x 0 x; rename 0 a 1 a;
         write 1 0 9 1; rename 0 d 0 e; rmdir 0 d; list 1; ~chattr 0 d append; open 1 y 2 rwc 0644; write 2 0 5 1; unlink 1 y;
         rename 1 y 1 z; mkdir 1 e 2 0755; rmdir 1 e; ~chattr 0 d none; unlink 1 y; rmdir 1 e; ~chattr 0 a append; truncate 0 0;
         chmod 0 0640; unlink 0 a; rename 0 a 0 b; ~chattr 0 a none; unlink 0 a; list 1",
    ),
];

/// Files that their owner has open and may not open again.
pub const CLOSED: &[(&str, &str)] = &[
    (
    "closed",
    "open 0 a 0 rwc 0; write 0 0 5 1; read 0 0 9; fstat 0; open 0 a 1 r 0; open 0 a 1 rw 0; open 0 a 1 rwce 0666; append 0 5 1;
     chmod 0 0600; open 0 a 1 r 0; chmod 1 0444; write 0 0 5 1; truncate 0 3; chmod 0 0; write 0 0 5 1; read 1 0 9; fstat 1;
     open 0 b 2 rwc 0444; write 2 0 9 1; open 0 b 3 rw 0; fstat 2; rename 0 b 0 a; fstat 1; append 2 5 1; unlink 0 a; fstat 2;
     chmod 2 0644",
),
    (
        "closed_and_looked_at",
        "open 0 a 0 rwc 0444; write 0 0 9 1; ~lstat 0 a; write 0 5 9 2; ~lstat 0 a; ~open 0 a 0 w 0; ~open 0 a 0 rw 0; append 0 5 1; fstat 0;
         ~open 0 a 0 r 0; ~fstat 0; truncate 0 3; ~lstat 0 a; open 0 a 1 rw 0; open 0 b 1 rwc 0644; chmod 1 0; ~lstat 0 b; write 1 0 5 1;
         ~lstat 0 b; ~open 0 b 1 r 0; ~open 0 b 1 w 0; read 1 0 9; fstat 1; ~lchmod 0 b 0200; open 0 b 2 w 0; ~open 0 b 1 r 0; fstat 1;
         open 0 c 2 wc 0; open 0 d 3 rwc 0040; ~lstat 0 c; write 2 0 5 1; read 2 0 5; ~unlink 0 d; append 3 5 1; read 3 0 9; fstat 3;
         ~lstat 0 c; ~lchmod 0 c 0444; append 2 5 1; ~open 0 c 2 w 0; list 0",
    ),
];

/// Times of access, for held files alone: the kernel's own cache makes them approximate, and nothing counts that is read behind the end.
pub const ACCESSED: &[(&str, &str)] = &[(
    "accessed",
    "open 0 a 0 rwc 0644; was_read 0; write 0 0 5 1; was_read 0; read 0 0 9; was_read 0; write 0 0 5 1; was_read 0; append 0 5 1;
     read 0 0 0; was_read 0; read 0 7 1; was_read 0; truncate 0 3; was_read 0; chmod 0 0600; read 0 0 9; was_read 0",
)];

/// For a program that may make no file larger than 8 MiB, with the umask 077.
pub const LIMITED: &[(&str, &str)] = &[(
    "limit",
    "open 0 a 0 rwc 0666; fstat 0; mkdir 0 d 1 0777; lstat 0 d; write 0 8291456 97152 1; write 0 8388608 1 1; write 0 9999999 9 1;
     append 0 1 1; fstat 0; append 0 0 1; write 0 8388600 8 1; truncate 0 8388609; truncate 0 8388608; truncate 0 8388600; append 0 8 1;
     append 0 1 1; fstat 0; truncate 0 0; append 0 5 1; read 0 0 9; open 1 b 1 rwc 0777; fstat 1; truncate 1 8291456; append 1 97152 1;
     append 1 1 1; fstat 1; unlink 1 b; append 1 1 1; chmod 1 0644; fstat 1; write 1 4294967296 0 1; open 1 b 2 rwc 0644;
     append 2 100000 1; fstat 2; ~open 0 a 1 rw 0; ~truncate 1 8388606; append 0 2 1; append 0 1 1; fstat 0; list 1",
)];

/// For an ordinary user (65534, with the groups 65534 and 60100), after root has made what the first calls make.
pub const PREPARED: &[(&str, &str, &str)] = &[
    (
        "theirs",
        "open 0 r 0 rwc 0644; open 0 none 0 rwc 0600; chown 0 none 60002 60002; open 0 team 0 rwc 0660; chown 0 team 60002 60100;
         open 0 teams 0 rwc 0604; chown 0 teams 60002 60100; open 0 suid 0 rwc 0666; lchmod 0 suid 06777; chown 0 suid 60002 60100;
         lchmod 0 suid 06777; mkdir 0 ro 1 0755; open 1 x 1 rwc 0666; lchmod 1 x 0666; mkdir 0 closed 2 0700; mkdir 0 team_d 3 0770;
         lchmod 0 team_d 02770; chown 0 team_d 60002 60100; lchmod 0 team_d 02770; open 3 x 2 rwc 0600; chown 3 x 60002 60002;
         default_acl 0 ro",
        "open 0 r 0 r 0; open 0 r 1 rw 0; open 0 r 1 w 0; open 0 r 1 rwc 0666; open 0 r 1 rt 0; chmod 0 0666; open 0 none 1 r 0;
         open 0 none 1 rwce 0644; open 0 team 1 rw 0; write 1 0 9 1; fstat 1; chmod 1 0777; open 0 teams 2 r 0; open 0 suid 2 rw 0;
         write 2 0 5 1; fstat 2; opendir 0 ro 1; open 1 x 3 rw 0; append 3 5 1; fstat 3; open 1 new 3 rwc 0644; unlink 1 x;
         rename 1 x 0 x; mkdir 1 e 3 0755; rename 0 r 1 r; opendir 0 closed 2; lstat 0 closed; opendir 0 team_d 2;
         open 2 mine 3 rwc 0664; fstat 3; open 2 p 3 rwc 02755; fstat 3; mkdir 2 e 3 0755; lstat 2 e; open 3 deep 3 rwc 02711; fstat 3;
         open 2 x 3 r 0; unlink 2 x; list 2; rename 0 ro 2 ro; rename 0 team_d 0 t; rename 2 e 0 e; rmdir 0 closed; unlink 0 none;
         list 0",
    ),
    (
        "sticky",
        "mkdir 0 s 1 0777; lchmod 0 s 01777; open 1 theirs 0 rwc 0666; lchmod 1 theirs 0666; chown 1 theirs 60002 60002; mkdir 1 dir 2 0777;
         lchmod 1 dir 0777; chown 1 dir 60002 60002; mkdir 0 own 3 0777; lchmod 0 own 01777; open 3 theirs 1 rwc 0600;
         chown 3 theirs 60002 60002; chown 0 own 65534 65534; mkdir 0 out 4 0777; lchmod 0 out 0777",
        "opendir 0 s 1; opendir 0 own 2; opendir 0 out 3; open 1 mine 0 rwc 0644; unlink 1 theirs; rename 1 theirs 1 x;
         rename 1 theirs 3 x; rename 1 mine 1 theirs; rename 1 mine 1 mine2; rmdir 1 dir; rename 1 dir 3 dir; open 1 theirs 1 rw 0;
         open 1 theirs 1 rwc 0666; open 1 theirs 1 rwct 0666; write 1 0 9 1; rename 1 mine2 3 x; rename 3 x 1 mine; unlink 1 mine;
         mkdir 1 d 4 0755; rmdir 1 d; unlink 2 theirs; list 1; list 2; list 3; open 1 again 2 rwc 0600; rename 1 again 2 again;
         open 2 sub 3 rwc 0644; unlink 2 sub",
    ),
];
