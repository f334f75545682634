//! Writes the plan of a library: `plan LIBRARY FILE`.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (library, plan) = (args.next().ok_or("LIBRARY?")?, args.next().ok_or("FILE?")?);
    let found = ccfs_intercept::find::calls(&std::fs::read(library)?)?;
    for (at, number) in &found.left {
        println!("left: {number} at {at:#x}");
    }
    println!("{} sites", found.sites.len());
    let all: Vec<_> = found.sites;
    std::fs::write(plan, ccfs_intercept::plan::write(&found.id, &all))?;
    Ok(())
}
