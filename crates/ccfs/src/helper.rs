//! Called as mkfs.ccfs, mount.ccfs or fsck.ccfs by mkfs(8), mount(8) (fstab, `mount -t ccfs`) and fsck(8), and as umount.fuseblk.ccfs
//! by umount(8), where that goes by the mount table.
use crate::cli::{FsckArgs, MkfsArgs, MountArgs};
use crate::codes::{fsck_code, mount_code};
use crate::{fsck, mkfs, mount, mounts, options, umount};
use ccfs_command::{Failure, Outcome};
use ccfs_remote::is_store;
use clap::Args;
use rustix::mount::UnmountFlags;
use std::ffi::OsString;
use std::path::PathBuf;

/// Options of FUSE in the mount table that nobody gave.
const KERNELS: [&str; 7] = [
    "user_id",
    "group_id",
    "rootmode",
    "default_permissions",
    "allow_other",
    "max_read",
    "blksize",
];

/// Runs the helper `name` with all of `args` (the first is the program's own name).
pub fn run(name: &str, args: &[OsString]) -> Outcome<u8> {
    match name {
        "mkfs.ccfs" => {
            parse::<MkfsArgs>("mkfs.ccfs", args, 1)?.map_or(Ok(0), |a| mkfs::run(&a).map(|()| 0))
        }
        "fsck.ccfs" => {
            parse::<FsckArgs>("fsck.ccfs", args, fsck_code::USAGE)?.map_or(Ok(0), |a| fsck::run(&a))
        }
        "umount.fuseblk.ccfs" | "umount.fuse.ccfs" => {
            let asked = umount_helper(args)?;
            umount::at_once(&asked.dir, asked.how, asked.or_read_only).map(|()| 0)
        }
        _ => match mount_helper(name != "mount.ccfs", args)? {
            Some(args) if is_there(&args) => Ok(0),
            Some(args) => mount::run(&args).map(|()| 0),
            None => Ok(0),
        },
    }
}

/// `mount -a` looks for what is mounted by files and devices, and asks again for a store that is.
fn is_there(args: &MountArgs) -> bool {
    let remounts = || options::parse(&args.options).is_ok_and(|options| options.remount);
    if !is_store(args.target.as_os_str()) || remounts() {
        return false;
    }
    let dir = umount::resolve(&args.dir).ok();
    let all = mounts::of_target(&args.target).unwrap_or_default();
    all.iter()
        .any(|mount| Some(&mount.dir) == dir.as_ref() && mount.is_ccfs() && !mount.is_dead())
}

/// Whether mount.fuse(8) calls this program, `ccfs TARGET DIR -o OPTIONS`: mount(8) asks it where it finds no mount.fuse.ccfs, and it takes what
/// is behind `fuse.` for a program. No command begins with a slash.
pub fn is_of_mount_fuse(args: &[OsString]) -> bool {
    let is_target = |arg: &OsString| arg.as_encoded_bytes().starts_with(b"/");
    args.get(1).is_some_and(is_target) && args.get(3).is_some_and(|arg| arg == "-o")
}

/// `None`: help or version was asked for and printed.
fn parse<A: Args>(name: &'static str, args: &[OsString], usage_code: u8) -> Outcome<Option<A>> {
    let table = A::augment_args(clap::Command::new(name).version(env!("CARGO_PKG_VERSION")));
    match table
        .try_get_matches_from(args)
        .and_then(|m| A::from_arg_matches(&m))
    {
        Ok(parsed) => Ok(Some(parsed)),
        Err(e) if !e.use_stderr() => {
            let _ = e.print();
            Ok(None)
        }
        Err(e) => Err(Failure::new(
            usage_code,
            e.to_string().trim_end().trim_start_matches("error: "),
        )),
    }
}

/// What umount(8) asks for.
#[derive(Debug, PartialEq)]
struct Unmount {
    dir: PathBuf,
    how: UnmountFlags,
    or_read_only: bool,
}

/// The command line that umount(8) gives: `umount.TYPE DIR [-nlfvr] [-t TYPE] [-N NAMESPACE]`.
fn umount_helper(args: &[OsString]) -> Outcome<Unmount> {
    let usage = |text: String| {
        Failure::new(
            mount_code::USAGE,
            format!("{text}; usage: umount.fuseblk.ccfs DIR [-nlfvr]; umount -i does without it"),
        )
    };
    let (mut dir, mut how, mut or_read_only) = (None, UnmountFlags::empty(), false);
    let mut rest = args.iter().skip(1);
    while let Some(arg) = rest.next() {
        match arg.to_str() {
            Some("-n" | "-v") => {}
            Some("-l") => how |= UnmountFlags::DETACH,
            Some("-f") => how |= UnmountFlags::FORCE,
            Some("-r") => or_read_only = true,
            Some("-t") => drop(rest.next()),
            Some(flag) if flag.starts_with('-') => {
                let flag = flag.trim_start_matches('-');
                return Err(usage(format!("unknown option -{flag}")));
            }
            _ => dir = Some(PathBuf::from(arg)),
        }
    }
    let dir = dir.ok_or_else(|| usage("a directory is needed".into()))?;
    Ok(Unmount {
        dir,
        how,
        or_read_only,
    })
}

/// The command line that mount(8) gives: `mount.ccfs SPEC DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`.
/// `None` for a fake mount (`-f`). `by_table`: the options are those of the mount table, the kernel's own for FUSE among them.
fn mount_helper(by_table: bool, args: &[OsString]) -> Outcome<Option<MountArgs>> {
    let usage = |text: &str| {
        Failure::new(
            mount_code::USAGE,
            format!("{text}; usage: mount.ccfs TARGET DIR [-sfnv] [-o OPTIONS]"),
        )
    };
    let mut places: Vec<PathBuf> = Vec::new();
    let mut lists = Vec::new();
    let (mut sloppy, mut fake) = (false, false);
    let mut rest = args.iter().skip(1);
    while let Some(arg) = rest.next() {
        let flags = match arg.to_str().and_then(|a| a.strip_prefix('-')) {
            Some(flags) if !flags.is_empty() => flags,
            _ => {
                places.push(PathBuf::from(arg));
                continue;
            }
        };
        for (at, flag) in flags.char_indices() {
            match flag {
                's' => sloppy = true,
                'f' => fake = true,
                'n' | 'v' => {}
                'o' | 't' | 'N' => {
                    let attached = &flags[at + 1..];
                    let value = match attached.is_empty() {
                        false => attached.to_string(),
                        true => rest
                            .next()
                            .and_then(|v| v.to_str())
                            .ok_or_else(|| usage(&format!("-{flag} needs a value")))?
                            .to_string(),
                    };
                    match flag {
                        'o' => lists.push(value),
                        'N' => {
                            return Err(usage("mounting into another namespace is not supported"));
                        }
                        _ => {}
                    }
                    break;
                }
                _ => return Err(usage(&format!("unknown option -{flag}"))),
            }
        }
    }
    let [target, dir] = <[PathBuf; 2]>::try_from(places)
        .map_err(|_| usage("a target and a directory are needed"))?;
    if by_table {
        let ours = |o: &&str| !KERNELS.contains(&o.split('=').next().unwrap_or(""));
        let all = lists.iter().flat_map(|l| l.split(','));
        lists = all.filter(ours).map(str::to_string).collect();
    }
    if sloppy {
        lists = lists
            .iter()
            .flat_map(|l| l.split(','))
            .filter(|o| options::is_taken(o))
            .map(str::to_string)
            .collect();
    }
    options::parse(&lists)?;
    let args = MountArgs {
        take_over: false,
        foreground: false,
        options: lists,
        target,
        dir,
        json: false,
        daemon: false,
    };
    Ok((!fake).then_some(args))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn helper(line: &str) -> Outcome<Option<MountArgs>> {
        let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        mount_helper(!line.starts_with("mount.ccfs"), &args)
    }

    #[test]
    fn mount_fuse_calls_the_program_without_a_command() {
        for (line, is_so) in [
            ("ccfs /a.img /mnt -o rw,remount,dev,suid", true),
            ("ccfs /a.img /mnt", false),
            ("ccfs a.img /mnt -o remount", false),
            ("ccfs mount /a.img /mnt -o ro", false),
            ("ccfs", false),
        ] {
            let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(is_of_mount_fuse(&args), is_so, "{line}");
        }
    }

    #[test]
    fn umount_calls_its_helper_in_these_ways() {
        let helper = |line: &str| {
            let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            umount_helper(&args)
        };
        let asked = |how, or_read_only| Unmount {
            dir: "/mnt".into(),
            how,
            or_read_only,
        };
        let plain = helper("umount.fuseblk.ccfs /mnt -n -v -t fuseblk.ccfs").unwrap();
        assert_eq!(plain, asked(UnmountFlags::empty(), false));
        let both = UnmountFlags::DETACH | UnmountFlags::FORCE;
        let lazy = helper("umount.fuseblk.ccfs /mnt -l -f -r").unwrap();
        assert_eq!(lazy, asked(both, true));
        for bad in [
            "umount.fuse.ccfs",
            "umount.fuse.ccfs /mnt -x",
            "u /mnt -N 1",
        ] {
            assert_eq!(helper(bad).unwrap_err().code, mount_code::USAGE, "{bad}");
        }
    }

    #[test]
    fn mount_calls_its_helper_in_these_ways() {
        let args = helper("mount.ccfs /dev/sdb1 /mnt -o rw,noatime")
            .unwrap()
            .unwrap();
        assert_eq!(
            (args.target.to_str(), args.dir.to_str()),
            (Some("/dev/sdb1"), Some("/mnt"))
        );
        assert_eq!(args.options, ["rw,noatime"]);
        let args = helper("mount.ccfs a.img /mnt -nv -orw,ro -t ccfs")
            .unwrap()
            .unwrap();
        assert_eq!(args.options, ["rw,ro"]);
        assert!(helper("mount.ccfs a.img /mnt -f").unwrap().is_none());
        assert_eq!(
            helper("mount.ccfs a.img /mnt -so frob,ro")
                .unwrap()
                .unwrap()
                .options,
            ["ro"]
        );
        for bad in [
            "mount.ccfs a.img",
            "mount.ccfs a b c",
            "mount.ccfs a b -o",
            "mount.ccfs a b -q",
            "mount.ccfs a b -o frob",
        ] {
            assert_eq!(helper(bad).unwrap_err().code, mount_code::USAGE, "{bad}");
        }
    }
}
