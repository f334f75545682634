//! The user manual: all files of docs/using.
use std::path::Path;

/// A file of the manual.
pub struct Page {
    /// From the top of the sources.
    pub name: String,
    pub text: String,
}

/// All files, in the order of their names.
pub fn pages() -> Vec<Page> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let entries = std::fs::read_dir(top.join("docs/using")).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .map(|name| format!("docs/using/{name}"))
        .collect();
    names.sort();
    let read = |name: String| Page {
        text: std::fs::read_to_string(top.join(&name)).unwrap(),
        name,
    };
    names.into_iter().map(read).collect()
}

/// The whole manual.
pub fn text() -> String {
    let texts: Vec<String> = pages().into_iter().map(|page| page.text).collect();
    texts.join("\n")
}

/// What stands below the heading `## TITLE`, up to the next heading of its rank. There is one of this title.
pub fn chapter(title: &str) -> String {
    let heading = format!("\n## {title}\n");
    let pages = pages();
    let mut found = pages.iter().flat_map(|p| p.text.split(&heading).skip(1));
    let rest = found
        .next()
        .unwrap_or_else(|| panic!("docs/using has no chapter \"{title}\""));
    assert!(found.next().is_none(), "docs/using has \"{title}\" twice");
    rest.split("\n## ").next().unwrap_or("").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chapters_end_at_the_next_one() {
        let options = chapter("Options of mount");
        assert!(options.contains("\n### Remounting\n"), "{options}");
        assert!(options.contains("| `commit=SECONDS` |"), "{options}");
        assert!(!options.contains("| `lazytime` |"), "{options}");
        assert!(text().len() > options.len());
    }
}
