//! What a driver notes of operations: which are stores through mappings, and what rights did.
use super::Driver;
use crate::oracle::*;

impl Driver {
    /// This write comes from a mapping: of a file that is open, within its length. Which ones do is in their bytes.
    pub(crate) fn is_mapped(&self, op: &Op) -> bool {
        let Op::Write {
            node, offset, data, ..
        } = op
        else {
            return false;
        };
        let file = self.tree.get(*node);
        let within = file.is_ok_and(|n| offset + data.len() as u64 <= n.size);
        // What flags forbid is not mapped, but for by those who do not look.
        let is_open = self.atomic_files.contains_key(node)
            || self.maps
                && self.history.groups == 0
                && self.writers.contains_key(node)
                && file.is_ok_and(|n| n.flags == 0);
        within && is_open && data.first().is_some_and(|b| b & 4 == 0)
    }

    /// Who wrote last to a file that is open: the stream of what its mappings store. Of others nothing is known.
    pub(crate) fn note_writer(&mut self, op: &Op, stream: usize) {
        if let Some(node) = op.changes_content_of()
            && self.maps
            && self.history.groups == 0
            && self.open.contains(&node)
        {
            self.writers.insert(node, stream);
        }
    }

    /// Rows of what rights did, once the tree has an operation.
    pub(crate) fn mark_rights(&mut self, op: &Op, bits: bool) {
        let made = op.makes().and_then(|n| self.tree.get(n).ok());
        let inherited = |n: &Node| {
            [
                (n.flags != 0, "rights/flags-inherited"),
                (n.xattrs.contains_key(ACL_ACCESS), "rights/acl-inherited"),
                (
                    n.is_dir() && n.mode & 0o2000 != 0,
                    "rights/setgid-inherited",
                ),
            ]
        };
        let node = op.target().and_then(|n| self.tree.get(n).ok());
        let listed = |n: &Node| n.xattrs.contains_key(ACL_ACCESS);
        let chmod = matches!(op, Op::SetAttr { set, .. } if set.mode.is_some());
        let done = [
            (chmod && node.is_some_and(listed), "rights/acl-chmod"),
            (
                bits && node.is_some_and(|n| !n.has_bits_to_kill()),
                "rights/killed",
            ),
        ];
        let rows: Vec<(bool, &str)> = made
            .map(inherited)
            .into_iter()
            .flatten()
            .chain(done)
            .collect();
        for (_, row) in rows.into_iter().filter(|r| r.0) {
            self.marks.mark(row);
        }
    }
}
