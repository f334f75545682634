//! Other names of files, that are posted.
use super::*;

const OTHER: u32 = FILE + 1;

/// A file gets a name in another directory by a posted entry, while the kernel gets to know it: once the kernel has its answer, no directory is held that has the
/// name, and none gets it later.
#[test]
fn a_file_gets_another_name_while_the_kernel_gets_to_know_it() {
    explore(|| {
        let world = World::new();
        let (side, dir, file) = world.with_file();
        let cx = Context::root(STREAM);
        let other = side.volume.mkdir(&cx, ROOT_INO, b"e", 0o755).unwrap().ino;
        side.open(OTHER, other);
        assert!(side.direct.is_held(other));
        let serving = side.serve();
        let names = move |side: &Side| (side.names(dir).len(), side.names(other).len());
        let asking = spawn(&side, move |side| {
            side.kernel_asks(file);
            let seen = names(side);
            let is_known = |side: &Side, count, dir| count == 0 || !side.direct.is_held(dir);
            assert!(!side.direct.is_held(dir));
            assert!(
                is_known(side, seen.1, other),
                "held, and the kernel knows what is in it"
            );
            for _ in 0..20 {
                point();
            }
            assert_eq!(names(side), seen, "named behind the kernel");
        });
        let mut made = 0;
        for (h2, new) in [(OTHER, b"n1"), (OTHER, b"n2"), (DIR, b"n3")] {
            let entry = Entry {
                b: 1,
                ..Side::entry(op::LINK, DIR, h2)
            };
            match side.ring.post(entry, &[b"f", new], &alive) {
                Ok(Posted::Accepted(_)) => made += 1,
                Ok(Posted::InDoubt(asked)) => match asked.wait_carried_out(&alive).unwrap() {
                    0 => made += 1,
                    result => assert!(matches!(result, BROKEN | NOT_ALLOWED), "error {result}"),
                },
                Ok(Posted::NotAllowed) => {}
                Err(e) => panic!("its session has ended: {e}"),
            }
        }
        side.end();
        join([asking, serving]);
        let (here, there) = names(&side);
        assert_eq!(here + there, made);
        assert_eq!(side.volume.getattr(file).unwrap().nlink as usize, 1 + made);
    });
}
