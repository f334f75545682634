//! `ccfs-bench man DIR`: the manual pages of `ccfs bench`, from the flag table. Those in docs/man are made by it; a test compares them.
use crate::cli::Cli;
use crate::{Because, Result};
use clap::CommandFactory;
use std::fs;
use std::path::Path;

/// Writes `ccfs-bench.8` and `ccfs-bench-scale.8`, named as man(1) looks for them.
///
/// # Errors
/// What writing a file gives, as text.
pub fn write(dir: &Path) -> Result<()> {
    let mut whole = Cli::command();
    let scale = whole.find_subcommand_mut("scale").map(|s| s.clone());
    let scale = scale.map(|s| s.name("ccfs-bench-scale").bin_name("ccfs bench scale"));
    for page in std::iter::once(whole.bin_name("ccfs bench")).chain(scale) {
        let name = page.get_name().to_string();
        let man = clap_mangen::Man::new(page)
            .section("8")
            .date("")
            .source("ccfs")
            .manual("ccfs");
        let mut text = Vec::new();
        let path = dir.join(format!("{name}.8"));
        man.render(&mut text)
            .and_then(|()| fs::write(&path, text))
            .because(format_args!("cannot write {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_manual_pages_are_current() {
        let made = tempfile::tempdir().unwrap();
        super::write(made.path()).unwrap();
        let kept = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/man");
        for page in ["ccfs-bench.8", "ccfs-bench-scale.8"] {
            let read = |dir: &std::path::Path| std::fs::read_to_string(dir.join(page)).unwrap();
            assert_eq!(
                read(made.path()),
                read(&kept),
                "{page} is old; `make man` makes it anew"
            );
        }
    }
}
