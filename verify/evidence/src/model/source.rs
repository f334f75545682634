//! Places in a program's source, by addr2line.
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Those that were asked for.
#[derive(Default)]
pub struct Sources(BTreeMap<(String, String), String>);

impl Sources {
    /// The innermost frame of the program itself: file and line where it was built with -g, else its function.
    pub fn of(&mut self, stack: &[(String, String, String)]) -> String {
        let own = |f: &&(String, String, String)| {
            !["/usr/lib/", "/lib/", "/lib64/", "[", "linux-vdso"]
                .iter()
                .any(|p| f.0.starts_with(p))
        };
        let Some((object, function, address)) = stack.iter().find(own) else {
            return "a library".into();
        };
        let key = (object.clone(), address.clone());
        if let Some(known) = self.0.get(&key) {
            return known.clone();
        }
        // The address is where the call returns to: one before it lies in the call's own line.
        let before = u64::from_str_radix(address.trim_start_matches("0x"), 16)
            .map_or(0, |a| a.saturating_sub(1));
        let line = Command::new("addr2line")
            .args(["-s", "-e", object, &format!("{before:#x}")])
            .output()
            .ok()
            .map(|out| String::from_utf8_lossy(&out.stdout).trim().to_string())
            .filter(|line| !line.is_empty() && !line.starts_with("??") && !line.ends_with(":?"));
        let shown = match line {
            Some(line) => line.split(" (").next().unwrap_or(&line).to_string(),
            // A stripped program: its symbols would mislead.
            None => Path::new(object)
                .file_name()
                .map_or(function.clone(), |n| n.to_string_lossy().into_owned()),
        };
        self.0.insert(key, shown.clone());
        shown
    }
}
