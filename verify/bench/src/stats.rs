//! Medians, whether two systems differ at all, and latencies.
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The runs of one workload on one system, operations per second.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    sorted: Vec<f64>,
}

impl Sample {
    /// `None` without a single run.
    pub fn new(mut runs: Vec<f64>) -> Option<Sample> {
        runs.sort_by(f64::total_cmp);
        (!runs.is_empty()).then_some(Sample { sorted: runs })
    }

    pub fn median(&self) -> f64 {
        let n = self.sorted.len();
        (self.sorted[(n - 1) / 2] + self.sorted[n / 2]) / 2.0
    }

    pub fn min(&self) -> f64 {
        self.sorted[0]
    }

    pub fn max(&self) -> f64 {
        self.sorted[self.sorted.len() - 1]
    }

    /// Distance of the slowest and the fastest run as a share of the median.
    pub fn spread(&self) -> f64 {
        if self.median() == 0.0 {
            return 0.0;
        }
        (self.max() - self.min()) / self.median()
    }

    /// What these runs say about this system against another.
    pub fn against(&self, other: &Sample) -> Verdict {
        if self.sorted.len() < 2 || other.sorted.len() < 2 {
            return Verdict::Unknown;
        }
        let ratio = self.median() / other.median();
        let near = (ratio - 1.0).abs() < DIFFERENCE_MIN;
        if near || (self.min() <= other.max() && other.min() <= self.max()) {
            Verdict::Same
        } else if ratio > 1.0 {
            Verdict::Faster
        } else {
            Verdict::Slower
        }
    }
}

/// Medians that are nearer than this are called equal, whatever the ranges: 3 %.
const DIFFERENCE_MIN: f64 = 0.03;

/// Whether two systems differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    #[serde(rename = "faster")]
    Faster,
    #[serde(rename = "slower")]
    Slower,
    /// The ranges overlap, or the medians are within 3 %: which one is faster cannot be told from these runs.
    #[serde(rename = "no difference")]
    Same,
    /// One run tells nothing about noise.
    #[serde(rename = "one run")]
    Unknown,
}

impl Verdict {
    pub fn text(self) -> &'static str {
        match self {
            Verdict::Faster => "faster",
            Verdict::Slower => "slower",
            Verdict::Same => "no difference",
            Verdict::Unknown => "one run",
        }
    }
}

/// Buckets of [`Latencies`] for each doubling.
const STEPS: usize = 8;
/// Doublings, from 128 ns on: more than an hour.
const DOUBLINGS: usize = 36;
const FIRST_NS: f64 = 128.0;

/// How long single operations took, in buckets that grow by a twelfth (9 %).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Latencies {
    counts: Vec<u64>,
    max: Duration,
}

impl Latencies {
    pub fn add(&mut self, took: Duration) {
        if self.counts.is_empty() {
            self.counts = vec![0; STEPS * DOUBLINGS];
        }
        let doublings = (took.as_nanos() as f64 / FIRST_NS).max(1.0).log2();
        let at = ((doublings * STEPS as f64) as usize).min(self.counts.len() - 1);
        self.counts[at] += 1;
        self.max = self.max.max(took);
    }

    pub fn merge(&mut self, other: &Latencies) {
        if self.counts.is_empty() {
            self.counts.clone_from(&other.counts);
        } else {
            let pairs = self.counts.iter_mut().zip(&other.counts);
            pairs.for_each(|(mine, theirs)| *mine += theirs);
        }
        self.max = self.max.max(other.max);
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub fn max_us(&self) -> f64 {
        self.max.as_nanos() as f64 / 1e3
    }

    /// Upper end of a bucket.
    fn end_us(bucket: usize) -> f64 {
        FIRST_NS * 2f64.powf((bucket + 1) as f64 / STEPS as f64) / 1e3
    }

    /// The latency that this share of all does not exceed, up to a bucket's width; 0 without any.
    pub fn quantile_us(&self, share: f64) -> f64 {
        let wanted = (self.count() as f64 * share).ceil().max(1.0) as u64;
        let mut below = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            below += count;
            if below >= wanted {
                return Self::end_us(bucket).min(self.max_us());
            }
        }
        0.0
    }

    /// The buckets that have something, by their upper ends in microseconds.
    pub fn buckets(&self) -> Vec<(f64, u64)> {
        let all = self.counts.iter().enumerate();
        all.filter(|(_, count)| **count > 0)
            .map(|(bucket, count)| (Self::end_us(bucket), *count))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_keep_their_quantiles() {
        let mut all = Latencies::default();
        assert_eq!((all.count(), all.quantile_us(0.5)), (0, 0.0));
        for us in 1..=1000 {
            all.add(Duration::from_micros(us));
        }
        for (share, us) in [(0.5, 500.0), (0.99, 990.0), (0.001, 1.0)] {
            let got = all.quantile_us(share);
            assert!(got >= us && got <= us * 1.1, "{share}: {got}");
        }
        assert_eq!((all.quantile_us(1.0), all.max_us()), (1000.0, 1000.0));
        let mut twice = all.clone();
        twice.merge(&all);
        assert_eq!(twice.count(), 2000);
        assert_eq!(twice.quantile_us(0.5), all.quantile_us(0.5));
        let sum: u64 = all.buckets().iter().map(|(_, n)| n).sum();
        assert_eq!(sum, 1000);
        // The shortest and the longest have a place too.
        all.add(Duration::ZERO);
        all.add(Duration::from_secs(100_000));
        assert_eq!(all.count(), 1002);
    }

    fn sample(runs: &[f64]) -> Sample {
        Sample::new(runs.to_vec()).unwrap()
    }

    #[test]
    fn medians() {
        assert_eq!(sample(&[3.0, 1.0, 2.0]).median(), 2.0);
        assert_eq!(sample(&[4.0, 1.0]).median(), 2.5);
        assert_eq!(sample(&[8.0, 10.0, 13.0]).spread(), 0.5);
        assert_eq!(sample(&[0.0]).spread(), 0.0);
        assert!(Sample::new(vec![]).is_none());
    }

    #[test]
    fn overlapping_ranges_are_no_difference() {
        let verdict = |mine: &[f64], other: &[f64]| sample(mine).against(&sample(other));
        assert_eq!(verdict(&[1.0, 2.0, 5.0], &[4.0, 6.0]), Verdict::Same);
        assert_eq!(verdict(&[1.0, 9.0], &[4.0, 6.0]), Verdict::Same);
        assert_eq!(verdict(&[1.0, 2.0], &[3.0, 4.0]), Verdict::Slower);
        assert_eq!(verdict(&[3.0, 4.0], &[1.0, 2.0]), Verdict::Faster);
        // Apart, but hardly.
        assert_eq!(verdict(&[100.0, 100.1], &[101.0, 102.0]), Verdict::Same);
        // One run has no range.
        assert_eq!(verdict(&[1.0], &[3.0, 4.0]), Verdict::Unknown);
        assert_eq!(verdict(&[3.0, 4.0], &[1.0]), Verdict::Unknown);
    }
}
