//! Judges what is there after a crash: each stream's files are what a prefix of its requests leaves.

use super::load::{Record, Returned, Step, owner};
use crate::kill9::op::{How, Model, Op, Seen, data};
use std::collections::{BTreeMap, BTreeSet};

const PAGE: u64 = 4096;

/// What counts as an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Each request that the kernel makes of a write (C2). `max`: the largest, bytes.
    Request { max: u64, block: u64 },
    /// Each call: wrong, and to be seen where it is wrong.
    Call,
}

/// A stream's state that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Whole calls.
    pub calls: usize,
    /// Bytes of the next one, a write.
    pub part: u64,
}

/// Where the requests of a write end that took the first `taken` of its bytes. The kernel gathers pages up to the largest request, but one of
/// which only a part is written, and that it does not hold, ends its request.
fn ends(at: u64, taken: u64, unit: Unit) -> Vec<u64> {
    let Unit::Request { max, .. } = unit else {
        return vec![taken];
    };
    let page_end = (PAGE - at % PAGE) % PAGE;
    let mut ends: BTreeSet<u64> = [taken].into();
    for first in [0, page_end] {
        let mut end = first;
        while end < taken {
            ends.insert(end);
            end += max;
        }
    }
    ends.remove(&0);
    ends.into_iter().collect()
}

/// Pieces of a step that are there or not, the earlier before the later: an operation and how many of its bytes it took in all.
fn pieces(step: &Step, unit: Unit) -> Vec<(u64, u64)> {
    let (at, len) = match &step.op {
        _ if step.returned == Returned::Full => return vec![],
        Op::Write { at, len, how, .. } if *how == How::Cached => (at, len),
        // A direct one too: a full volume takes all of it or nothing.
        _ => return vec![(0, step.op.data_len())],
    };
    let mut ends = match step.returned {
        Returned::Full => vec![],
        Returned::Done(taken) => ends(*at, taken, unit),
        Returned::Nothing => ends(*at, *len, unit),
    };
    // One that nobody heard of any more may have been cut at any block.
    if let (Returned::Nothing, Unit::Request { block, .. }) = (step.returned, unit) {
        let first = block - at % block;
        ends.extend((first..*len).step_by(block as usize));
        ends.sort_unstable();
        ends.dedup();
    }
    let starts: Vec<u64> = [0].into_iter().chain(ends.iter().copied()).collect();
    starts
        .into_iter()
        .zip(ends)
        .filter(|(a, b)| a < b)
        .collect()
}

/// Applies bytes `[from, to)` of a step, or all of it if it is no write.
fn apply(model: &mut Model, step: &Step, bytes: &[u8], (from, to): (u64, u64)) -> Vec<String> {
    match &step.op {
        Op::Write { path, at, .. } => {
            let part = Op::Write {
                path: path.clone(),
                at: at + from,
                len: to - from,
                how: How::Cached,
            };
            model.apply(&part, &bytes[from as usize..to as usize])
        }
        op => model.apply(op, bytes),
    }
}

/// The stream's files of what was found.
pub fn own(seen: &BTreeMap<String, Seen>, stream: usize) -> BTreeMap<&str, &Seen> {
    let mine = seen
        .iter()
        .filter(|(path, s)| owner(path, s.kind) == Some(stream));
    mine.map(|(path, s)| (path.as_str(), s)).collect()
}

/// All states of the stream that show what was found. An error tells of the nearest one.
pub fn fits(record: &Record, seen: &BTreeMap<&str, &Seen>, unit: Unit) -> Result<Vec<Fit>, String> {
    let found = fits_of(record, &record.steps, seen, unit);
    if let (Err(_), Some(steps), Unit::Request { .. }) = (&found, cut_by_the_crash(record), unit)
        && let Ok(fits) = fits_of(record, &steps, seen, unit)
    {
        return Ok(fits);
    }
    found
}

/// The steps, where the last write before the volume was gone may have been cut by just that: the kernel returns what the requests before
/// have written, and of the one that was under way nobody knows.
fn cut_by_the_crash(record: &Record) -> Option<Vec<Step>> {
    let gone = |s: &Step| s.returned == Returned::Nothing;
    let left = record.steps.iter().rposition(|s| !gone(s))?;
    let mut steps = record.steps[..=left].to_vec();
    let last = steps.last_mut()?;
    match last.returned {
        Returned::Done(n) if n < last.op.data_len() && matches!(last.op, Op::Write { .. }) => {
            last.returned = Returned::Nothing;
            Some(steps)
        }
        _ => None,
    }
}

fn fits_of(
    record: &Record,
    steps: &[Step],
    seen: &BTreeMap<&str, &Seen>,
    unit: Unit,
) -> Result<Vec<Fit>, String> {
    let mut model = Model::default();
    let mut wrong: BTreeSet<String> = seen.keys().map(|p| p.to_string()).collect();
    let (mut all, mut nearest) = (Vec::new(), (usize::MAX, 0, String::new()));
    let settings = &record.settings;
    let mut note = |fit: Fit, wrong: &BTreeSet<String>, model: &Model| {
        if wrong.is_empty() {
            all.push(fit);
        } else if wrong.len() < nearest.0 {
            let lines = wrong.iter().take(4);
            let lines: Vec<String> = lines
                .map(|p| model.explain(p, seen.get(p.as_str()).copied()))
                .collect();
            nearest = (wrong.len(), fit.calls, lines.join("\n  "));
        }
    };
    let start = Fit { calls: 0, part: 0 };
    note(start, &wrong, &model);
    for (n, step) in steps.iter().enumerate() {
        let bytes = data(settings.seed, settings.stream, n, step.op.data_len());
        let pieces = pieces(step, unit);
        let last = pieces.len();
        for (k, piece) in pieces.into_iter().enumerate() {
            for path in apply(&mut model, step, &bytes, piece) {
                match model.agrees(&path, seen.get(path.as_str()).copied()) {
                    true => wrong.remove(&path),
                    false => wrong.insert(path),
                };
            }
            let fit = match k + 1 == last {
                true => Fit {
                    calls: n + 1,
                    part: 0,
                },
                false => Fit {
                    calls: n,
                    part: piece.1,
                },
            };
            note(fit, &wrong, &model);
        }
        if last == 0 {
            let fit = Fit {
                calls: n + 1,
                part: 0,
            };
            note(fit, &wrong, &model);
        }
    }
    if all.is_empty() {
        let (count, n, lines) = nearest;
        let from = n.saturating_sub(6);
        let around: Vec<String> = (from..(n + 4).min(steps.len()))
            .map(|i| format!("{i}: {:?}", steps[i]))
            .collect();
        return Err(format!(
            "stream {} shows no prefix of its {} calls; nearest: the first {n}, {count} files differ:\n  {lines}\n  calls there:\n  {}",
            settings.stream,
            steps.len(),
            around.join("\n  ")
        ));
    }
    Ok(all)
}

/// Calls that survive any crash after the end of the load: up to the last sync that returned (C3).
pub fn synced(record: &Record) -> usize {
    let is_sync = |s: &Step| {
        matches!(s.op, Op::Fsync { .. } | Op::StreamSync) && matches!(s.returned, Returned::Done(_))
    };
    record.steps.iter().rposition(is_sync).map_or(0, |n| n + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::hash;
    use crate::kill9::full::load::Settings;
    use crate::kill9::op::Kind;

    #[test]
    fn requests_end_at_pages_and_at_the_largest_size() {
        let unit = Unit::Request {
            max: 8192,
            block: 1024,
        };
        assert_eq!(ends(0, 100, unit), [100]);
        assert_eq!(ends(0, 20_000, unit), [8192, 16_384, 20_000]);
        assert_eq!(ends(4000, 100, unit), [96, 100]);
        assert_eq!(ends(4000, 9000, unit), [96, 8192, 8288, 9000]);
        assert_eq!(ends(4000, 9000, Unit::Call), [9000]);
    }

    const UNIT: Unit = Unit::Request {
        max: 8192,
        block: 1024,
    };

    fn record(steps: &[(Op, Returned)]) -> Record {
        let step = |(op, returned): &(Op, Returned)| Step {
            op: op.clone(),
            returned: *returned,
        };
        Record {
            settings: Settings {
                seed: 7,
                stream: 0,
                seconds: 1.0,
                write_max: 1,
                size_max: 1,
                sync_percent: 0,
                killed: true,
            },
            steps: steps.iter().map(step).collect(),
            unexpected: None,
        }
    }

    /// A file that was made, and appended to by the given calls: what they wanted, what they returned.
    fn appended(calls: &[(u64, Returned)]) -> Record {
        let path = || String::from("s0/f1");
        let mode = 0o644;
        let mut steps = vec![(Op::Create { path: path(), mode }, Returned::Done(0))];
        let mut at = 0;
        for (len, returned) in calls {
            let op = Op::Write {
                path: path(),
                at,
                len: *len,
                how: How::Cached,
            };
            if let Returned::Done(n) = returned {
                at += n;
            }
            steps.push((op, *returned));
        }
        record(&steps)
    }

    /// What the checker says where of each call so many bytes are there.
    fn verdict(record: &Record, there: &[u64], unit: Unit) -> Result<Vec<Fit>, String> {
        let (mut content, calls) = (Vec::new(), &record.steps[1..]);
        for (n, (step, there)) in calls.iter().zip(there).enumerate() {
            let bytes = data(7, 0, n + 1, step.op.data_len());
            content.extend(&bytes[..*there as usize]);
        }
        let seen = Seen {
            kind: Kind::File,
            content: hash(&content),
            len: content.len() as u64,
            mode: 0o644,
            xattr: None,
            mtime: (0, 0),
            nlink: 1,
        };
        fits(record, &BTreeMap::from([("s0/f1", &seen)]), unit)
    }

    #[test]
    fn a_state_between_two_requests_of_a_call_is_legal_and_no_other() {
        let record = appended(&[(5000, Returned::Done(5000)), (9000, Returned::Done(9000))]);
        let (calls, part) = (2, 3192);
        let fit = |there: &[u64], unit| verdict(&record, there, unit).ok();
        // 5,000 bytes, and up to the end of the second page.
        assert_eq!(fit(&[5000, 3192], UNIT), Some(vec![Fit { calls, part }]));
        assert_eq!(fit(&[5000, 3192], Unit::Call), None);
        assert!(fit(&[5000, 0], Unit::Call).is_some() && fit(&[5000, 9000], Unit::Call).is_some());
        for wrong in [[5000, 3191], [5000, 1024], [4096, 0], [5000, 8999]] {
            assert_eq!(fit(&wrong, UNIT), None, "{wrong:?}");
        }
    }

    #[test]
    fn of_a_short_write_nothing_more_is_there_unless_the_crash_cut_it() {
        let short = (9000, Returned::Done(3192));
        let before = appended(&[
            (5000, Returned::Done(5000)),
            short,
            (10, Returned::Done(10)),
        ]);
        assert!(verdict(&before, &[5000, 3192, 10], UNIT).is_ok());
        assert!(verdict(&before, &[5000, 4096, 0], UNIT).is_err());
        // The second request had no answer, and may have been cut at a block.
        let last = appended(&[(5000, Returned::Done(5000)), short, (10, Returned::Nothing)]);
        for there in [3192, 3192 + 1024, 9000] {
            assert!(verdict(&last, &[5000, there], UNIT).is_ok(), "{there}");
        }
        assert!(verdict(&last, &[5000, 3500], UNIT).is_err());
        // What was refused is not there.
        let full = appended(&[(5000, Returned::Done(5000)), (9000, Returned::Full)]);
        assert!(verdict(&full, &[5000, 0], UNIT).is_ok());
        assert!(verdict(&full, &[5000, 3192], UNIT).is_err());
    }
}
