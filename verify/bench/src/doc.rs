//! Tables between markers of a document.
use crate::{Because, Result};
use ccfs_testkit::document::{marked, wrapped};
use std::path::Path;

fn marks(name: &str) -> (String, String) {
    (
        format!("<!-- ccfs bench: {name}: begin -->"),
        format!("<!-- ccfs bench: {name}: end -->"),
    )
}

/// What stands before and behind the table of `name`, with the markers.
///
/// Errors: the document cannot be read, or has no such markers.
pub fn parts(document: &Path, name: &str) -> Result<(String, String)> {
    let old = std::fs::read_to_string(document).because(document.display())?;
    let (begin, end) = marks(name);
    let Some(part) = marked(&old, &begin, &end) else {
        let shown = document.display();
        return Err(match old.contains(&begin) && old.contains(&end) {
            true => format!("{shown}: `{end}` comes first"),
            false => format!(
                "{shown}: there are no lines `{begin}` and `{end}`, between which the table belongs"
            ),
        });
    };
    Ok((part.before.to_string(), part.after.to_string()))
}

/// Puts `text` between the markers of `name`, in lines that are not too long.
///
/// Errors: as [`parts`], or the document cannot be written.
pub fn insert(document: &Path, name: &str, text: &str) -> Result<()> {
    let (head, tail) = parts(document, name)?;
    let new = format!("{head}\n\n{}\n\n{tail}", wrapped(text.trim()));
    std::fs::write(document, new).because(document.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_between_is_replaced_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("doc.md");
        let (begin, end) = marks("quick");
        std::fs::write(&path, format!("a\n\n{begin}\nold\n{end}\n\nb\n")).unwrap();
        insert(&path, "quick", "new\n").unwrap();
        insert(&path, "quick", "newer\n").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, format!("a\n\n{begin}\n\nnewer\n\n{end}\n\nb\n"));
        assert!(
            insert(&path, "other", "x")
                .unwrap_err()
                .contains("no lines")
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }
}
