//! `ccfs fsck`: recovery, then e2fsck. Each step can be killed and run again.
use crate::cli::FsckArgs;
use crate::codes::fsck_code;
use crate::target::ForTools;
use crate::{flash, inspect, logging, superblock, tags, target, tools};
use ccfs_command::{Context, Failure, Outcome, output::print_json, say};
use ccfs_device::{Device, OpenMode};
use ccfs_engine::Volume;
use ccfs_image::{Image, OpenOptions};
use serde_json::json;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;

/// Gives the exit code of fsck(8).
pub fn run(args: &FsckArgs) -> Outcome<u8> {
    let args = &FsckArgs {
        target: tags::device(&args.target, fsck_code::OPERATIONAL)?,
        ..args.clone()
    };
    let mut done = Done::default();
    let code = check(args, &mut done)?;
    if args.json {
        print_json(&json!({
            "schema": 1,
            "target": args.target.to_string_lossy(),
            "code": code,
            "was_in_flight": done.was_in_flight,
            "recovered": done.recovered,
            "log_discarded": done.log_discarded,
            "e2fsck_code": done.e2fsck,
            "cut_off": done.cut_off,
        }))?;
    }
    Ok(code)
}

/// What was found and done, for `--json`.
#[derive(Default)]
struct Done {
    was_in_flight: bool,
    recovered: bool,
    log_discarded: bool,
    e2fsck: Option<u8>,
    cut_off: Option<String>,
}

fn check(args: &FsckArgs, done: &mut Done) -> Outcome<u8> {
    let shown = args.target.display();
    let tell = |text: String| {
        if !args.json {
            say!("{text}");
        }
    };
    if !args.no {
        target::check_not_mounted(&args.target, fsck_code::OPERATIONAL)?;
    }
    let mode = if args.no {
        OpenMode::ReadOnly
    } else {
        OpenMode::ReadWrite
    };
    // Kept open until the end: its lock keeps the volume from being mounted under e2fsck.
    let device = target::open_volume(&args.target, mode, fsck_code::OPERATIONAL)?;
    let on_flash = device.transactions().is_some();
    // Where there is no super block e2fsck finds a backup, or says what is there instead.
    let sb = superblock::read(device.as_ref()).ok();
    let cut = sb.and_then(|sb| superblock::cut_off(&sb, &*device, &args.target));
    if let Some(cut) = &cut {
        // Whatever wrote to it would take what is missing for lost.
        if !args.no {
            let code = fsck_code::UNCORRECTED | fsck_code::OPERATIONAL;
            return Err(Failure::new(code, format!("{shown}: {cut}")));
        }
        tell(format!("{shown}: {cut}"));
    }
    done.cut_off = cut.clone();
    let in_flight = sb.filter(superblock::in_flight);
    done.was_in_flight = in_flight.is_some();
    if let Some(sb) = &in_flight
        && args.no
    {
        tell(format!(
            "{shown}: in flight: a crash left changes in its log, and recovery has not run."
        ));
        if !on_flash {
            tell(inspect::recovery_plan(&device, sb)?);
        }
        tell(format!(
            "To recover and check it: ccfs fsck -p {shown}, or mount it with ccfs."
        ));
        return Ok(fsck_code::UNCORRECTED);
    }
    if in_flight.is_some() && args.discard_log {
        discard_log(device.clone()).or_fail(
            fsck_code::UNCORRECTED | fsck_code::OPERATIONAL,
            format_args!("{shown}: the log cannot be given up"),
        )?;
        done.log_discarded = true;
        tell(format!("{shown}: gave up what the log held"));
    } else if in_flight.is_some() {
        recover(device.clone(), args)?;
        let what = match on_flash {
            true => "brought to rest",
            false => "recovered its log",
        };
        done.recovered = true;
        tell(format!("{shown}: {what}; the volume is plain ext4 again"));
    }
    let code = match on_flash {
        true => flash::check(&device, fsck_code::OPERATIONAL, |copy| e2fsck(args, copy)),
        false => {
            let file = ForTools::of(&args.target, &device, fsck_code::OPERATIONAL)?;
            e2fsck(args, &file.path())
        }
    }?;
    done.e2fsck = Some(code);
    // e2fsck -n tells the sizes and calls the file system clean.
    let missing = if cut.is_some() {
        fsck_code::UNCORRECTED
    } else {
        0
    };
    Ok(code | missing)
}

fn recover(device: Arc<dyn Device>, args: &FsckArgs) -> Outcome<()> {
    let shown = args.target.display();
    logging::of_command();
    let done = Volume::recover(device).map_err(|e| {
        let hint = match e {
            ccfs_engine::Error::Io(_) => "nothing is lost by trying again, on a good device".to_string(),
            _ => format!("`ccfs inspect {shown}` shows the log; the last resort is --discard-log, on a copy first"),
        };
        let code = fsck_code::UNCORRECTED | fsck_code::OPERATIONAL;
        Failure::new(code, format!("{shown}: recovery failed: {e}; {hint}"))
    });
    done.map(|_| ())
}

/// Makes the volume plain ext4 as it was at some point of its last checkpoint, torn perhaps: e2fsck has to follow.
fn discard_log(device: Arc<dyn Device>) -> ccfs_engine::Result<()> {
    Image::open(device, OpenOptions::default())?.give_up_log()
}

fn e2fsck(args: &FsckArgs, target: &Path) -> Outcome<u8> {
    let mut command = tools::command("e2fsck");
    // Without a terminal e2fsck cannot ask, and would refuse.
    let answer = match (args.no, args.preen, args.yes) {
        (true, ..) => Some("-n"),
        (_, true, _) => Some("-p"),
        (.., true) => Some("-y"),
        _ if args.json => Some("-p"),
        _ if !(std::io::stdin().is_terminal() && std::io::stdout().is_terminal()) => Some("-p"),
        _ => None,
    };
    command.args(answer);
    if args.force || args.discard_log {
        command.arg("-f");
    }
    if args.verbose {
        command.arg("-v");
    }
    if let Some(fd) = args.progress {
        command.arg("-C").arg(fd.to_string());
    } else if std::io::stdout().is_terminal() && !args.json {
        // A bar, and on what there is to see.
        command.args(["-C", "0"]);
    }
    if args.json {
        command.stdout(std::io::stderr());
    }
    let target = tools::plain_path(target);
    let status = command.arg(target).status().or_fail(
        fsck_code::OPERATIONAL,
        "cannot run e2fsck; install the package e2fsprogs",
    )?;
    match status.code() {
        Some(code) => Ok(code as u8),
        None => Err(Failure::new(
            fsck_code::OPERATIONAL,
            format!("e2fsck was ended ({status}); run the check again"),
        )),
    }
}
