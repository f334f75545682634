//! Parts of documents that programs make: what stands between two markers, in lines that are not too long.

/// A document in three.
#[derive(Debug, PartialEq, Eq)]
pub struct Marked<'a> {
    /// Up to the first marker, which is its end.
    pub before: &'a str,
    pub inside: &'a str,
    /// From the second marker on.
    pub after: &'a str,
}

/// `None`: a marker is missing, or `end` comes first.
pub fn marked<'a>(text: &'a str, begin: &str, end: &str) -> Option<Marked<'a>> {
    let (from, to) = (text.find(begin)? + begin.len(), text.find(end)?);
    Some(Marked {
        before: &text[..from],
        inside: text.get(from..to)?,
        after: &text[to..],
    })
}

/// Columns of a document's lines, outside tables and code blocks.
pub const COLUMNS_MAX: usize = 100;

/// Lines of at most 100 columns; rows of tables and single words stay whole.
pub fn wrapped(text: &str) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_in_their_order() {
        let found = marked("a [ b ] c", "[", "]").unwrap();
        assert_eq!(
            (found.before, found.inside, found.after),
            ("a [", " b ", "] c")
        );
        assert_eq!(marked("[]", "[", "]").unwrap().inside, "");
        for text in ["", "a [ b", "a ] b", "] a ["] {
            assert_eq!(marked(text, "[", "]"), None, "{text}");
        }
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
