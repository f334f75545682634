//! `ccfs adopt`: can this ext4 volume be used with ccfs, and how? `ccfs release`: is it plain ext4 again?
use crate::cli::{AdoptArgs, ReleaseArgs};
use crate::rehearsal::Rehearsal;
use crate::target::ForTools;
use crate::{mounts, progress, superblock, tags, target, tools};
use ccfs_command::{Context, Failure, Outcome, output::print_json, say, size};
use ccfs_device::{Device, OpenMode};
use ccfs_engine::{Options, Volume};
use ccfs_ext4::features::{Support, compat, incompat};
use ccfs_ext4::superblock::{RawSuper, STATE_ERROR, STATE_VALID};
use serde::Serialize;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

const CODE: u8 = 1;
/// With a smaller log checkpoints are frequent, bytes.
const LOG_WISHED: u64 = 64 << 20;
/// Features that tune2fs takes off again.
const REMOVABLE: &[&str] = &["quota", "project", "read-only", "fast_commit"];

/// Schema in docs/json.md.
#[derive(Serialize)]
struct Adoption {
    schema: u32,
    target: String,
    verdict: &'static str,
    checks: Vec<Check>,
    next: Vec<String>,
}

/// How a check ended; the worst one decides.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Mark {
    Good,
    /// Usable; worth knowing.
    Note,
    /// Usable for reading.
    Limited,
    /// Usable after what `next` says.
    Repair,
    Bad,
}

#[derive(Serialize)]
struct Check {
    name: &'static str,
    mark: Mark,
    text: String,
}

/// Collects the checks of a volume.
struct Examiner<'a> {
    target: &'a Path,
    checks: Vec<Check>,
    next: Vec<String>,
}

impl Examiner<'_> {
    fn found(&mut self, name: &'static str, mark: Mark, text: impl Into<String>) {
        let text = text.into();
        self.checks.push(Check { name, mark, text });
    }

    fn worst(&self) -> Mark {
        let marks = self.checks.iter().map(|c| c.mark);
        marks.max().unwrap_or(Mark::Good)
    }

    fn advise(&mut self, command: &str) {
        let command = format!("{command} {}", self.target.display());
        if !self.next.contains(&command) {
            self.next.push(command);
        }
    }

    /// Features: each one that stands in the way, with what takes it off.
    fn features(&mut self, sb: &RawSuper) {
        let mut clean = true;
        if sb.rev_level.get() == 0 {
            self.found("features", Mark::Repair, "none, since it is revision 0");
            self.advise("tune2fs -O large_file");
            clean = false;
        }
        for (name, support) in superblock::feature_names(sb) {
            let removable = REMOVABLE.contains(&&name[..]);
            let cure = if removable {
                "; tune2fs can take it off"
            } else {
                ""
            };
            match support {
                Support::Full => continue,
                _ if name == "needs_recovery" || name == "orphan_present" => continue,
                Support::ReadOnly => self.found(
                    "features",
                    Mark::Limited,
                    format!("{name}: read only with ccfs{cure}"),
                ),
                Support::Refused if removable => self.found(
                    "features",
                    Mark::Repair,
                    format!("{name}: not with ccfs{cure}"),
                ),
                Support::Refused => {
                    self.found("features", Mark::Bad, format!("{name}: not with ccfs"));
                }
            }
            clean = false;
            if removable {
                self.advise(&format!("tune2fs -O ^{name}"));
            }
        }
        if clean {
            self.found("features", Mark::Good, "all are supported");
        }
    }

    fn state(&mut self, sb: &RawSuper) {
        let state = sb.state.get();
        let orphans = sb.last_orphan.get() != 0
            || superblock::feature_names(sb)
                .iter()
                .any(|(n, _)| n == "orphan_present");
        let what = if superblock::in_flight(sb) {
            let text =
                "in flight: ccfs had it mounted and was interrupted; the next mount recovers it";
            return self.found("state", Mark::Note, text);
        } else if sb.has_incompat(incompat::NEEDS_RECOVERY) {
            "the kernel had it mounted and was interrupted, or has it mounted now"
        } else if state & STATE_ERROR != 0 {
            "errors are recorded in the super block"
        } else if state & STATE_VALID == 0 {
            "it was not unmounted cleanly"
        } else if orphans {
            "it has orphaned inodes"
        } else {
            return self.found("state", Mark::Good, "clean");
        };
        self.found("state", Mark::Repair, what);
        self.advise("ccfs fsck -p -f");
    }

    fn journal(&mut self, sb: &RawSuper) {
        if sb.feature_compat.get() & compat::HAS_JOURNAL == 0 {
            self.found("journal", Mark::Repair, "none; ccfs keeps its log in it");
            return self.advise("tune2fs -j");
        }
        let bytes = match sb.jnl_backup_type {
            1 => u64::from(sb.jnl_blocks[16].get()) | u64::from(sb.jnl_blocks[15].get()) << 32,
            _ => 0,
        };
        if bytes > 0 && bytes < LOG_WISHED {
            let text = format!(
                "{}; a larger one means fewer checkpoints (tune2fs -O ^has_journal, then tune2fs -J size=128)",
                size::show(bytes)
            );
            return self.found("journal", Mark::Note, text);
        }
        let text = match bytes {
            0 => "its size is not noted in the super block".to_string(),
            bytes => size::show(bytes),
        };
        self.found("journal", Mark::Good, text);
    }

    fn space(&mut self, sb: &RawSuper) {
        let (free, all) = (sb.free_blocks(), sb.blocks_count());
        let text = format!("{free} of {all} blocks are free");
        // Delayed allocation and remapping want some room.
        if free < all / 50 {
            let text = format!("{text}: overwriting goes through the log, which is slower");
            return self.found("space", Mark::Note, text);
        }
        self.found("space", Mark::Good, text);
    }

    /// Mounts, changes and unmounts a copy that exists in memory only.
    fn rehearse(&mut self, device: Arc<dyn Device>) {
        match rehearse(device) {
            Ok(()) => self.found(
                "rehearsal",
                Mark::Good,
                "mounted, changed and unmounted in memory",
            ),
            Err(e) => {
                self.found("rehearsal", Mark::Bad, e.to_string());
                self.advise("e2fsck -f");
            }
        }
    }

    fn e2fsck(&mut self, device: &Arc<dyn Device>) -> Outcome<()> {
        let (code, text) = e2fsck_n(self.target, device)?;
        match code {
            0 => self.found("e2fsck", Mark::Good, "found nothing"),
            _ => {
                self.found("e2fsck", Mark::Repair, text);
                self.advise("ccfs fsck -f -y");
            }
        }
        Ok(())
    }
}

fn rehearse(device: Arc<dyn Device>) -> ccfs_engine::Result<()> {
    let options = Options {
        background: false,
        ..Options::default()
    };
    let volume = Volume::mount(Arc::new(Rehearsal::new(device)), options)?;
    let cx = ccfs_engine::Context::root(ccfs_engine::DEFAULT_STREAM);
    let file = volume.tmpfile(&cx, ccfs_engine::ROOT_INO, 0o600);
    match file {
        Ok(file) => volume.forget(file.ino, 1),
        // A full volume can be used all the same.
        Err(ccfs_engine::Error::Errno(libc::ENOSPC)) => {}
        Err(e) => return Err(e),
    }
    volume.unmount()
}

/// `e2fsck -fn`, which only reads: its exit code and the last line of what it said.
fn e2fsck_n(target: &Path, device: &Arc<dyn Device>) -> Outcome<(i32, String)> {
    let file = ForTools::of(target, device, CODE)?;
    let mut command = tools::command("e2fsck");
    command.arg("-fn").arg(tools::plain_path(&file.path()));
    let out = progress::shown(command.stdin(Stdio::null()))
        .or_fail(CODE, "cannot run e2fsck; install the package e2fsprogs")?;
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&out.stderr),
        String::from_utf8_lossy(&out.stdout)
    );
    let last = said.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("");
    Ok((out.status.code().unwrap_or(-1), last.trim().to_string()))
}

fn mounted_on(target: &Path) -> Option<mounts::Mount> {
    let path = mounts::absolute(target).ok()?;
    mounts::of_target(&path).ok()?.into_iter().next()
}

pub fn adopt(args: &AdoptArgs) -> Outcome<()> {
    let args = &AdoptArgs {
        target: tags::device(&args.target, CODE)?,
        ..args.clone()
    };
    let mut examiner = Examiner {
        target: &args.target,
        checks: Vec::new(),
        next: Vec::new(),
    };
    let mounted = mounted_on(&args.target);
    if let Some(mount) = &mounted {
        let text = format!(
            "mounted on {} ({}); what follows is a snapshot",
            mount.dir.display(),
            mount.fstype
        );
        examiner.found("use", Mark::Repair, text);
        examiner
            .next
            .push(format!("umount {}", mount.dir.display()));
    }
    let device = match target::open(&args.target, OpenMode::ReadOnly, CODE) {
        Err(_) if mounted.is_some() => None,
        opened => Some(opened?),
    };
    if let Some(device) = device {
        examine(&mut examiner, device, args.full)?;
    }
    let worst = examiner.worst();
    let how = match worst {
        Mark::Limited => Some("ccfs mount -o ro"),
        Mark::Bad => None,
        _ => Some("ccfs mount"),
    };
    if let Some(how) = how {
        let shown = args.target.display();
        examiner.next.push(format!("{how} {shown} DIR"));
    }
    let adoption = Adoption {
        schema: 1,
        target: args.target.display().to_string(),
        verdict: match worst {
            Mark::Good | Mark::Note => "usable",
            Mark::Limited => "read-only",
            Mark::Repair => "after preparation",
            Mark::Bad => "not usable",
        },
        checks: examiner.checks,
        next: examiner.next,
    };
    if args.json {
        print_json(&adoption)?;
    } else {
        show(&adoption);
    }
    match worst {
        Mark::Good | Mark::Note => Ok(()),
        _ => Err(Failure::new(CODE, "")),
    }
}

fn examine(examiner: &mut Examiner<'_>, device: Arc<dyn Device>, full: bool) -> Outcome<()> {
    let sb = match superblock::read(device.as_ref()) {
        Ok(sb) => sb,
        Err(e) => {
            examiner.found("super block", Mark::Bad, e.to_string());
            return Ok(());
        }
    };
    if let Some(cut) = superblock::cut_off(&sb, device.as_ref(), examiner.target) {
        examiner.found("size", Mark::Bad, cut);
        return Ok(());
    }
    if !sb.checksum_ok() && !superblock::in_flight(&sb) {
        examiner.found("super block", Mark::Repair, "its checksum is wrong");
        examiner.advise("e2fsck -f");
    } else {
        examiner.found("super block", Mark::Good, "ext2, ext3 or ext4");
    }
    examiner.features(&sb);
    examiner.state(&sb);
    examiner.journal(&sb);
    examiner.space(&sb);
    // What is known to need a preparation would only fail.
    if examiner.worst() <= Mark::Note {
        examiner.rehearse(device.clone());
    }
    if full && !superblock::in_flight(&sb) {
        examiner.e2fsck(&device)?;
    }
    Ok(())
}

fn show(adoption: &Adoption) {
    say!("{}: {}", adoption.target, adoption.verdict);
    for check in &adoption.checks {
        let mark = match check.mark {
            Mark::Good => "ok",
            Mark::Note => "note",
            Mark::Limited => "read-only",
            Mark::Repair => "prepare",
            Mark::Bad => "NO",
        };
        say!("  {:<12} {mark:<10} {}", check.name, check.text);
    }
    if !adoption.next.is_empty() {
        say!("next:");
    }
    for command in &adoption.next {
        say!("  {command}");
    }
}

/// Schema in docs/json.md.
#[derive(Serialize)]
struct Release {
    schema: u32,
    target: String,
    plain_ext4: bool,
    recovered: bool,
    e2fsck: Option<i32>,
    text: String,
}

pub fn release(args: &ReleaseArgs) -> Outcome<()> {
    let args = &ReleaseArgs {
        target: tags::device(&args.target, CODE)?,
        ..args.clone()
    };
    let shown = args.target.display().to_string();
    target::check_not_mounted(&args.target, CODE)?;
    let fail = |e: ccfs_engine::Error| {
        Failure::new(
            CODE,
            format!("{shown}: {e}; `ccfs inspect {shown}` shows its state"),
        )
    };
    let look = |device: &dyn Device| {
        let sb = superblock::read(device)?;
        let cut = superblock::cut_off(&sb, device, &args.target);
        Ok((superblock::in_flight(&sb), cut))
    };
    let device = target::open(&args.target, OpenMode::ReadOnly, CODE)?;
    let (found, cut) = look(&*device).map_err(fail)?;
    drop(device);
    // Only a volume in flight needs to be written to, and what is not whole is left as it is.
    let recovered = match found && cut.is_none() {
        false => false,
        true => {
            let device = target::open(&args.target, OpenMode::ReadWrite, CODE)?;
            Volume::recover(device).map_err(fail)?
        }
    };
    let device = target::open(&args.target, OpenMode::ReadOnly, CODE)?;
    let (still, _) = look(&*device).map_err(fail)?;
    let checked = match args.no_check || still || cut.is_some() {
        true => None,
        false => Some(e2fsck_n(&args.target, &device)?),
    };
    let sound = checked.as_ref().is_none_or(|(code, _)| *code == 0);
    let plain_ext4 = cut.is_none() && !still && sound;
    let text = match (&checked, cut) {
        (_, Some(cut)) => cut,
        _ if still => "still in flight".to_string(),
        (Some((_, said)), _) if !sound => {
            format!("e2fsck is not content ({said}); run: ccfs fsck -f -y {shown}")
        }
        (None, _) => "plain ext4; e2fsck was not asked".to_string(),
        _ => "plain ext4; e2fsck found nothing".to_string(),
    };
    let release = Release {
        schema: 1,
        target: shown.clone(),
        plain_ext4,
        recovered,
        e2fsck: checked.map(|(code, _)| code),
        text,
    };
    if args.json {
        print_json(&release)?;
    } else {
        let before = if recovered { "recovered; " } else { "" };
        say!("{shown}: {before}{}", release.text);
    }
    if plain_ext4 {
        Ok(())
    } else {
        Err(Failure::new(CODE, ""))
    }
}
