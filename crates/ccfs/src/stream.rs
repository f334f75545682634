//! `ccfs stream`: runs programs in streams of their own.
use crate::cli::{StreamArgs, StreamAtArgs, StreamCommand, StreamRunArgs};
use crate::failure::{Failure, Outcome};
use ccfs_client::{STREAM_DEFAULT, STREAM_IGNORE_FSYNC};
use serde::Serialize;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

pub fn run(args: &StreamArgs) -> Outcome<()> {
    match &args.command {
        StreamCommand::Run(a) => run_command(a),
        StreamCommand::Show(a) => show(a),
        StreamCommand::Sync(a) => sync(a),
    }
}

/// Opens a directory of a mounted volume for the stream and status calls: `path`, or the one that holds it. Asks for no
/// attributes, since a stopped volume may not give them.
pub fn open(path: &Path) -> Outcome<File> {
    let directory = |path: &Path| {
        let flags = libc::O_DIRECTORY | libc::O_NONBLOCK;
        File::options().read(true).custom_flags(flags).open(path)
    };
    let opened = match directory(path) {
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => {
            let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
            directory(parent.unwrap_or(Path::new(".")))
        }
        opened => opened,
    };
    opened.map_err(|e| explain(path, e))
}

/// Turns an error of the stream and status calls into what the user can do about it.
pub fn explain(path: &Path, e: io::Error) -> Failure {
    let shown = path.display();
    let text = match e.raw_os_error() {
        Some(libc::ENOTCONN | libc::ECONNABORTED) => {
            format!(
                "the daemon of {shown} is gone; mount the volume again: it recovers, and the dead mount is cleared"
            )
        }
        Some(libc::EIO) => format!(
            "{shown}: the volume is stopped; unmount it, and mount it again: what was synced is there"
        ),
        Some(libc::EPERM) => format!("{shown}: the stream belongs to another user"),
        _ if e.kind() == io::ErrorKind::Unsupported => {
            format!("{shown} is not on a mounted ccfs volume")
        }
        _ => format!("{shown}: {e}"),
    };
    Failure::new(1, text)
}

/// Enters the stream and becomes the command, so that its children inherit the stream.
fn run_command(args: &StreamRunArgs) -> Outcome<()> {
    let at = open(&args.dir)?;
    let flags = if args.ignore_fsync {
        STREAM_IGNORE_FSYNC
    } else {
        0
    };
    let entered = match args.id {
        Some(id) => ccfs_client::set_stream(&at, id, args.ignore_fsync.then_some(flags)),
        None => ccfs_client::new_stream(&at, flags)
            .and_then(|id| ccfs_client::set_stream(&at, id, None)),
    };
    entered.map_err(|e| match (args.id, e.raw_os_error()) {
        (Some(0 | STREAM_DEFAULT), Some(libc::EINVAL)) => Failure::new(
            1,
            "the default stream has no flags; leave out --id to get a new stream",
        ),
        _ => explain(&args.dir, e),
    })?;
    drop(at);
    let [program, rest @ ..] = args.command.as_slice() else {
        return Err(Failure::new(2, "a command is needed after --"));
    };
    let error = Command::new(program).args(rest).exec();
    let code = if error.kind() == io::ErrorKind::NotFound {
        127
    } else {
        126
    };
    Err(Failure::new(
        code,
        format!("cannot run {}: {error}", Path::new(program).display()),
    ))
}

/// Schema in docs/json.md.
#[derive(Serialize)]
struct Shown {
    schema: u32,
    stream: u64,
    default: bool,
    ignore_fsync: bool,
}

fn show(args: &StreamAtArgs) -> Outcome<()> {
    let stream = ccfs_client::get_stream(open(&args.dir)?).map_err(|e| explain(&args.dir, e))?;
    let shown = Shown {
        schema: 1,
        stream: stream.id,
        default: stream.id == STREAM_DEFAULT,
        ignore_fsync: stream.flags & STREAM_IGNORE_FSYNC != 0,
    };
    if args.json {
        return crate::print_json(&shown);
    }
    let default = if shown.default {
        " (the default stream)"
    } else {
        ""
    };
    let ignore = if shown.ignore_fsync {
        ", sync calls are ignored"
    } else {
        ""
    };
    say!("stream {}{default}{ignore}", shown.stream);
    Ok(())
}

fn sync(args: &StreamAtArgs) -> Outcome<()> {
    let at = open(&args.dir)?;
    ccfs_client::stream_sync(&at, 0).map_err(|e| explain(&args.dir, e))?;
    if !args.json {
        return Ok(());
    }
    let stream = ccfs_client::get_stream(&at).map_err(|e| explain(&args.dir, e))?;
    crate::print_json(&serde_json::json!({ "schema": 1, "stream": stream.id, "synced": true }))
}
