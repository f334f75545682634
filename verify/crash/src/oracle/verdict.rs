//! Verdicts: the survivors that explain a tree, or the promise that is broken.
use super::judge::{Order, Rules, Search};
use super::relate::{Analysis, Cut};
use super::tree::Tree;
use std::fmt;

/// When the crash was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crash {
    /// Operations that may have been accepted: those that returned before the crash and those in progress at it.
    pub accepted: usize,
    /// Sync calls (in order of their return) that had returned success.
    pub synced: usize,
}

/// The promises that a tree can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// C1: an operation survived without an earlier one of its stream.
    Order,
    /// C2 or C6: contents that no set of whole operations gives.
    Atomicity,
    /// C3: an operation that a completed sync call covers is lost.
    Durability,
    /// C5: an operation survived without one that it depends on.
    Related,
    /// C13: an operation survived without one that a barrier of its stream put before it.
    Barrier,
}

/// A tree that the contract forbids.
#[derive(Clone, Debug)]
pub struct Violation {
    pub promise: Promise,
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.promise {
            Promise::Order => "C1 (order)",
            Promise::Atomicity => "C2/C6 (atomicity, no leaks)",
            Promise::Durability => "C3 (durability)",
            Promise::Related => "C5 (related operations)",
            Promise::Barrier => "C13 (order by barriers)",
        };
        write!(f, "{name}: {}", self.text)
    }
}

/// The least cut that the completed sync calls allow (C3), and for each operation in it the sync call that wants it.
pub fn floor(an: &Analysis, order: &Order, synced: usize) -> (Cut, Vec<Option<usize>>) {
    let mut cut = vec![0; order.hi.len()];
    let mut wanted = vec![None; order.pos.len()];
    for (k, sync) in an.history.syncs[..synced].iter().enumerate() {
        for (i, want) in wanted.iter_mut().enumerate().take(sync.after) {
            // What a group has done has its place where it was committed.
            if an.covers(sync, i) && !order.is_open(an, i, sync.after) {
                *want = want.or(Some(k));
                for (a, b) in cut.iter_mut().zip(&order.need[i]) {
                    *a = (*a).max(*b);
                }
            }
        }
    }
    (cut, wanted)
}

/// Judges the tree that a mount after the crash shows. Ok: the survivors that explain it.
pub fn judge(an: &Analysis, crash: &Crash, seen: &Tree) -> Result<Cut, Violation> {
    let order = Order::new(an, crash.accepted, Rules::Contract);
    let (least, wanted) = floor(an, &order, crash.synced);
    let mut search = Search::new(an, &order, seen);
    if let Some(cut) = search.run(least.clone()) {
        return Ok(cut);
    }
    let nearest = search.nearest.take();
    if let Some(cut) = Search::new(an, &order, seen).run(vec![0; least.len()]) {
        return Err(lost(an, &order, &cut, &least, &wanted));
    }
    let alone = Order::new(an, crash.accepted, Rules::DependenciesOnly);
    if let Some(cut) = Search::new(an, &alone, seen).run(vec![0; alone.hi.len()]) {
        return Err(torn_order(an, &order, &cut));
    }
    let text = match nearest {
        Some((cut, text)) => format!(
            "no set of whole operations gives this tree; nearest, with survivors {cut:?}: {text}"
        ),
        None => "no set of whole operations gives this tree".into(),
    };
    Err(Violation {
        promise: Promise::Atomicity,
        text,
    })
}

/// The tree is that of `cut`, which lacks operations that must survive.
fn lost(
    an: &Analysis,
    order: &Order,
    cut: &Cut,
    least: &Cut,
    wanted: &[Option<usize>],
) -> Violation {
    let missing =
        (0..order.pos.len()).filter(|i| order.survives(*i, least) && !order.survives(*i, cut));
    let mut text = format!("survivors are {cut:?}, completed sync calls demand {least:?};");
    for i in missing.take(4) {
        let by = match wanted[i] {
            Some(k) => format!("{:?}", an.history.syncs[k]),
            None => "an operation that it depends on".into(),
        };
        text += &format!(
            " lost operation {i} ({}) of stream {}, wanted by {by};",
            an.history.ops[i].op, an.placed[i].stream
        );
    }
    Violation {
        promise: Promise::Durability,
        text,
    }
}

/// The tree is that of a set of operations that respects C5 but is no prefix of every stream.
fn torn_order(an: &Analysis, order: &Order, set: &Cut) -> Violation {
    let plain = Order::new(an, set.len(), Rules::NoBarriers);
    for i in 0..set.len() {
        for j in 0..i {
            let needed = order.survives(j, &order.need[i]);
            if set[i] == 1 && set[j] == 0 && needed {
                let same = an.placed[i].stream == an.placed[j].stream;
                let text = format!(
                    "operation {i} ({}) of stream {} survived, operation {j} ({}) of stream {} before it is lost",
                    an.history.ops[i].op,
                    an.placed[i].stream,
                    an.history.ops[j].op,
                    an.placed[j].stream
                );
                return Violation {
                    promise: if !plain.survives(j, &plain.need[i]) {
                        Promise::Barrier
                    } else if same {
                        Promise::Order
                    } else {
                        Promise::Related
                    },
                    text,
                };
            }
        }
    }
    Violation {
        promise: Promise::Order,
        text: "survivors are no prefix".into(),
    }
}
