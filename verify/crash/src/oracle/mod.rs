//! The oracle of the contract (docs/design/promises.md), written from its text alone; it knows nothing of the engine.
//!
//! Give it the operations in acceptance order and the tree that a mount after a crash shows; it says whether some set
//! of survivors that the contract allows gives that tree, and if not, which promise is broken.
//!
//! ```
//! use ccfs_crash::oracle::*;
//! let mut history = History { streams: 1, ..History::default() };
//! let make = Make { node: NodeId(1), mode: 0o100644, uid: 0, gid: 0 };
//! let op = Op::Mknod { parent: ROOT, name: b"f".as_slice().into(), make, rdev: 0 };
//! history.ops.push(Accepted { stream: 0, op, stamps: Vec::new() });
//! let analysis = Analysis::new(Tree::empty(), history, false).unwrap();
//! // The file is lost, and nobody had synced it: legal.
//! assert!(judge(&analysis, &Crash { accepted: 1, synced: 0 }, &Tree::empty()).is_ok());
//! ```
mod judge;
mod model;
mod op;
mod relate;
mod rights;
mod tree;
mod verdict;

pub use judge::{Order, Rules, Search};
pub use model::Touch;
pub use op::*;
pub use relate::{Analysis, Cut, Placed, Relation};
pub use rights::{ACL_ACCESS, ACL_DEFAULT, APPEND, FLAGS, FLAGS_OF_DIRS, IMMUTABLE, list_of};
pub use tree::*;
pub use verdict::{Crash, Promise, Violation, floor, judge};
