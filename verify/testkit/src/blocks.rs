//! Blocks of code in documents, and the programs that stand in for others when they are run.
use crate::run::run;
use std::path::Path;
use std::process::{Command, Stdio};

/// A comment on the line before a block, which no reader of the rendered page sees, says with it why the block is not run.
const MARK: &str = "<!-- not run: ";

/// What stands between two fences.
pub struct Block {
    /// File and line where the block begins.
    pub place: String,
    /// What stands behind the first fence.
    pub language: String,
    /// The lines between the fences.
    pub text: String,
    /// Why it is not run.
    pub mark: Option<String>,
}

/// All blocks of a document, in their order. Panics if a block has no end, or a mark no block or no reason.
pub fn blocks(name: &str, text: &str) -> Vec<Block> {
    let mut out: Vec<Block> = Vec::new();
    let mut inside = false;
    let mut mark: Option<String> = None;
    for (number, line) in text.lines().enumerate() {
        if let Some(language) = line.strip_prefix("```") {
            if !inside {
                out.push(Block {
                    place: format!("{name}:{}", number + 1),
                    language: language.trim().to_string(),
                    text: String::new(),
                    mark: mark.take(),
                });
            }
            inside = !inside;
        } else if inside && let Some(block) = out.last_mut() {
            block.text += line;
            block.text += "\n";
        } else {
            assert!(mark.is_none(), "{name}:{number}: a mark of no block");
            mark = line.strip_prefix(MARK).map(|rest| {
                let reason = rest.strip_suffix("-->").unwrap_or("").trim();
                assert!(
                    !reason.is_empty(),
                    "{name}:{}: a mark without a reason",
                    number + 1
                );
                reason.to_string()
            });
        }
    }
    assert!(!inside, "{name}: a block without an end");
    out
}

/// A file with this content that can be executed; written by another process, which has closed it when this returns.
pub fn executable(path: &Path, text: &str) {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", r#"printf %s "$2" >"$1" && chmod 755 "$1""#, "sh"])
        .arg(path)
        .arg(text)
        .stdin(Stdio::null());
    let ran = run(&mut shell);
    assert_eq!(ran.code, 0, "{}: {}", path.display(), ran.err);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_places_languages_and_marks() {
        let text = "a\n```sh\nx\ny\n```\n<!-- not run: no need -->\n```\n```\n";
        let found = blocks("F", text);
        let shown: Vec<(&str, &str, &str, Option<&str>)> = found
            .iter()
            .map(|b| {
                let mark = b.mark.as_deref();
                (b.place.as_str(), b.language.as_str(), b.text.as_str(), mark)
            })
            .collect();
        let expected = [
            ("F:2", "sh", "x\ny\n", None),
            ("F:7", "", "", Some("no need")),
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    #[should_panic(expected = "a mark of no block")]
    fn a_mark_stands_before_its_block() {
        blocks("F", "<!-- not run: no need -->\n\n```sh\n```\n");
    }
}
