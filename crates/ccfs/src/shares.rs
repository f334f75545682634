//! How much memory a mount takes where its options do not say it: by what the machine, or the control group, has.
use ccfs_engine::Options;
use std::path::Path;

/// Memory that can be had, bytes; 0: unknown.
pub fn available_memory() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = meminfo
        .lines()
        .find_map(|l| l.strip_prefix("MemAvailable:"))
        .and_then(|l| l.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    let available = available.unwrap_or(0).saturating_mul(1 << 10);
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    match memory_of_groups(&groups, Path::new("/sys/fs/cgroup")) {
        Some(limit) if available == 0 => limit,
        Some(limit) => available.min(limit),
        None => available,
    }
}

/// The least limit of the control groups that a process is in (`groups`: its /proc/PID/cgroup), and of those above them, bytes; `None`: there is none.
fn memory_of_groups(groups: &str, root: &Path) -> Option<u64> {
    let mut least = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        // Version 2 has one hierarchy, version 1 one for each controller; with both, the second's place is a directory of its own.
        let places = match controllers {
            "" => [root.to_path_buf(), root.join("unified")],
            list if list.split(',').any(|c| c == "memory") => {
                [root.join("memory"), root.join(controllers)]
            }
            _ => continue,
        };
        for top in places {
            let inside = top.join(path.trim_start_matches('/'));
            for dir in inside.ancestors().take_while(|dir| dir.starts_with(&top)) {
                for file in ["memory.max", "memory.limit_in_bytes"] {
                    let text = std::fs::read_to_string(dir.join(file)).unwrap_or_default();
                    let limit = text.trim().parse::<u64>().ok();
                    least = limit.into_iter().chain(least).min();
                }
            }
        }
    }
    least
}

/// The limit of dirty bytes where `dirty=` does not say it, and what it may rise to: an eighth of the memory that can be had, 128 MiB at
/// least, but never more than a quarter of it. Writing begins at five eighths of the limit: at 192 MiB 100 MB of one stream are not at the device yet while another one syncs.
pub fn dirty_limits(available: u64) -> (u64, u64) {
    let share = available / 8;
    let least = match available {
        0 => 128 << 20,
        available => (128 << 20).min(available / 4).max(1 << 20),
    };
    (share.clamp(least, 192 << 20), share.min(1 << 30))
}

/// The same for `cache=`: with what it stands for besides (`Options::cache_bytes`) less than a sixth.
pub fn cache_bytes(available: u64) -> usize {
    let most = Options::default().cache_bytes;
    match (available / 20) as usize {
        0 => most,
        share => share.clamp(1 << 20, most),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dirty_limit_follows_memory() {
        let mib = |available: u64| {
            let (limit, most) = dirty_limits(available << 20);
            (limit >> 20, most >> 20)
        };
        assert_eq!(mib(0), (128, 0));
        assert_eq!(mib(512), (128, 64));
        assert_eq!(mib(1200), (150, 150));
        assert_eq!(mib(4096), (192, 512));
        assert_eq!(mib(65536), (192, 1024));
        // In a small control group.
        assert_eq!(mib(256), (64, 32));
        let cache = |available: u64| cache_bytes(available << 20) >> 20;
        assert_eq!([0, 64, 256, 512, 4096].map(cache), [64, 3, 12, 25, 64]);
    }

    #[test]
    fn control_groups_limit_memory() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let write = |file: &str, text: &str| {
            let file = root.join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        let limit = |groups: &str| memory_of_groups(groups, root);
        assert_eq!(limit("0::/a/b\n"), None);
        write("a/memory.max", "1000\n");
        write("a/b/memory.max", "max\n");
        assert_eq!(limit("0::/a/b\n"), Some(1000), "of one above it");
        assert_eq!(limit("0::/c\n1:name=systemd:/a\nnonsense\n"), None);
        write("unified/c/memory.max", "800\n");
        assert_eq!(limit("0::/c\n"), Some(800));
        write("memory/x/memory.limit_in_bytes", "600\n");
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(limit("4:cpu,memory:/x\n0::/a\n"), Some(600));
        assert_eq!(limit("4:memory:/y\n"), Some(9_223_372_036_854_771_712));
        // What lies outside is none of it.
        write("memory.max", "5\n");
        assert_eq!(limit("4:memory:/x\n"), Some(600));
        assert_eq!(limit("0::/../..\n"), Some(5));
    }
}
