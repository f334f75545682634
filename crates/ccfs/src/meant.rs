//! Which option somebody meant who named one that there is not.
use crate::ext4_options;

/// ccfs's own options that take no value.
pub const PLAIN: &str = "ro rw noatime relatime atime nodiratime diratime sync async dirsync grpid bsdgroups nogrpid sysvgroups minixdf \
                     bsddf nosymfollow symfollow noload norecovery silent loud nosuid suid nodev dev noexec exec user users owner \
                     group allow_other remount take_over";
/// Those that need one.
pub const VALUED: &str = "commit dirty cache group_timeout timeout log status atomic_files direct transport streams rules identity";
/// Changes of a letter that make a name another one: more than these are no slip.
const SLIPS_MAX: usize = 2;

/// What to say of a mount option that is not known.
pub fn unknown(option: &str) -> String {
    let (name, value) = match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    };
    let of_ext4 = || ext4_options::patterns().filter(|p| !p.starts_with(['x', 'X']));
    let plain = || {
        PLAIN
            .split(' ')
            .chain(of_ext4().filter(|p| !p.contains('=')))
    };
    let named = |p: &'static str| p.split_once('=').map(|(name, _)| name);
    let valued = || VALUED.split(' ').chain(of_ext4().filter_map(named));
    if value.is_some() && plain().any(|p| p == name) {
        return format!("option {name} takes no value");
    }
    if value.is_none() && valued().any(|p| p == name) {
        return format!("option {name} needs a value: {name}=...");
    }
    let meant = nearest(name, plain().chain(valued()));
    let meant = meant.map(|name| format!("; did you mean {name}?"));
    let meant = meant.unwrap_or_else(|| "; see ccfs mount --help".into());
    format!("unknown option \"{option}\"{meant}")
}

/// The one of these words that differs least, if it may be meant at all.
fn nearest<'w>(word: &str, among: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    let slips = |w: &str| strsim::osa_distance(&word.to_lowercase(), w);
    among
        .map(|w| (slips(w), w))
        // A short word is soon another one.
        .filter(|(slips, w)| *slips <= SLIPS_MAX && slips * 3 <= w.len())
        .min_by_key(|(slips, _)| *slips)
        .map(|(_, w)| w)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_answered_with_what_was_meant() {
        for (option, said) in [
            ("strems=uid", "did you mean streams?"),
            ("Commit=5", "did you mean commit?"),
            ("noatim", "did you mean noatime?"),
            ("allow_ohter", "did you mean allow_other?"),
            ("delaloc", "did you mean delalloc?"),
            ("sync=1", "takes no value"),
            ("acl=1", "takes no value"),
            ("streams", "streams=..."),
            ("stripe", "stripe=..."),
            ("frobnicate", "see ccfs mount --help"),
            ("zz", "see ccfs mount --help"),
            ("", "see ccfs mount --help"),
        ] {
            assert!(
                unknown(option).contains(said),
                "{option}: {}",
                unknown(option)
            );
        }
    }
}
