//! What `status` says about streams and how callers are told apart. Its length is bounded.
use super::Server;
use ccfs_caller::{Identity, StreamInfo, User};
use ccfs_client::abi::STREAM_IGNORE_FSYNC;
use serde_json::{Value, json};

/// Streams that a status text lists, of each of its two lists, and processes of one stream.
const LISTED_MAX: usize = 1000;
const PROCESSES_MAX: usize = 16;

impl Server {
    /// `stream_owners` and `identity`; bounds the engine's list of streams.
    pub(super) fn add_streams(&self, status: &mut Value, viewer: User) {
        let mut left_out = 0;
        if let Some(running) = status["streams"].as_array_mut() {
            left_out += running.len().saturating_sub(LISTED_MAX);
            running.truncate(LISTED_MAX);
        }
        let mut known = self.callers.list();
        left_out += known.len().saturating_sub(LISTED_MAX);
        known.truncate(LISTED_MAX);
        let owners: Vec<Value> = known
            .iter()
            .map(|stream| self.owner_json(stream, viewer))
            .collect();
        status["stream_owners"] = owners.into();
        status["streams_left_out"] = left_out.into();
        status["identity"] = identity_json(&self.callers.identity());
    }

    fn owner_json(&self, stream: &StreamInfo, viewer: User) -> Value {
        let visible = viewer.is_root || stream.owner == Some(viewer.uid);
        let mut processes = Vec::new();
        if visible {
            let members = self.callers.members(stream.id, PROCESSES_MAX * 64);
            processes = members.into_iter().map(|(_, process)| process).collect();
            processes.sort_unstable();
            processes.dedup();
            processes.truncate(PROCESSES_MAX);
        }
        json!({
            "id": stream.id,
            "uid": stream.owner,
            "ignore_fsync": stream.flags & STREAM_IGNORE_FSYNC != 0,
            "origin": stream.origin.name(),
            "name": (visible && !stream.name.is_empty()).then_some(&stream.name),
            "threads": stream.threads,
            "processes": processes,
        })
    }
}

fn identity_json(identity: &Identity) -> Value {
    json!({
        "mode": identity.mode,
        "why": identity.why,
        "thread_creators": identity.thread_creators,
        "policy": identity.policy,
        "rules": identity.rules,
        "streams": identity.streams,
        "threads": identity.threads,
        "events": identity.events,
        "overruns": identity.overruns,
        "rescans": identity.rescans,
        "proc_reads": identity.proc_reads,
    })
}
