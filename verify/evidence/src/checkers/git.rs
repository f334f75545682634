//! A Git repository, by Git.
use super::{Finding, Judged, Known, Ran, damaged, lost, tool};
use std::ffi::OsStr;
use std::path::Path;

fn git(path: &Path, args: &[&str], input: &str) -> Result<Ran, Finding> {
    // A configuration of the machine or of a user has no say, and who runs the check need not be the owner.
    let own = [
        "-c",
        "safe.directory=*",
        "-c",
        "user.name=ccfs crash check",
        "-c",
        "user.email=ccfs@localhost",
        "-C",
    ];
    let own = own.map(OsStr::new);
    let args: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
    let all = [&own[..], &[path.as_os_str()], &args].concat();
    tool("git", "git", &all, input)
}

/// After removing locks, as one does after any killed Git: `git fsck` finds nothing, HEAD still names a commit, the repository takes an
/// object and a reference, and commits that marks answered for are in a branch or tag.
pub fn check(path: &Path, known: &Known) -> Judged {
    let (shown, at) = (path.display(), known.at(path));
    let there = at.join(".git").exists() || at.join("HEAD").exists();
    if there {
        whole(path, known)?;
    } else if known.always_had(&path.join(".git")) || known.always_had(&path.join("HEAD")) {
        return damaged(format!("{shown} is no Git repository any more"));
    }
    for commit in known.answered("commit") {
        let has = ["for-each-ref", "--count=1", "--contains", commit];
        if !there || git(&at, &has, "")?.out.is_empty() {
            return lost(shown, &format!("commit {commit}"));
        }
    }
    Ok(())
}

fn whole(path: &Path, known: &Known) -> Judged {
    let (shown, at) = (path.display(), &known.at(path));
    let bad = |what: &str, ran: &Ran| damaged(format!("{shown}: {what}: {}", ran.complaint()));
    let git_dir = match at.join(".git").is_dir() {
        true => at.join(".git"),
        false => at.to_path_buf(),
    };
    remove_locks(&git_dir);
    let checked = git(
        at,
        &[
            "fsck",
            "--full",
            "--strict",
            "--no-dangling",
            "--no-progress",
        ],
        "",
    )?;
    if !checked.ok {
        return bad("git fsck", &checked);
    }
    let head = ["rev-parse", "-q", "--verify", "HEAD^{commit}"];
    let had = |tree: &Option<std::path::PathBuf>| match tree {
        Some(tree) => git(&tree.join(path), &head, "").map(|ran| ran.ok),
        None => Ok(false),
    };
    let now = git(at, &head, "")?;
    if !now.ok && had(&known.before)? && had(&known.after)? {
        return damaged(format!("{shown}: HEAD names no commit"));
    }
    if git_dir != *at {
        let status = git(at, &["status", "--porcelain"], "")?;
        if !status.ok {
            return bad("git status", &status);
        }
    }
    let object = git(at, &["hash-object", "-w", "--stdin"], "ccfs crash check")?;
    if !object.ok {
        return bad("it takes no object", &object);
    }
    let name = "refs/ccfs/crash-check";
    let named = git(at, &["update-ref", name, &object.out], "")?;
    if !named.ok {
        return bad("it takes no reference", &named);
    }
    git(at, &["update-ref", "-d", name], "").map(drop)
}

fn remove_locks(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            remove_locks(&path);
        } else if path.extension().is_some_and(|e| e == "lock") {
            let _ = std::fs::remove_file(path);
        }
    }
}
