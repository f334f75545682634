//! What is not durable yet, in memory: streams, transactions and the ties between them, and the layers that these put over the inodes.
pub(crate) mod append;
pub(crate) mod bugs;
pub(crate) mod draft;
pub(crate) mod group;
pub(crate) mod inode;
pub(crate) mod mapped;
pub(crate) mod objects;
pub(crate) mod stream;
pub(crate) mod ties;
pub(crate) mod txn;
pub(crate) mod undo;
