//! Latencies, and what may become of them.
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// A 99th percentile may grow by this factor.
pub const RATIO_MAX: u64 = 10;
/// A quiet 99th percentile counts as this much at least: below it lies what a busy machine's scheduler does. So up to 200 ms are within.
pub const FLOOR: Duration = Duration::from_millis(20);
/// No time is asked of a syncfs, whose work is by promise (C3) what all others wrote before, nor of what only shows how busy the machine is.
const NOT_TIMED: [&str; 2] = ["syncfs", "(sleep 5 ms)"];

/// Latencies, nanoseconds.
#[derive(Default)]
pub struct Series(Vec<u64>);

impl Series {
    pub fn add(&mut self, nanos: u64) {
        self.0.push(nanos);
    }
    /// The latency that this share (percent) of the calls did not exceed; 0 without calls.
    fn percentile(&self, percent: usize) -> u64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100).max(1);
        sorted.get(rank - 1).copied().unwrap_or(0)
    }
    fn cells(&self) -> String {
        let [median, high, most] = [50, 99, 100].map(|p| ms(self.percentile(p)));
        format!("{} | {median} | {high} | {most}", self.0.len())
    }
}

/// One call of one user beside one attack.
#[derive(Default)]
pub struct Calls {
    pub quiet: Series,
    pub attacked: Series,
    /// How often by errno.
    pub errors: BTreeMap<i32, usize>,
}

impl Calls {
    /// The 99th percentile under the attack, as a multiple of the quiet one or of the floor.
    fn ratio(&self) -> f64 {
        let quiet = self.quiet.percentile(99).max(FLOOR.as_nanos() as u64);
        self.attacked.percentile(99) as f64 / quiet as f64
    }
}

/// All calls beside one attack: by user and call.
#[derive(Default)]
pub struct Table(BTreeMap<(&'static str, String), Calls>);

pub const HEAD: &str = "\
| attack | who | call | quiet: calls | median ms | 99 % | max | attacked: calls | median ms | 99 % | max | ratio | errors |
|---|---|---|---|---|---|---|---|---|---|---|---|---|";

impl Table {
    pub fn calls(&mut self, who: &'static str, call: &str) -> &mut Calls {
        self.0.entry((who, call.to_string())).or_default()
    }
    /// Rows of a table with the head `HEAD`.
    pub fn rows(&self, attack: &str) -> String {
        let mut text = String::new();
        for ((who, call), calls) in &self.0 {
            let (quiet, attacked) = (calls.quiet.cells(), calls.attacked.cells());
            let (ratio, errors) = (calls.ratio(), errors(&calls.errors));
            writeln!(
                text,
                "| {attack} | {who} | {call} | {quiet} | {attacked} | {ratio:.1} | {errors} |"
            )
            .expect("into a string");
        }
        text
    }
    /// What failed although it was somebody else who did something.
    pub fn errors(&self) -> Vec<String> {
        let bad = self.0.iter().filter(|(_, calls)| !calls.errors.is_empty());
        bad.map(|((who, call), calls)| format!("{who}: {call}: {}", errors(&calls.errors)))
            .collect()
    }
    /// What took too long.
    pub fn late(&self) -> Vec<String> {
        let timed = self
            .0
            .iter()
            .filter(|((_, call), _)| !NOT_TIMED.contains(&call.as_str()));
        let late = timed.filter(|(_, calls)| calls.ratio() > RATIO_MAX as f64);
        late.map(|((who, call), calls)| {
            let [quiet, attacked] = [&calls.quiet, &calls.attacked].map(|s| ms(s.percentile(99)));
            format!(
                "{who}: {call}: 99 % within {attacked} ms, quiet {quiet} ms: {:.0} times",
                calls.ratio()
            )
        })
        .collect()
    }
}

fn ms(nanos: u64) -> String {
    format!("{:.2}", nanos as f64 / 1e6)
}

fn errors(by_errno: &BTreeMap<i32, usize>) -> String {
    let name = |errno: i32| match errno {
        libc::EDQUOT => "EDQUOT".into(),
        libc::ENOSPC => "ENOSPC".into(),
        libc::ECANCELED => "ECANCELED".into(),
        libc::EAGAIN => "EAGAIN".into(),
        libc::EBUSY => "EBUSY".into(),
        libc::EIO => "EIO".into(),
        libc::EILSEQ => "wrong answer".into(),
        other => format!("errno {other}"),
    };
    let all = by_errno
        .iter()
        .map(|(errno, n)| format!("{n} x {}", name(*errno)));
    all.collect::<Vec<_>>().join(", ")
}
