//! Tables between markers of a document.
use crate::{Because, Result};
use ccfs_testkit::document::marked;
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

/// Columns of a document's lines, but for rows of tables.
const COLUMNS_MAX: usize = 100;

/// Lines of at most [`COLUMNS_MAX`] columns; rows of tables and single words stay whole.
fn wrapped(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(wrapped_line).collect();
    lines.join("\n")
}

fn wrapped_line(line: &str) -> String {
    if line.starts_with('|') {
        return line.to_string();
    }
    let indent = if line.starts_with("* ") { "  " } else { "" };
    let mut out = String::new();
    let mut columns = 0;
    for word in line.split_whitespace() {
        let length = word.chars().count();
        if columns == 0 {
            columns = length;
        } else if columns + 1 + length > COLUMNS_MAX {
            out.push('\n');
            out.push_str(indent);
            columns = indent.len() + length;
        } else {
            out.push(' ');
            columns += 1 + length;
        }
        out.push_str(word);
    }
    out
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

    #[test]
    fn lines_are_wrapped_and_rows_are_not() {
        let (row, words) = (format!("| {} |", "x ".repeat(99)), "word ".repeat(30));
        let text = format!("{}\n\n{row}\n* {}", words.trim(), words.trim());
        let out = wrapped(&text);
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines.len(), 2 + 1 + 1 + 2, "{out}");
        assert_eq!((lines[2], lines[3]), ("", row.as_str()));
        assert_eq!(lines[0].len(), COLUMNS_MAX - 1);
        assert!(lines[4].starts_with("* word") && lines[5].starts_with("  word"));
        assert_eq!(wrapped("short"), "short");
    }
}
