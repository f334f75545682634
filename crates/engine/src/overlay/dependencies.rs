//! Dependencies: which transactions an operation comes after (C5; docs/design/engine.md, "Transactions").
use crate::base::cause::Rule;
use crate::base::planted::{self, Bug};
use crate::base::types::StreamId;
use crate::overlay::objects::{Dependency, Inode, State, TxnRef};

/// What the removal or replacement of an inode's name comes after (C5).
pub(crate) fn of_removal(inode: &Inode, st: &State) -> Vec<Dependency> {
    let last = of_inode(inode, st).filter(|_| st.is_dir() || !planted::is(Bug::DependencyLink));
    let mut deps: Vec<Dependency> = last.into_iter().collect();
    if let Some(d) = st
        .dir
        .as_ref()
        .filter(|_| !planted::is(Bug::DependencyRemoval))
    {
        let changes = d.changers.iter().chain(&d.attr_changers);
        let all = changes.chain(&d.xattr_last);
        deps.extend(all.map(|t| Dependency::new(t, Rule::Removal, inode.ino)));
    }
    deps
}

/// Last transaction that touched the name (C5).
pub(crate) fn of_entry(dir: &Inode, st: &State, name: &[u8]) -> Option<Dependency> {
    st.dir
        .as_ref()
        .and_then(|d| d.overlay.get(name))
        .map(|o| Dependency::new(&o.txn, Rule::Name, dir.ino))
        .filter(|_| !planted::is(Bug::DependencyName))
}

/// What every entry operation in the directory comes after: its creation, or a change of mode, owner or ACL (C5).
pub(crate) fn of_dir(dir: &Inode, st: &State) -> Vec<Dependency> {
    let rights = st.dir.iter().flat_map(|d| &d.attr_changers);
    let rights = rights.filter(|_| !planted::is(Bug::DependencyRights));
    let creation = st
        .last
        .iter()
        .filter(|_| !planted::is(Bug::DependencyCreation));
    let all = creation.map(|last| &**last).chain(rights);
    all.map(|t| Dependency::new(t, Rule::Directory, dir.ino))
        .collect()
}

/// As `of_inode`, of an operation of `stream`: what that stream has changed comes before it in any case, and to name it would count one more
/// owner of a transaction that all of the stream's threads have to do with.
pub(crate) fn of_inode_to(stream: StreamId, inode: &Inode, st: &State) -> Option<Dependency> {
    let own = |t: &TxnRef| t.stream == stream && t.group.is_none();
    match st.last.as_ref().is_some_and(own) {
        true => None,
        false => of_inode(inode, st),
    }
}

/// What a change of an inode comes after: its last change, of a directory its creation (C5).
pub(crate) fn of_inode(inode: &Inode, st: &State) -> Option<Dependency> {
    let rule = if st.is_dir() {
        Rule::Directory
    } else {
        Rule::File
    };
    st.last
        .as_ref()
        .map(|t| Dependency::new(t, rule, inode.ino))
}
