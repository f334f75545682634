//! A server that is far away: what is sent over its socket arrives later, either way (`ccfs-bench far`).
//!
//! Unlike a filter of the server it delays whatever is asked, flushes too, and any time can be chosen. What is sent later is not held
//! up by what is on its way: the delay is a distance, no bandwidth.
use crate::{Because, Result};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Bytes that are passed on at once.
const PIECE: usize = 256 << 10;
/// How long before its time a thread stops to sleep: timers are late by that much.
const EARLY: Duration = Duration::from_micros(60);

/// Listens on a socket, and connects each who comes to another one, with half of `round_trip` each way. Ends with the process.
pub fn serve(listen: &Path, to: &Path, round_trip: Duration) -> Result<()> {
    let _ = std::fs::remove_file(listen);
    let listener = UnixListener::bind(listen).because(listen.display())?;
    for near in listener.incoming() {
        let near = near.because("accept")?;
        let far = UnixStream::connect(to).because(to.display())?;
        let half = round_trip / 2;
        let other = |s: &UnixStream| s.try_clone().because("a socket");
        relay(other(&near)?, other(&far)?, half);
        relay(far, near, half);
    }
    Ok(())
}

/// Starts the two threads of one direction.
fn relay(from: UnixStream, to: UnixStream, delay: Duration) {
    let (sender, receiver) = channel();
    std::thread::spawn(move || read(from, &sender, delay));
    std::thread::spawn(move || write(to, &receiver));
}

fn read(mut from: UnixStream, sender: &Sender<(Instant, Vec<u8>)>, delay: Duration) {
    let mut piece = vec![0; PIECE];
    while let Ok(n @ 1..) = from.read(&mut piece) {
        if sender
            .send((Instant::now() + delay, piece[..n].to_vec()))
            .is_err()
        {
            return;
        }
    }
}

fn write(mut to: UnixStream, receiver: &Receiver<(Instant, Vec<u8>)>) {
    for (when, bytes) in receiver {
        let left = when.saturating_duration_since(Instant::now());
        if let Some(sleep) = left.checked_sub(EARLY) {
            std::thread::sleep(sleep);
        }
        while Instant::now() < when {
            std::thread::yield_now();
        }
        if to.write_all(&bytes).is_err() {
            return;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_arrives_later_and_whole() {
        let dir = tempfile::tempdir().unwrap();
        let (near, far) = (dir.path().join("near"), dir.path().join("far"));
        let server = UnixListener::bind(&far).unwrap();
        let (listen, to) = (near.clone(), far.clone());
        std::thread::spawn(move || serve(&listen, &to, Duration::from_millis(20)));
        std::thread::spawn(move || {
            let (mut one, _) = server.accept().unwrap();
            let mut all = vec![0; 300_000];
            one.read_exact(&mut all).unwrap();
            one.write_all(&all).unwrap();
        });
        let mut client = loop {
            match UnixStream::connect(&near) {
                Ok(client) => break client,
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let sent: Vec<u8> = (0..300_000).map(|n| n as u8).collect();
        let begun = Instant::now();
        client.write_all(&sent).unwrap();
        let mut got = Vec::new();
        client.read_to_end(&mut got).unwrap();
        assert!(got == sent && begun.elapsed() >= Duration::from_millis(20));
    }
}
