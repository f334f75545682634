//! Errors of system calls as people read them.

use std::borrow::Cow;
use std::io;

const MARK: &str = " (os error ";

/// `text` without the numbers that the standard library puts behind what a system's error means: "No such file or directory", not
/// "No such file or directory (os error 2)". Other text in brackets stays, names of files too.
pub fn without_numbers(text: &str) -> Cow<'_, str> {
    let (mut kept, mut from) = (String::new(), 0);
    for (at, _) in text.match_indices(MARK) {
        let digits = text[at + MARK.len()..].split(')').next().unwrap_or("");
        let end = at + MARK.len() + digits.len() + 1;
        let is_of_error = digits.parse().is_ok_and(|number| {
            let said = io::Error::from_raw_os_error(number).to_string();
            text.get(..end).is_some_and(|text| text.ends_with(&said))
        });
        if is_of_error {
            kept += &text[from..at];
            from = end;
        }
    }
    match from {
        0 => Cow::Borrowed(text),
        _ => Cow::Owned(kept + &text[from..]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_errors_go_and_nothing_else() {
        let missing = io::Error::from_raw_os_error(libc::ENOENT);
        let denied = rustix::io::Errno::ACCESS;
        for (text, plain) in [
            (format!("a: {missing}"), "a: No such file or directory"),
            (
                format!("{missing}; {denied}, try sudo"),
                "No such file or directory; Permission denied, try sudo",
            ),
            ("x (os error 2)".into(), "x (os error 2)"),
            (
                "No such file or directory (os error 3)".into(),
                "No such file or directory (os error 3)",
            ),
            ("cut (os error 2".into(), "cut (os error 2"),
            ("odd (os error \u{fc})".into(), "odd (os error \u{fc})"),
            (String::new(), ""),
        ] {
            assert_eq!(without_numbers(&text), plain);
        }
    }
}
