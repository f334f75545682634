//! How a check fails: what is shown of it, and which failures are of one kind.
use crate::run::Ended;

/// Longest line that is shown, and longest mask, characters.
const LINE_MAX: usize = 160;
/// Exit codes of a shell that could not start a command.
const NOT_STARTED: [i32; 2] = [126, 127];

/// How an image, or a state, is inconsistent.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The telling line, for people.
    pub line: String,
    /// All that the check said.
    pub text: String,
    /// Equal for failures of one kind.
    pub(crate) kind: Mask,
    /// The check's exit code, if it had one.
    pub(crate) code: Option<i32>,
}

/// A line without what differs from image to image: numbers, hashes, temporary names. It groups failures and is never shown.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Mask(String);

impl Failure {
    /// Whether two differ in numbers, hashes and temporary names at most.
    pub(crate) fn is_like(&self, other: &Failure) -> bool {
        self.kind == other.kind
    }

    /// From a line that says what is wrong.
    pub(crate) fn of(line: &str) -> Failure {
        Failure {
            line: line.chars().take(LINE_MAX).collect(),
            text: line.to_string(),
            kind: Mask::of(line),
            code: None,
        }
    }
}

/// What a check's end says; `None`: consistent.
pub(crate) fn judge(ended: &Ended) -> Option<Failure> {
    if ended.ok() {
        return None;
    }
    if ended.timed_out {
        return Some(Failure::of("the check did not end in time"));
    }
    let line = telling_line(&ended.text);
    let code = ended
        .code
        .map_or("a signal".to_string(), |c| format!("exit code {c}"));
    Some(Failure {
        text: ended.text.clone(),
        code: ended.code,
        ..Failure::of(line.unwrap_or(&code))
    })
}

/// Where the shell found no command in any of the outcomes it was the check that failed, and nothing was judged.
pub(crate) fn never_run<'a>(
    outcomes: impl Iterator<Item = Option<&'a Failure>>,
) -> Option<&'a Failure> {
    let mut first = None;
    for outcome in outcomes {
        let not_started = |f: &&Failure| f.code.is_some_and(|c| NOT_STARTED.contains(&c));
        first = Some(outcome.filter(not_started)?);
    }
    first
}

/// The first line that speaks of an error, else the last one.
fn telling_line(text: &str) -> Option<&str> {
    let mut lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
    let words = ["error", "fatal", "abort", "corrupt", "damaged", "missing"];
    let tells = |line: &&str| words.iter().any(|w| line.to_lowercase().contains(w));
    lines.clone().find(tells).or(lines.next_back())
}

impl Mask {
    fn of(line: &str) -> Mask {
        let mut out = String::new();
        for word in line.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
            let (body, tail) = match word.char_indices().last() {
                Some((at, c)) if !c.is_ascii_alphanumeric() => word.split_at(at),
                _ => (word, ""),
            };
            let is_hex = body.chars().all(|c| c.is_ascii_hexdigit());
            if (body.len() >= 7 && is_hex) || body.chars().any(|c| c.is_ascii_digit()) {
                if !out.ends_with("N") && !out.ends_with("N/") {
                    out.push('N');
                }
            } else if body.len() == 2 && tail == "/" && is_hex {
                out.push('N');
            } else {
                out.push_str(body);
            }
            out.push_str(tail);
        }
        Mask(out.chars().take(LINE_MAX).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(code: i32, text: &str) -> Ended {
        Ended {
            code: Some(code),
            timed_out: false,
            text: text.into(),
        }
    }

    #[test]
    fn equal_failures_are_of_one_kind() {
        let a = Mask::of("error: object file .git/objects/7f/3a4bd812ec is empty");
        let b = Mask::of("error: object file .git/objects/ab/dd00923412 is empty");
        assert_eq!(a, b);
        assert_ne!(a, Mask::of("fatal: loose object is corrupt"));
        assert_eq!(Mask::of("row 17 of 90"), Mask::of("row 4 of 101"));
    }

    #[test]
    fn what_is_shown_is_what_was_said() {
        let shown = |code, text| judge(&ended(code, text)).unwrap().line;
        assert_eq!(shown(3, ""), "exit code 3");
        let said = "reading db\nerror 5 of cafe1234 (os error 2)\nbye";
        assert_eq!(shown(1, said), "error 5 of cafe1234 (os error 2)");
        assert!(judge(&ended(0, "error")).is_none());
    }

    #[test]
    fn a_check_that_never_ran_judged_nothing() {
        let of = |codes: &[i32]| {
            let all: Vec<_> = codes.iter().map(|c| judge(&ended(*c, "x"))).collect();
            never_run(all.iter().map(Option::as_ref)).is_some()
        };
        assert!(of(&[127, 126]) && of(&[127]));
        // A program that a crash has lost is missing in some images.
        assert!(!of(&[127, 0]) && !of(&[0, 127]) && !of(&[127, 1]) && !of(&[]));
    }
}
