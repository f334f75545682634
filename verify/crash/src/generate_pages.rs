//! Writes as the kernel passes them on.
use crate::generate::Generator;
use crate::oracle::Op;

/// The kernel's, bytes.
const PAGE: u64 = 4096;

impl Generator {
    /// What the kernel sends first of a write; the rest comes next in its stream.
    pub(crate) fn first_request(&mut self, op: Op, stream: usize) -> Op {
        let Op::Write {
            node,
            offset,
            data,
            kill,
        } = op
        else {
            return op;
        };
        let first = match offset % PAGE {
            0 => data.len(),
            within => data.len().min((PAGE - within) as usize),
        };
        let part = |offset, data: &[u8]| Op::Write {
            node,
            offset,
            data: data.into(),
            kill,
        };
        if first < data.len() {
            let rest = part(offset + first as u64, &data[first..]);
            self.rest.push((stream, rest));
        }
        part(offset, &data[..first])
    }
}
