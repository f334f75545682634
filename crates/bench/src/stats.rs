//! Medians, and whether two systems differ at all.

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

    /// The ranges overlap: which one is faster cannot be told from these runs.
    pub fn same_as(&self, other: &Sample) -> bool {
        self.min() <= other.max() && other.min() <= self.max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(sample(&[1.0, 2.0, 5.0]).same_as(&sample(&[4.0, 6.0])));
        assert!(sample(&[1.0, 9.0]).same_as(&sample(&[4.0, 6.0])));
        assert!(!sample(&[1.0, 2.0]).same_as(&sample(&[3.0, 4.0])));
        assert!(!sample(&[3.0, 4.0]).same_as(&sample(&[1.0, 2.0])));
    }
}
