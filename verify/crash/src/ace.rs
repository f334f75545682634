//! Bounded enumeration of short workloads (Mohan et al., "Finding Crash-Consistency Bugs with Bounded Black-Box Crash Testing",
//! OSDI 2018): all sequences of a few operations on a small set of files and directories, with every placement of sync calls,
//! in one stream and in two.

/// What is there, and synced, before a sequence begins.
const SETUP: &str = "A mkdir A; A mkdir B; A mkdir A/D; A create A/foo; A write A/foo 0 9000; A create B/bar; \
                     A write B/bar 0 3000; A setxattr A/foo user.a 20; A syncfs";

/// An operation, the file that it is about (by its name afterwards), and that file's directory.
struct Kind(&'static str, &'static str, &'static str);

const KINDS: &[Kind] = &[
    Kind("create foo", "foo", "."),
    Kind("create A/bar", "A/bar", "A"),
    Kind("create A/D/foo", "A/D/foo", "A/D"),
    Kind("mkdir C", "C", "."),
    Kind("mkdir A/C", "A/C", "A"),
    Kind("symlink A/bar 20", "A/bar", "A"),
    Kind("symlink foo 90", "foo", "."),
    Kind("tmpfile %t", "%t", "."),
    Kind("link A/foo A/bar", "A/bar", "A"),
    Kind("link A/foo B/foo", "B/foo", "B"),
    Kind("link B/bar A/bar", "A/bar", "A"),
    Kind("unlink A/foo", "A", "A"),
    Kind("unlink B/bar", "B", "B"),
    Kind("rmdir A/D", "A", "A"),
    Kind("rename A/foo A/bar", "A/bar", "A"),
    Kind("rename A/foo B/foo", "B/foo", "B"),
    Kind("rename A/foo B/bar", "B/bar", "B"),
    Kind("rename B/bar A/foo", "A/foo", "A"),
    Kind("rename A/foo foo", "foo", "."),
    Kind("rename A/D B/D", "B/D", "B"),
    Kind("rename A/D D", "D", "."),
    Kind("rename A C", "C", "."),
    Kind("rename B A/D", "A/D", "A"),
    Kind("exchange A/foo B/bar", "A/foo", "A"),
    Kind("exchange A/D B", "B", "."),
    Kind("whiteout A/foo B/foo", "B/foo", "B"),
    Kind("noreplace A/foo A/bar", "A/bar", "A"),
    Kind("append A/foo 3000", "A/foo", "A"),
    Kind("append B/bar 9000", "B/bar", "B"),
    Kind("write A/foo 0 1000", "A/foo", "A"),
    Kind("write A/foo 4000 200", "A/foo", "A"),
    Kind("write A/foo 8000 4000", "A/foo", "A"),
    Kind("write A/foo 30000 2000", "A/foo", "A"),
    Kind("write B/bar 0 3000", "B/bar", "B"),
    Kind("truncate A/foo 0", "A/foo", "A"),
    Kind("truncate A/foo 2500", "A/foo", "A"),
    Kind("truncate A/foo 20000", "A/foo", "A"),
    Kind("allocate A/foo 5000 12000", "A/foo", "A"),
    Kind("reserve A/foo 9000 12000", "A/foo", "A"),
    Kind("punch A/foo 1000 6000", "A/foo", "A"),
    Kind("zero A/foo 3000 9000", "A/foo", "A"),
    Kind("zerokeep A/foo 3000 9000", "A/foo", "A"),
    Kind("setxattr A/foo user.a 60", "A/foo", "A"),
    Kind("setxattr A/foo user.b 600", "A/foo", "A"),
    Kind("removexattr A/foo user.a", "A/foo", "A"),
    Kind("setxattr A user.d 30", "A", "."),
    Kind("chmod A/foo 600", "A/foo", "A"),
    Kind("chmod A 700", "A", "."),
    Kind("chown B 3 4", "B", "."),
    Kind("utimes A 1000", "A", "."),
    Kind("utimes A/foo 1000", "A/foo", "A"),
];

/// Sync calls after an operation; `%f` is its file, `%d` the file's directory. Longer sequences take the first four.
const SYNCS: &[&str] = &[
    "",
    "fsync %f",
    "fsync %d",
    "syncfs",
    "fdatasync %f",
    "streamsync",
];
const SYNCS_LONG: u64 = 4;

/// Sync calls of the setup: crashes before the last of them are of no interest.
pub const SETUP_SYNCS: usize = 1;

/// Steps (an operation and the sync call after it) of a sequence of so many operations.
fn steps(length: u32) -> u64 {
    let syncs = if length == 1 {
        SYNCS.len() as u64
    } else {
        SYNCS_LONG
    };
    KINDS.len() as u64 * syncs
}

/// How many sequences of so many operations there are, in one stream and in two; some make no sense.
pub fn sequences(length: u32) -> u64 {
    2 * steps(length).pow(length)
}

/// The `number`-th sequence, for `Source::Text`. In one stream, or (odd numbers) each operation in the other stream than the
/// one before and each sync call in the other stream than its operation.
pub fn sequence(length: u32, number: u64) -> String {
    let two = number % 2 == 1;
    let mut rest = number / 2 % steps(length).pow(length);
    let mut text = SETUP.to_string();
    for i in 0..length {
        let step = rest % steps(length);
        rest /= steps(length);
        let Kind(op, file, dir) = KINDS[(step % KINDS.len() as u64) as usize];
        let sync = SYNCS[(step / KINDS.len() as u64) as usize];
        let (first, second) = match (two, i % 2) {
            (false, _) => ("A", "A"),
            (true, 0) => ("A", "B"),
            (true, _) => ("B", "A"),
        };
        text += &format!("; {first} {op}");
        if !sync.is_empty() {
            let sync = sync.replace("%f", file).replace("%d", dir);
            text += &format!("; {second} {sync}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn sequences_are_all_different() {
        let one: HashSet<String> = (0..sequences(1)).map(|n| sequence(1, n)).collect();
        // In one stream and in two are the same where nothing is synced: the first operation is A's.
        // And so are the syncs of file and directory where the operation leaves nothing but the directory.
        let same = KINDS.iter().filter(|k| k.1 == k.2).count();
        let different = sequences(1) as usize - KINDS.len() - 2 * same;
        assert_eq!(one.len(), different);
        let two: HashSet<String> = (0..sequences(2))
            .step_by(2)
            .map(|n| sequence(2, n))
            .collect();
        assert_eq!(two.len(), (steps(2) as usize - same).pow(2));
        assert_eq!(sequences(2), 2 * (KINDS.len() as u64 * 4).pow(2));
    }
}
