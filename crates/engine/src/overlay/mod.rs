//! What is not durable yet, in memory: streams, transactions and the dependencies between them, and the layers that these put over the inodes.
pub(crate) mod append;
pub(crate) mod bugs;
pub(crate) mod dependencies;
pub(crate) mod draft;
pub(crate) mod group;
pub(crate) mod inode;
pub(crate) mod joined;
pub(crate) mod mapped;
pub(crate) mod names;
pub(crate) mod objects;
pub(crate) mod parts;
pub(crate) mod stream;
pub(crate) mod txn;
pub(crate) mod undo;
