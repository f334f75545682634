//! Ties: which transactions an operation comes after (C5; docs/design.md 2.1).
use crate::base::cause::Rule;
use crate::base::planted::{self, Bug};
use crate::overlay::objects::{Inode, State, Tie};

/// What the removal or replacement of an inode's name comes after (C5).
pub(crate) fn removal_ties(inode: &Inode, st: &State) -> Vec<Tie> {
    let last = inode_tie(inode, st).filter(|_| st.is_dir() || !planted::is(Bug::TieLink));
    let mut ties: Vec<Tie> = last.into_iter().collect();
    if let Some(d) = st.dir.as_ref().filter(|_| !planted::is(Bug::TieRemoval)) {
        let changes = d.changers.iter().chain(&d.attr_changers);
        let all = changes.chain(&d.xattr_last);
        ties.extend(all.map(|t| Tie::new(t, Rule::Removal, inode.ino)));
    }
    ties
}

/// Last transaction that touched the name (C5).
pub(crate) fn entry_tie(dir: &Inode, st: &State, name: &[u8]) -> Option<Tie> {
    st.dir
        .as_ref()
        .and_then(|d| d.overlay.get(name))
        .map(|o| Tie::new(&o.txn, Rule::Name, dir.ino))
        .filter(|_| !planted::is(Bug::TieName))
}

/// What every entry operation in the directory comes after: its creation, or a change of mode, owner or ACL (C5).
pub(crate) fn dir_ties(dir: &Inode, st: &State) -> Vec<Tie> {
    let rights = st.dir.iter().flat_map(|d| &d.attr_changers);
    let rights = rights.filter(|_| !planted::is(Bug::TieRights));
    let creation = st.last.iter().filter(|_| !planted::is(Bug::TieCreation));
    let all = creation.chain(rights);
    all.map(|t| Tie::new(t, Rule::Directory, dir.ino)).collect()
}

/// What a change of an inode comes after: its last change, of a directory its creation (C5).
pub(crate) fn inode_tie(inode: &Inode, st: &State) -> Option<Tie> {
    let rule = if st.is_dir() {
        Rule::Directory
    } else {
        Rule::File
    };
    st.last.as_ref().map(|t| Tie::new(t, rule, inode.ino))
}
