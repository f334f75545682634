//! `ccfs stream`: runs programs in streams of their own, and shows who is where.
use crate::cli::{
    StreamArgs, StreamCommand, StreamEnterArgs, StreamListArgs, StreamNewArgs, StreamRunArgs,
    StreamShowArgs, StreamSyncArgs,
};
use crate::stream_ref::StreamRef;
use crate::volume::{explain, open};
use crate::{direct, trace, wrapped};
use ccfs_client::{STREAM_DEFAULT, STREAM_IGNORE_FSYNC};
use ccfs_command::{Failure, Outcome, output::print_json, say};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How often two commands may be in each other's way that make a stream of one name.
const TRIES: u32 = 16;

/// Gives the exit code: a command that was run has its own.
pub fn run(args: &StreamArgs) -> Outcome<u8> {
    let done = |outcome: Outcome<()>| outcome.map(|()| 0);
    match &args.command {
        StreamCommand::Run(a) => run_command(a),
        StreamCommand::New(a) => done(new(a)),
        StreamCommand::Enter(a) => enter(a),
        StreamCommand::Show(a) => done(show(a)),
        StreamCommand::List(a) => done(list(a)),
        StreamCommand::Sync(a) => done(sync(a)),
        StreamCommand::Trace(a) => done(trace::run(a)),
    }
}

/// A stream's number on this volume.
fn find(stream: &StreamRef, at: &File, dir: &Path) -> Outcome<u64> {
    match stream {
        StreamRef::Number(number) => Ok(*number),
        StreamRef::Name(name) => ccfs_client::find_stream(at, name).map_err(|e| {
            let shown = dir.display();
            match e.raw_os_error() {
                Some(libc::ENOENT) => Failure::new(
                    1,
                    format!("{shown}: no stream of yours is called {name}; see ccfs stream list"),
                ),
                Some(libc::ENOTUNIQ) => Failure::new(
                    1,
                    format!("{shown}: several users have a stream called {name}; give its number"),
                ),
                _ => explain(dir, e),
            }
        }),
    }
}

/// The stream of that name, or a new one with these flags.
fn find_or_make(at: &File, dir: &Path, name: &str, flags: u32) -> Outcome<u64> {
    let mut made = None;
    for _ in 0..TRIES {
        match ccfs_client::find_stream(at, name) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
            found => return found.map_err(|e| explain(dir, e)),
        }
        let id = match made {
            Some(id) => id,
            None => *made.insert(ccfs_client::new_stream(at, flags).map_err(|e| explain(dir, e))?),
        };
        match ccfs_client::name_stream(at, id, Some(name)) {
            // Another one made it in this moment.
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => {}
            named => return named.map(|()| id).map_err(|e| cannot_name(dir, name, e)),
        }
    }
    Err(Failure::new(
        1,
        format!(
            "{}: the stream called {name} comes and goes; try again",
            dir.display()
        ),
    ))
}

/// Why a stream could not get its name.
fn cannot_name(dir: &Path, name: &str, e: io::Error) -> Failure {
    match e.raw_os_error() {
        Some(libc::EEXIST) => Failure::new(
            1,
            format!(
                "{}: another stream of yours is called {name}",
                dir.display()
            ),
        ),
        _ => explain(dir, e),
    }
}

/// Enters the stream, so that the command and its children inherit it.
fn run_command(args: &StreamRunArgs) -> Outcome<u8> {
    let mut command = wrapped::command(&args.command)?;
    if args.direct {
        direct::lead(&mut command)?;
    }
    let at = open(&args.dir)?;
    let flags = if args.ignore_fsync {
        STREAM_IGNORE_FSYNC
    } else {
        0
    };
    let entered = match (&args.stream, &args.name) {
        (Some(stream), _) => {
            let id = find(stream, &at, &args.dir)?;
            ccfs_client::set_stream(&at, id, args.ignore_fsync.then_some(flags))
        }
        (None, Some(name)) => {
            let id = find_or_make(&at, &args.dir, name, flags)?;
            ccfs_client::set_stream(&at, id, args.ignore_fsync.then_some(flags))
        }
        (None, None) => ccfs_client::new_stream(&at, flags)
            .and_then(|id| ccfs_client::set_stream(&at, id, None)),
    };
    entered.map_err(|e| match (&args.stream, e.raw_os_error()) {
        (Some(StreamRef::Number(STREAM_DEFAULT)), Some(libc::EINVAL)) => Failure::new(
            1,
            "the default stream has no flags; leave out --stream to get a new stream",
        ),
        _ => explain(&args.dir, e),
    })?;
    if !args.sync {
        drop(at);
        match wrapped::become_it(command)? {}
    }
    let code = wrapped::wait_for(command)?;
    ccfs_client::stream_sync(&at, 0).map_err(|e| explain(&args.dir, e))?;
    Ok(code)
}

fn enter(args: &StreamEnterArgs) -> Outcome<u8> {
    let at = open(&args.dir)?;
    let id = find(&args.stream, &at, &args.dir)?;
    ccfs_client::set_stream(&at, id, None).map_err(|e| explain(&args.dir, e))?;
    drop(at);
    let shell = || {
        let named = std::env::var_os("SHELL").filter(|s| !s.is_empty());
        Command::new(named.unwrap_or_else(|| "/bin/sh".into()))
    };
    let command = match args.command.is_empty() {
        true => shell(),
        false => wrapped::command(&args.command)?,
    };
    match wrapped::become_it(command)? {}
}

fn new(args: &StreamNewArgs) -> Outcome<()> {
    let flags = if args.ignore_fsync {
        STREAM_IGNORE_FSYNC
    } else {
        0
    };
    let at = open(&args.dir)?;
    let id = ccfs_client::new_stream(&at, flags).map_err(|e| explain(&args.dir, e))?;
    if let Some(name) = &args.name {
        ccfs_client::name_stream(&at, id, Some(name))
            .map_err(|e| cannot_name(&args.dir, name, e))?;
    }
    if args.json {
        return print_json(&shown(id, flags));
    }
    say!("{id}");
    Ok(())
}

/// Schema in docs/json.md.
#[derive(Serialize)]
struct Shown {
    schema: u32,
    stream: u64,
    default: bool,
    ignore_fsync: bool,
}

fn shown(id: u64, flags: u32) -> Shown {
    Shown {
        schema: 1,
        stream: id,
        default: id == STREAM_DEFAULT,
        ignore_fsync: flags & STREAM_IGNORE_FSYNC != 0,
    }
}

fn show(args: &StreamShowArgs) -> Outcome<()> {
    let word = args.what.as_deref();
    let pid = word
        .and_then(|w| w.to_str())
        .and_then(|w| w.parse::<u32>().ok());
    let dir = match (pid, word, &args.on) {
        (None, Some(_), Some(_)) => {
            return Err(Failure::new(2, "--on is for PID; give the directory once"));
        }
        (None, Some(dir), None) => PathBuf::from(dir),
        (_, _, Some(dir)) => dir.clone(),
        (_, _, None) => ".".into(),
    };
    // PID alone does not say on which volume.
    let explain = |dir: &Path, e: io::Error| {
        let named = e.kind() != io::ErrorKind::Unsupported || pid.is_none() || args.on.is_some();
        let mut failure = explain(dir, e);
        failure.text += if named { "" } else { ": --on DIR" };
        failure
    };
    let at = open(&dir)?;
    let stream = match pid {
        None => ccfs_client::get_stream(at).map_err(|e| explain(&dir, e))?,
        Some(pid) => {
            ccfs_client::stream_of_process(at, pid).map_err(|e| match e.raw_os_error() {
                Some(libc::ESRCH) => Failure::new(1, format!("there is no process {pid}")),
                Some(libc::EPERM) => {
                    Failure::new(1, format!("process {pid} is another user's; ask as root"))
                }
                _ => explain(&dir, e),
            })?
        }
    };
    let shown = shown(stream.id, stream.flags);
    if args.json {
        return print_json(&shown);
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

/// Joins what the engine knows of streams (what is pending) with what the mount knows (whose they are).
fn list(args: &StreamListArgs) -> Outcome<()> {
    let text = ccfs_client::status_json(open(&args.dir)?).map_err(|e| explain(&args.dir, e))?;
    let status: Value = serde_json::from_str(&text)
        .map_err(|e| Failure::new(1, format!("the daemon's status is no JSON: {e}")))?;
    let array = |name: &str| status[name].as_array().cloned().unwrap_or_default();
    let id_of = |entry: &Value| entry["id"].as_u64().unwrap_or(0);
    let mut streams: BTreeMap<u64, Value> = BTreeMap::new();
    for pending in array("streams") {
        streams.insert(id_of(&pending), pending);
    }
    let owners: BTreeMap<u64, Value> = array("stream_owners")
        .into_iter()
        .map(|owner| (id_of(&owner), owner))
        .collect();
    for id in owners.keys() {
        streams.entry(*id).or_insert(Value::Null);
    }
    let none = json!({});
    let list: Vec<Value> = streams
        .iter()
        .map(|(id, pending)| {
            let owner = owners.get(id).unwrap_or(&none);
            json!({
                "id": id,
                "name": owner["name"],
                "uid": owner["uid"],
                "ignore_fsync": owner["ignore_fsync"].as_bool().unwrap_or(false),
                "running_operations": pending["running_operations"].as_u64().unwrap_or(0),
                "running_bytes": pending["running_bytes"].as_u64().unwrap_or(0),
                "age_ms": pending["age_ms"].as_u64().unwrap_or(0),
                "committing": pending["committing"].as_u64().unwrap_or(0),
            })
        })
        .collect();
    if args.json {
        return print_json(&json!({ "schema": 1, "streams": list }));
    }
    let head = ["stream", "uid", "operations", "bytes", "age s", "name"];
    let mut rows = vec![head.map(String::from)];
    rows.extend(list.iter().map(|s| {
        let age = s["age_ms"].as_u64().unwrap_or(0) as f64 / 1000.0;
        let name = s["name"].as_str().unwrap_or("");
        let named = match s["ignore_fsync"] == true {
            true => format!("{name} (ignores fsync)"),
            false => name.to_string(),
        };
        [
            s["id"].to_string(),
            s["uid"].as_u64().map_or("-".into(), |uid| uid.to_string()),
            s["running_operations"].to_string(),
            s["running_bytes"].to_string(),
            format!("{age:.1}"),
            named.trim_start().to_string(),
        ]
    }));
    for line in aligned(&rows) {
        say!("{line}");
    }
    Ok(())
}

/// Columns of numbers, each as wide as its widest cell; the last one is text.
fn aligned<const N: usize>(rows: &[[String; N]]) -> Vec<String> {
    let widths: [usize; N] =
        std::array::from_fn(|n| rows.iter().map(|row| row[n].len()).max().unwrap_or(0));
    let line = |row: &[String; N]| {
        let cell = |n: usize| match n + 1 < N {
            true => format!("{:>1$}", row[n], widths[n]),
            false => row[n].clone(),
        };
        let cells: Vec<String> = (0..N).map(cell).collect();
        cells.join("  ").trim_end().to_string()
    };
    rows.iter().map(line).collect()
}

fn sync(args: &StreamSyncArgs) -> Outcome<()> {
    let at = open(&args.dir)?;
    let named = match &args.stream {
        Some(stream) => Some(find(stream, &at, &args.dir)?),
        None => None,
    };
    let synced = match args.all {
        true => ccfs_client::sync_volume(&at),
        false => ccfs_client::stream_sync(&at, named.unwrap_or(0)),
    };
    synced.map_err(|e| explain(&args.dir, e))?;
    if !args.json {
        return Ok(());
    }
    if args.all {
        return print_json(&json!({ "schema": 1, "stream": null, "synced": true }));
    }
    let stream = match named {
        Some(id) => id,
        None => {
            ccfs_client::get_stream(&at)
                .map_err(|e| explain(&args.dir, e))?
                .id
        }
    };
    print_json(&json!({ "schema": 1, "stream": stream, "synced": true }))
}
