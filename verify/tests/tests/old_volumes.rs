//! Volumes of every shape that mke2fs makes, written by the kernel and by ccfs in turn.
use ccfs_tests::harness::Fs;
use ccfs_tests::old_volumes::{SHAPES, both_ways};

#[test]
fn kernel_and_ccfs_in_turn() {
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready("old volumes") {
        return;
    }
    let only = std::env::var("CCFS_TEST_ONLY").unwrap_or_default();
    let failed = std::sync::Mutex::new(Vec::new());
    let next = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                while let Some((name, _)) =
                    SHAPES.get(next.fetch_add(1, std::sync::atomic::Ordering::SeqCst))
                {
                    if name.contains(&only)
                        && std::panic::catch_unwind(|| both_ways(name, 300)).is_err()
                    {
                        failed.lock().expect("lock").push(*name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("lock");
    assert!(
        failed.is_empty(),
        "shapes that failed (messages above): {failed:?}"
    );
}
