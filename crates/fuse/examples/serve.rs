//! The smallest daemon: serves a volume in the foreground until it is unmounted.
//!
//! `cargo run --release -p ccfs-fuse --example serve -- IMAGE DIRECTORY [THREADS]`
use ccfs_device::{FileDevice, OpenMode};
use ccfs_engine::{Options, Volume};
use ccfs_fuse::{Home, MountConfig, MountError, PoolConfig};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [image, dir, rest @ ..] = args.as_slice() else {
        return Err("usage: serve IMAGE DIRECTORY [THREADS]".into());
    };
    let mut config = MountConfig::new(image);
    if let [threads] = rest {
        config.pool = PoolConfig {
            places: threads.parse()?,
            ..config.pool
        };
    }
    ccfs_fuse::prepare_process();
    // No thread is started yet.
    let home = Home::leave(&[])?;
    let device = home.within(|| -> Result<_, Box<dyn Error + Send + Sync>> {
        ccfs_fuse::clear_dead(Path::new(dir))?;
        Ok(FileDevice::open(image, OpenMode::ReadWrite)?)
    })??;
    let volume = Volume::mount(Arc::new(device), Options::default())?;
    let ready = |_: &ccfs_fuse::Session| {
        println!("mounted");
        Ok::<(), MountError>(())
    };
    Ok(ccfs_fuse::serve(
        volume,
        home,
        Path::new(dir),
        &config,
        ready,
    )?)
}
