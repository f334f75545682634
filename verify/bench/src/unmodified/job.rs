//! What a worker does: workloads that are measured elsewhere, too, there by threads of the benchmark itself.
use crate::workload::{Call, Kind, Micro, Scale, Workload};
use clap::ValueEnum;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Job {
    /// By four threads.
    #[value(name = "createfiles-4")]
    Createfiles,
    Create,
    #[value(name = "append-4k")]
    Append,
    Unlink,
    Fileserver,
    Varmail,
}

impl Job {
    pub fn name(self) -> &'static str {
        match self {
            Job::Createfiles => "createfiles-4",
            Job::Create => Call::Create.name(),
            Job::Append => Call::Append.name(),
            Job::Unlink => Call::Unlink.name(),
            Job::Fileserver => Kind::Fileserver.name(),
            Job::Varmail => Kind::Varmail.name(),
        }
    }

    pub fn op(self) -> &'static str {
        match self.call() {
            Some(call) => call.op(),
            None => "an open, create, whole read, write, fsync, close, stat or delete",
        }
    }

    fn call(self) -> Option<Call> {
        match self {
            Job::Create => Some(Call::Create),
            Job::Append => Some(Call::Append),
            Job::Unlink => Some(Call::Unlink),
            Job::Createfiles | Job::Fileserver | Job::Varmail => None,
        }
    }

    pub fn make(self, scale: Scale) -> Box<dyn Workload> {
        match (self.call(), self) {
            (Some(call), _) => Box::new(Micro::new(call, false, scale)),
            (None, Job::Fileserver) => Kind::Fileserver.make(scale),
            (None, Job::Varmail) => Kind::Varmail.make(scale),
            (None, _) => Kind::Createfiles.make(scale),
        }
    }

    /// Its share of the measured time: as elsewhere.
    pub fn share(self) -> f64 {
        if self.call().is_some() { 0.3 } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_called_as_it_is_named() {
        for job in Job::value_variants() {
            let called = job.to_possible_value().expect("a name");
            assert_eq!(called.get_name(), job.name());
        }
        assert_eq!(Job::Createfiles.make(Scale(0.25)).threads(), 4);
    }
}
