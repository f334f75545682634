//! One user of the tests of two users: `ccfs-user PARENT UID SETTINGS`, where SETTINGS is JSON.
fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [parent, uid, settings] = &args[..] else {
        eprintln!("usage: ccfs-user PARENT UID SETTINGS");
        std::process::exit(2);
    };
    let number = |text: &str| text.parse().expect("a number");
    ccfs_tests::two_users::as_user(number(parent), number(uid), settings);
}
