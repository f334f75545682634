//! Opens that are posted.
use super::*;
use ccfs_client::direct::layout::{SetAttr, set};
use zerocopy::IntoBytes;

const OPENED: u32 = FILE + 1;

/// A file is opened by a posted entry, while the kernel gets to know it: what its program was told in advance is not believed any more once the kernel has its
/// answer, and what it asks for afterwards is done, or it is told that it is not.
#[test]
fn a_file_is_opened_while_the_kernel_gets_to_know_it() {
    explore(|| {
        let world = World::new();
        let (side, _, file) = world.with_file();
        let serving = side.serve();
        let mode = |side: &Side, file| side.volume.getattr(file).unwrap().mode & 0o777;
        let before = mode(&side, file);
        assert_ne!(side.post(op::CLOSE, FILE, 0, b""), Outcome::Ended);
        let opened_now = Arc::new(AtomicBool::new(false));
        let is_open = opened_now.clone();
        let asking = spawn(&side, move |side| {
            side.kernel_asks(file);
            // It was accepted before, so its directory was not broken then; once it is closed the mark goes.
            let was_open = is_open.load(SeqCst);
            let broken = side.session.memory.broken(OPENED).load(SeqCst);
            if was_open && is_open.load(SeqCst) {
                assert_eq!(broken, 1, "believed, and the kernel knows it");
            }
            let seen = mode(side, file);
            for _ in 0..20 {
                point();
            }
            assert_eq!(mode(side, file), seen, "changed behind the kernel");
        });
        let opened = side.post(op::LOOKUP, DIR, OPENED, b"f");
        if matches!(opened, Outcome::Accepted | Outcome::Done) {
            opened_now.store(true, SeqCst);
            let wanted = SetAttr {
                mask: set::MODE,
                mode: 0o604,
                ..SetAttr::default()
            };
            let entry = Side::entry(op::SETATTR, OPENED, 0);
            let expected = match side.ask_for(entry, wanted.as_bytes(), 0).unwrap() {
                0 => 0o604,
                BROKEN | WOULD_WAIT => before,
                errno => panic!("error {errno}"),
            };
            assert_eq!(mode(&side, file), expected);
            opened_now.store(false, SeqCst);
            assert_ne!(side.post(op::CLOSE, OPENED, 0, b""), Outcome::Ended);
        } else {
            assert_eq!(opened, Outcome::Broken);
        }
        side.end();
        join([asking, serving]);
        assert!(!side.direct.is_open(file) && !side.direct.is_held(file));
    });
}
