//! Where results go. A measurement takes minutes to hours: what cannot be written afterwards is said before.
use crate::{Because, Result, doc};
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::Path;

/// Prints a line. A reader that has gone (`ccfs bench | head`) is no failure: files are still to be written.
pub fn say(line: impl Display) -> Result<()> {
    match writeln!(std::io::stdout(), "{line}") {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(format!("cannot write to stdout: {e}")),
        _ => Ok(()),
    }
}

/// Prints a line on stderr. Where that cannot be written there is nobody to tell.
pub fn warn(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Errors: one of the files cannot be written; nothing is changed.
pub fn check_files(files: &[Option<&Path>]) -> Result<()> {
    for file in files.iter().flatten() {
        let (mut new, mut old) = (OpenOptions::new(), OpenOptions::new());
        match new.write(true).create_new(true).open(file) {
            Ok(_) => std::fs::remove_file(file).because(file.display())?,
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                old.write(true).open(file).because(file.display())?;
            }
            Err(e) => return Err(format!("{}: {e}", file.display())),
        }
    }
    Ok(())
}

/// Errors: the document cannot be written, or has no place for this table.
pub fn check_document(document: Option<&Path>, name: &str) -> Result<()> {
    let Some(document) = document else {
        return Ok(());
    };
    doc::parts(document, name)?;
    check_files(&[Some(document)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_is_said_and_nothing_is_changed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("old"), "old").unwrap();
        check_files(&[Some(&at("new")), None, Some(&at("old"))]).unwrap();
        assert!(!at("new").exists());
        assert_eq!(std::fs::read(at("old")).unwrap(), b"old");
        for bad in ["nowhere/file", "."] {
            let why = check_files(&[Some(&at(bad))]).unwrap_err();
            assert!(why.contains(dir.path().to_str().unwrap()), "{why}");
        }
        check_document(None, "quick").unwrap();
        let why = check_document(Some(&at("old")), "quick").unwrap_err();
        assert!(why.contains("no lines"), "{why}");
    }
}
