//! Parts of the documents as manual pages: what is written once is in both. Knows what the documents use: headings, paragraphs, lists, tables and
//! blocks of code.

/// The chapter under a heading of this level and text, without the heading.
pub fn chapter<'d>(document: &'d str, heading: &str) -> &'d str {
    let level = heading.bytes().take_while(|b| *b == b'#').count();
    let ends = |line: &str| {
        let of_line = line.bytes().take_while(|b| *b == b'#').count();
        (1..=level).contains(&of_line) && line.as_bytes().get(of_line) == Some(&b' ')
    };
    let Some(start) = document.find(&format!("{heading}\n")) else {
        return "";
    };
    let body = &document[start + heading.len() + 1..];
    let mut end = 0;
    let mut in_code = false;
    for line in body.split_inclusive('\n') {
        in_code ^= line.starts_with("```");
        if !in_code && ends(line) {
            break;
        }
        end += line.len();
    }
    &body[..end]
}

/// The cells of the rows of all tables in a text, without their heads.
pub fn rows(text: &str) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let mut in_body = false;
    for line in text.lines() {
        match line.strip_prefix('|') {
            None => in_body = false,
            Some(rest) if rest.starts_with("--") => in_body = true,
            Some(rest) if in_body => rows.push(cells(rest)),
            Some(_) => {}
        }
    }
    rows
}

fn cells(row: &str) -> Vec<String> {
    let row = row.trim().trim_end_matches('|').replace("\\|", "\u{1}");
    row.split('|')
        .map(|cell| cell.trim().replace('\u{1}', "|"))
        .collect()
}

/// A text as roff. Headings become sections below the page's.
pub fn roff(text: &str) -> String {
    let mut out = String::new();
    let mut lines = text.lines().peekable();
    let mut paragraph: Vec<&str> = Vec::new();
    while let Some(line) = lines.next() {
        let is_text = !(line.is_empty()
            || line.starts_with(['|', '#'])
            || line.starts_with("```")
            || line.starts_with("* ")
            || line.starts_with("<!--"));
        if is_text {
            paragraph.push(line.trim());
            continue;
        }
        flush(&mut paragraph, &mut out);
        if let Some(title) = line.strip_prefix('#') {
            out += &format!(".SS {}\n", words(title.trim_start_matches('#').trim()));
        } else if line.starts_with("```") {
            out += ".PP\n.nf\n.RS\n";
            for code in lines.by_ref().take_while(|l| !l.starts_with("```")) {
                out += &format!("{}\n", plain(code));
            }
            out += ".RE\n.fi\n";
        } else if let Some(first) = line.strip_prefix("* ") {
            let mut item = vec![first];
            while let Some(more) = lines.next_if(|l| l.starts_with("  ")) {
                item.push(more.trim());
            }
            out += &format!(".IP \\(bu 2\n{}\n", words(&item.join(" ")));
        } else if line.starts_with('|') {
            let mut table = vec![line];
            while let Some(more) = lines.next_if(|l| l.starts_with('|')) {
                table.push(more);
            }
            for row in rows(&table.join("\n")) {
                out += &entry(&row);
            }
        }
    }
    flush(&mut paragraph, &mut out);
    out
}

/// The first cell with the others behind it.
pub fn entry(row: &[String]) -> String {
    let (first, rest) = row
        .split_first()
        .map_or(("", &[][..]), |(f, r)| (f.as_str(), r));
    let rest: Vec<&str> = rest
        .iter()
        .map(String::as_str)
        .filter(|c| !c.is_empty())
        .collect();
    format!(".TP\n{}\n{}\n", words(first), words(&rest.join(": ")))
}

fn flush(paragraph: &mut Vec<&str>, out: &mut String) {
    if !paragraph.is_empty() {
        *out += &format!(".PP\n{}\n", words(&paragraph.join(" ")));
        paragraph.clear();
    }
}

/// Text that roff leaves as it is.
pub fn plain(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    match text.starts_with(['.', '\'']) {
        true => format!("\\&{text}"),
        false => text,
    }
}

/// A line of text: `code` is bold, *emphasis* italic, of a link its text is left.
pub fn words(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['`', '[', '*']) {
        out += &plain_inside(&rest[..at]);
        let tail = &rest[at + 1..];
        if rest[at..].starts_with('*') {
            let word = tail.split_once('*').filter(|(word, _)| {
                !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || c == ' ')
            });
            match word {
                Some((word, after)) => {
                    out += &format!("\\fI{word}\\fR");
                    rest = after;
                }
                None => {
                    out.push('*');
                    rest = tail;
                }
            }
        } else if rest[at..].starts_with('`') {
            let (code, after) = tail.split_once('`').unwrap_or((tail, ""));
            out += &format!("\\fB{}\\fR", plain_inside(code));
            rest = after;
        } else if let Some((shown, after)) = tail.split_once("](")
            && !shown.contains('[')
            && let Some((_, after)) = after.split_once(')')
        {
            out += &words(shown);
            rest = after;
        } else {
            out.push('[');
            rest = tail;
        }
    }
    out += &plain_inside(rest);
    match out.starts_with(['.', '\'']) {
        true => format!("\\&{out}"),
        false => out,
    }
}

fn plain_inside(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "# Title\n\n## One\n\nSome `code-x` and\n[a link](x.md#y).\n\n* first\n  goes on\n* second\n\n### Below\n\n\
        | a | b |\n|---|---|\n| `x\\|y` | z |\n\n```sh\n# no heading\n.dot\n```\n\n## Two\n\nother\n";

    #[test]
    fn chapters_end_where_the_next_begins() {
        assert!(chapter(DOCUMENT, "## One").contains("# no heading"));
        assert!(!chapter(DOCUMENT, "## One").contains("other"));
        assert_eq!(chapter(DOCUMENT, "## Two"), "\nother\n");
        assert_eq!(chapter(DOCUMENT, "## Three"), "");
        assert_eq!(rows(DOCUMENT), [["`x|y`", "z"]]);
    }

    #[test]
    fn documents_become_roff() {
        let made = roff(chapter(DOCUMENT, "## One"));
        for part in [
            ".PP\nSome \\fBcode\\-x\\fR and a link.\n",
            ".IP \\(bu 2\nfirst goes on\n.IP \\(bu 2\nsecond\n",
            ".SS Below\n",
            ".TP\n\\fBx|y\\fR\nz\n",
            ".nf\n.RS\n# no heading\n\\&.dot\n.RE\n.fi\n",
        ] {
            assert!(made.contains(part), "{part:?} is not in {made:?}");
        }
        assert_eq!(words("a [b] c"), "a [b] c");
        assert_eq!(words(".x"), "\\&.x");
        assert_eq!(words("a *word* of 2 * 3"), "a \\fIword\\fR of 2 * 3");
    }
}
