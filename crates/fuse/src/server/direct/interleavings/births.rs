//! Numbers of inodes that are granted, and taken back while a program names them.
use super::*;
use ccfs_client::direct::ring::Born;

/// Files whose numbers are known, each by its name.
type Known = Vec<(Vec<u8>, Born)>;

fn make(side: &Side, n: u32, known: &mut Known) {
    let name = format!("b{n}").into_bytes();
    let entry = Entry {
        b: 0o644,
        ..Side::entry(op::CREATE, DIR, FILE + n)
    };
    match side.ring.post(entry, &[&name], &alive) {
        Ok(Posted::Accepted(born)) => known.extend(born.map(|born| (name, born))),
        Ok(Posted::InDoubt(asked)) => {
            let result = asked.wait_carried_out(&alive).unwrap();
            assert!(matches!(result, 0 | NOT_ALLOWED), "error {result}");
        }
        Ok(Posted::NotAllowed) => {}
        Err(e) => panic!("its session has ended: {e}"),
    }
}

/// All that was granted is taken back while files are made, and granted anew: a file whose number is known has it, and none is lost.
#[test]
fn numbers_are_taken_back_while_files_are_made() {
    explore(|| {
        let world = World::new();
        let free = world.volume.statfs().unwrap().ffree;
        let (side, dir, _) = world.with_file();
        let serving = side.serve();
        let mut known = Known::new();
        make(&side, 1, &mut known);
        assert_eq!(side.ask(Side::entry(op::DRAIN, 0, 0)).unwrap(), 0);
        let taking = spawn(&side, |side| {
            for _ in 0..2 {
                {
                    let _stopped = side.session.stop_posting();
                    side.direct.carry_out(&side.session, Wait::Allowed).unwrap();
                    side.direct.take_promise_back(&side.session);
                }
                side.direct.renew_promise(&side.session, Promise::default());
            }
        });
        for n in 2..=7 {
            make(&side, n, &mut known);
        }
        join([taking]);
        side.end();
        join([serving]);
        for (name, born) in &known {
            let attr = side.volume.lookup(dir, name).unwrap();
            assert_eq!((attr.ino, attr.nlink), (born.ino, 1));
        }
        assert_eq!(side.volume.promised(), Promise::default());
        let is_there = |n: &u32| {
            let name = format!("b{n}");
            side.volume.lookup(dir, name.as_bytes()).is_ok()
        };
        let files = (1..=7).filter(is_there).count();
        let now = side.volume.statfs().unwrap().ffree;
        // The directory, and a file that was there.
        assert_eq!(now, free - files as u64 - 2, "{files} files");
    });
}
