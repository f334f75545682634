//! One user's attacks give no other user, and not root, an error, and hold nobody for good. `ccfs-soak --only two-users` judges the latencies.
use ccfs_tests::harness::Fs;
use ccfs_tests::two_users::{self, Length};

#[test]
fn one_users_attacks_give_nobody_else_an_error() {
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready("two_users") {
        return;
    }
    let wrong = two_users::run(two_users::ALL.iter(), &Length::short());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
