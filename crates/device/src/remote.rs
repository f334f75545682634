//! What there is to see of a device on another machine.

/// The store behind a device, and the way to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Remote {
    /// As it is named.
    pub store: String,
    /// `nbd` or `rbd`.
    pub kind: &'static str,
    /// The connection stands.
    pub connected: bool,
    /// Since when it does not, while a new one is tried, seconds.
    pub broken_seconds: Option<f64>,
    /// Why it does not stand.
    pub why: Option<String>,
    /// Connections made after the first.
    pub reconnects: u64,
    /// Requests sent so far.
    pub requests: u64,
    /// Requests without an answer.
    pub in_flight: u64,
    /// Written and not flushed: kept in order to be written again, bytes.
    pub unflushed_bytes: u64,
    /// Mean time of a read or write of at most 64 KiB, us.
    pub round_trip_us: Option<f64>,
    /// Mean time of a flush, us.
    pub flush_us: Option<f64>,
    /// How a second writer is kept out: `lock` (the store refuses his writes), `heartbeat`, `none` (read-only).
    pub one_writer: &'static str,
}
