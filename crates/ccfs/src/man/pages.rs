//! What the pages of the commands say besides the table of options, and the pages that are made of the documents.
use ccfs_command::manual::{Extra, exit_status};
use ccfs_command::markdown::{chapter, entry, plain, roff, rows, words};

const OPTIONS: &str = include_str!("../../../../docs/using/options.md");
const STREAMS: &str = include_str!("../../../../docs/using/streams.md");
const EXIT_CODES: &str = include_str!("../../../../docs/using/exit-codes.md");
const DAEMON: &str = include_str!("../../../../docs/using/daemon.md");
const PROMISES: &str = include_str!("../../../../docs/design/promises.md");
const FORMAT: &str = include_str!("../../../../docs/format.md");

/// Examples by command: lines as they are typed, with what they do.
const EXAMPLES: &[(&str, &[(&str, &str)])] = &[
    (
        "",
        &[
            ("ccfs mkfs -s 1G disk.img", "makes a volume in a new file"),
            ("ccfs mount disk.img /mnt/work", "mounts it"),
            (
                "ccfs stream run --on /mnt/work -- make",
                "runs a program in a stream of its own",
            ),
            (
                "ccfs umount /mnt/work",
                "unmounts it; the file is plain ext4 then",
            ),
        ],
    ),
    (
        "mkfs",
        &[
            ("ccfs mkfs -s 1.5G disk.img", "an image file"),
            ("ccfs mkfs -L work /dev/sdb1", "a block device"),
            (
                "ccfs mkfs -s 10G disk.img -- -m 0 -N 1000000",
                "with options of mke2fs(8)",
            ),
        ],
    ),
    (
        "mount",
        &[
            ("ccfs mount disk.img /mnt/work", "an image file"),
            (
                "ccfs mount -o ro LABEL=work /mnt/work",
                "a device by its label, read-only",
            ),
            (
                "ccfs mount -o streams=session,commit=10 /dev/sdb1 /srv",
                "each session is a stream",
            ),
            (
                "ccfs mount -o remount,dirty=512M /dev/sdb1 /srv",
                "changes an option of a mount",
            ),
        ],
    ),
    (
        "umount",
        &[
            (
                "ccfs umount /mnt/work",
                "returns when the volume is plain ext4",
            ),
            (
                "ccfs umount --timeout 60 LABEL=work",
                "waits at most a minute",
            ),
        ],
    ),
    (
        "fsck",
        &[
            ("ccfs fsck -n disk.img", "says what recovery would do"),
            (
                "ccfs fsck -p /dev/sdb1",
                "recovers, and repairs what is safe",
            ),
        ],
    ),
    (
        "resize",
        &[
            (
                "ccfs resize /mnt/work 20G",
                "a mounted volume in an image file gets larger",
            ),
            (
                "ccfs resize disk.img 500M",
                "one that is not mounted gets another size",
            ),
            ("ccfs resize /dev/vg/volume", "as large as its device"),
        ],
    ),
    (
        "freeze",
        &[
            (
                "ccfs freeze /mnt/work -- cp --reflink=auto disk.img copy.img",
                "copies the image file of a mounted volume",
            ),
            (
                "ccfs freeze --for 10 /mnt/work -- lvcreate -s -n snap vg/work",
                "takes a snapshot of its device; others wait for 10 seconds at most",
            ),
        ],
    ),
    (
        "list",
        &[
            ("ccfs list", "the volumes that are mounted"),
            ("ccfs list --json", "for programs"),
        ],
    ),
    (
        "status",
        &[
            ("ccfs status", "of the volume of the current directory"),
            ("ccfs status --json LABEL=work", "for programs"),
        ],
    ),
    (
        "scrub",
        &[(
            "ccfs scrub --progress /mnt/work",
            "verifies all metadata while it is in use",
        )],
    ),
    (
        "top",
        &[("ccfs top /mnt/work", "live"), ("ccfs top --once", "once")],
    ),
    (
        "metrics",
        &[
            ("ccfs metrics /mnt/work", "once"),
            (
                "ccfs metrics --listen 127.0.0.1:9180 /mnt/work",
                "for Prometheus at /metrics, and a page at /",
            ),
        ],
    ),
    (
        "inspect",
        &[(
            "ccfs inspect disk.img",
            "what is in the log of a volume that is not mounted",
        )],
    ),
    (
        "adopt",
        &[(
            "ccfs adopt --full /dev/sdb1",
            "whether an ext4 volume can be used",
        )],
    ),
    (
        "release",
        &[("ccfs release /dev/sdb1", "back to ext4 alone")],
    ),
    (
        "check",
        &[("ccfs check", "what this machine lets a mount do")],
    ),
    (
        "stream run",
        &[
            (
                "ccfs stream run --name build -- make",
                "in the stream called build",
            ),
            (
                "ccfs stream run --ignore-fsync --sync -- apt-get install -y git",
                "fast, and durable at the end",
            ),
        ],
    ),
    (
        "stream new",
        &[("ccfs stream new --name jobs /mnt/work", "prints its number")],
    ),
    (
        "stream enter",
        &[(
            "ccfs stream enter build -- sh",
            "a shell in the stream called build",
        )],
    ),
    (
        "stream show",
        &[
            ("ccfs stream show 4711", "of a process"),
            ("ccfs stream show", "of this shell"),
        ],
    ),
    (
        "stream list",
        &[("ccfs stream list /mnt/work", "all of them")],
    ),
    (
        "stream sync",
        &[
            (
                "ccfs stream sync --stream build",
                "makes one stream durable",
            ),
            ("ccfs stream sync --all", "makes all of them durable"),
        ],
    ),
    (
        "stream trace",
        &[("ccfs stream trace -n 20", "twenty commits and sync calls")],
    ),
    (
        "atomic",
        &[
            ("ccfs atomic -- make install", "all of it or nothing"),
            (
                "ccfs atomic --dry-run -- ./migrate",
                "says what would change",
            ),
        ],
    ),
    (
        "direct",
        &[
            (
                "ccfs direct -- tar -xf sources.tar -C /mnt/work",
                "unpacks without the kernel",
            ),
            (
                "ccfs direct --report=direct.json --json -- make",
                "counts which calls were direct, and why others were not",
            ),
        ],
    ),
    ("ls", &[("ccfs ls -lR disk.img:/etc", "as ls(1) would")]),
    ("tree", &[("ccfs tree disk.img", "all names")]),
    ("cat", &[("ccfs cat disk.img:/etc/fstab", "prints a file")]),
    (
        "put",
        &[
            ("ccfs put --owner 0 rootfs/. disk.img", "fills a volume"),
            (
                "ccfs put - disk.img:/etc/hostname",
                "makes a file of standard input",
            ),
        ],
    ),
    (
        "get",
        &[
            ("ccfs get disk.img:/var/log logs", "copies a directory out"),
            ("ccfs get disk.img:/etc/fstab -", "prints a file"),
        ],
    ),
    (
        "cp",
        &[("ccfs cp a.img:/etc b.img:/", "from one image to another")],
    ),
    (
        "rm",
        &[(
            "ccfs rm -r disk.img:/tmp/old",
            "a directory with all that is in it",
        )],
    ),
    (
        "mkdir",
        &[("ccfs mkdir -p disk.img:/srv/data", "with those above")],
    ),
    ("version", &[("ccfs version --json", "for programs")]),
];

/// Commands that start or speak to a daemon: its messages obey variables of the environment.
const WITH_DAEMON: &[&str] = &["", "mount"];

/// Pages that say more of a command.
fn related(command: &str) -> &'static [(&'static str, u8)] {
    match command {
        "" => &[("mount.ccfs", 8), ("ccfs", 5), ("ccfs", 7)],
        "mount" => &[
            ("mount.ccfs", 8),
            ("ccfs-umount", 8),
            ("ccfs", 7),
            ("fstab", 5),
        ],
        "mkfs" => &[("mke2fs", 8), ("ccfs-mount", 8), ("ext4", 5)],
        "fsck" => &[("e2fsck", 8), ("ccfs-inspect", 8), ("ccfs", 5)],
        "resize" => &[("resize2fs", 8), ("ccfs-mkfs", 8)],
        "freeze" => &[("fsfreeze", 8), ("lvcreate", 8), ("ccfs", 7)],
        "inspect" | "adopt" | "release" => &[("ccfs-fsck", 8), ("ccfs", 5)],
        "status" | "list" | "top" | "metrics" | "scrub" | "check" => {
            &[("ccfs-mount", 8), ("ccfs", 7)]
        }
        "direct" => &[
            ("ccfs-mount", 8),
            ("ccfs-stream-run", 8),
            ("ld.so", 8),
            ("ccfs_session_begin", 3),
        ],
        "atomic" => &[("cfs_begin", 3), ("ccfs", 7)],
        stream if stream.starts_with("stream") => &[("setstream", 3), ("ccfs", 7)],
        _ => &[("ccfs", 8)],
    }
}

/// `command`: the words behind `ccfs`, such as `stream run`.
pub fn sections(command: &str) -> String {
    let examples = EXAMPLES.iter().find(|(of, _)| *of == command);
    let mut between = String::new();
    if WITH_DAEMON.contains(&command) {
        between += ".SH FILES\n";
        for (name, what) in [
            (
                "/etc/fstab",
                "volumes that are mounted at the start: type ccfs, see `mount.ccfs`(8)",
            ),
            (
                "/etc/fuse.conf",
                "`user_allow_other` lets ordinary users mount with allow_other",
            ),
            (
                "DIR/.ccfs",
                "status files of the volume that is mounted on DIR",
            ),
        ] {
            between += &format!(".TP\n{}\n{}\n", plain(name), words(what));
        }
        between += &format!(".SH ENVIRONMENT\n{}", environment());
    }
    Extra {
        examples: examples.map_or(&[], |(_, examples)| examples),
        exit_status: exit_status(EXIT_CODES, command),
        between,
        related: related(command),
    }
    .roff()
}

/// The variables that docs/using/daemon.md names.
fn environment() -> String {
    let rows = rows(DAEMON).into_iter();
    rows.filter(|row| row[0].contains("CCFS_"))
        .map(|row| entry(&row))
        .collect()
}

fn head(name: &str, section: u8, what: &str) -> String {
    format!(
        ".TH {name} {section} \"\" \"ccfs\" \"ccfs\"\n.SH NAME\n{} \\- {}\n",
        plain(name),
        plain(what)
    )
}

/// Name and text of the pages that are made of the documents.
pub fn of_documents() -> [(&'static str, String); 3] {
    [
        ("mount.ccfs.8", mount_page()),
        ("ccfs.5", format_page()),
        ("ccfs.7", streams_page()),
    ]
}

fn mount_page() -> String {
    let part = |heading: &str| roff(chapter(OPTIONS, heading));
    head("mount.ccfs", 8, "mounts a ccfs volume for mount(8)")
        + ".SH SYNOPSIS\n\\fBmount \\-t ccfs\\fR [\\fB\\-o\\fR \\fIOPTION\\fR[,\\fIOPTION\\fR]...] \\fITARGET DIR\\fR\n.PP\n\
           \\fBccfs mount\\fR [\\fB\\-o\\fR \\fIOPTION\\fR[,\\fIOPTION\\fR]...] \\fITARGET DIR\\fR\n"
        + ".SH DESCRIPTION\nRecovers the volume if a crash left it in flight, and mounts it. \\fITARGET\\fR is an image file or a block device, \
           also by \\fBLABEL=\\fR, \\fBUUID=\\fR, \\fBPARTLABEL=\\fR or \\fBPARTUUID=\\fR. In the background a daemon serves the mount.\n"
        + ".SH OPTIONS\n"
        + &part("## Options of mount")
        + ".SH \"OPTIONS OF EXT4\"\n"
        + &part("## Options of ext4")
        + ".SH TRANSPORT\n"
        + &part("## Transport")
        + ".SH EXAMPLES\nA line of /etc/fstab:\n.PP\n.nf\n.RS\nLABEL=work  /mnt/work  ccfs  streams=session,nofail  0  2\n.RE\n.fi\n"
        + &format!(
            ".SH \"EXIT STATUS\"\n{}\n",
            words(&exit_status(EXIT_CODES, "mount"))
        )
        + ".SH FILES\n.TP\n/etc/fstab\nvolumes that are mounted at the start\n.TP\nDIR/.ccfs\nstatus files\n"
        + ".SH ENVIRONMENT\n"
        + &environment()
        + ".SH \"SEE ALSO\"\n.BR ccfs\\-mount (8),\n.BR ccfs (7),\n.BR mount (8),\n.BR fstab (5)\n"
}

fn format_page() -> String {
    head(
        "ccfs",
        5,
        "what differs from ext4 on a ccfs volume, and the file of rules",
    ) + ".SH DESCRIPTION\nA ccfs volume that is not mounted is plain ext4 (\\fBext4\\fR(5)). This page says what differs while it is mounted, \
           and after a crash until it is recovered. docs/format.md has the log, bit by bit.\n"
        + ".SH \"THE IN\\-FLIGHT BIT\"\n"
        + &roff(chapter(FORMAT, "## 1. The in-flight bit"))
        + ".SH \"THE FILE OF RULES\"\nThe mount option \\fBrules=\\fR\\fIFILE\\fR names it.\n"
        + &roff(chapter(STREAMS, "### Rules for programs"))
        + ".SH EXAMPLES\n.nf\n.RS\nexe=/usr/bin/git \\-> own, ignore\\-fsync\ncgroup=/system.slice/postgresql.service \\-> shared\n.RE\n.fi\n"
        + ".SH \"SEE ALSO\"\n.BR ccfs (7),\n.BR mount.ccfs (8),\n.BR ccfs\\-inspect (8),\n.BR ext4 (5)\n"
}

fn streams_page() -> String {
    head("ccfs", 7, "streams, and what ccfs promises")
        + ".SH DESCRIPTION\nccfs keeps the updates of each application in the order in which they were made, also across a crash. Such a sequence is a \
           \\fIstream\\fR. Streams are not ordered against each other, but where they change the same.\n"
        + ".SH STREAMS\n"
        + &roff(chapter(STREAMS, "## Who is in which stream"))
        + ".SH \"WITHOUT ANY CHANGE TO THE PROGRAM\"\n"
        + &roff(chapter(STREAMS, "## Without any change to the program"))
        + ".SH PROMISES\n"
        + &roff(chapter(PROMISES, "## Words"))
        + &roff(chapter(PROMISES, "## The table"))
        + ".SS One write(2)\n"
        + &roff(chapter(PROMISES, "## One write(2): how many operations?"))
        + ".SS What is assumed of the medium\n"
        + &roff(chapter(PROMISES, "## What is assumed of the medium"))
        + ".SH EXAMPLES\n.TP\n\\fBccfs stream run \\-\\-name build \\-\\- make\\fR\nruns a program in the stream called build\n"
        + ".SH \"SEE ALSO\"\n.BR ccfs\\-stream\\-run (8),\n.BR ccfs\\-atomic (8),\n.BR setstream (3),\n.BR cfs_begin (3),\n.BR fbarrier (3)\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ext4_options, meant};

    #[test]
    fn every_mount_option_is_explained() {
        let page = mount_page();
        let own = meant::PLAIN.split(' ').chain(meant::VALUED.split(' '));
        let all: Vec<&str> = own.chain(ext4_options::patterns()).collect();
        for option in all {
            let name = option.trim_end_matches(['*', '=']).replace('-', "\\-");
            assert!(page.contains(&name), "{option}");
        }
    }

    #[test]
    fn the_pages_of_documents_have_all_that_they_are_for() {
        let [_, (_, format), (_, streams)] = of_documents();
        for n in 1..=13 {
            assert!(streams.contains(&format!(".TP\nC{n} ")), "C{n}");
        }
        for word in ["in flight", "exe=", "ignore\\-fsync", "CCFS_LOG"] {
            let all = format!("{format}{}", mount_page());
            assert!(all.contains(word), "{word}");
        }
        for (name, page) in of_documents() {
            for section in ["NAME", "DESCRIPTION", "EXAMPLES", "\"SEE ALSO\""] {
                assert!(
                    page.contains(&format!(".SH {section}\n")),
                    "{name}: {section}"
                );
            }
        }
    }

    #[test]
    fn examples_are_lines_that_ccfs_understands() {
        use clap::Parser;
        for (command, examples) in EXAMPLES {
            for (line, _) in *examples {
                let parsed = crate::cli::Cli::try_parse_from(line.split(' '));
                assert!(parsed.is_ok(), "{command}: {line}: {:?}", parsed.err());
                assert!(line.starts_with(format!("ccfs {command}").trim()), "{line}");
            }
        }
    }

    #[test]
    fn every_command_has_an_example() {
        let table = crate::cli::table();
        let shown = |c: &&clap::Command| !c.is_hide_set();
        // `crash` and `bench` are programs of their own.
        let others = crate::sisters::ALL.map(|program| program.command);
        let mut open: Vec<(String, &clap::Command)> = vec![(String::new(), &table)];
        while let Some((words, command)) = open.pop() {
            let mut below = command.get_subcommands().filter(shown).peekable();
            let is_group = below.peek().is_some() && !words.is_empty();
            let has = EXAMPLES.iter().any(|(of, _)| *of == words);
            assert!(
                has || is_group || others.contains(&words.as_str()),
                "{words}"
            );
            open.extend(below.map(|c| (format!("{words} {}", c.get_name()).trim().to_string(), c)));
        }
    }

    #[test]
    fn exit_codes_are_those_of_the_document() {
        let exit_status = |command| exit_status(EXIT_CODES, command);
        assert!(exit_status("mount").contains("32 failed"));
        assert!(exit_status("stream run").contains("127 not found"));
        assert!(exit_status("version").contains("2 usage"));
    }
}
