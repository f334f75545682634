//! The life of a volume, from mount to unmount.
use crate::base::cause::Cause;
use crate::base::planted::{self, Bug};
use crate::base::sync::Mutex;
use crate::base::types::*;
use crate::calls::Calls;
use crate::commit::Committer;
use crate::core::options::Options;
use crate::home::{self, Home, recover};
use crate::operation::Operations;
use crate::volume::Volume;
use ccfs_device::{Device, ReadAheadDevice};
use ccfs_ext4::Error;
use ccfs_image::{Image, Wait};
use std::sync::Arc;
use std::time::Duration;

impl Volume {
    /// FS_IOC_SHUTDOWN and power-cut tests: stops at once, writes nothing more; every later call fails with EIO.
    pub fn shutdown(&self) {
        self.shut_down();
        self.stop_threads();
    }

    /// Opens a device that holds an ext4 volume: recovers it if a crash left a log, then marks it in flight.
    ///
    /// # Errors
    /// `Refused` with the way out for volumes that ccfs does not take; `Corrupt`; device errors.
    pub fn mount(dev: Arc<dyn Device>, options: Options) -> Result<Arc<Volume>> {
        Self::recover(dev.clone())?;
        let dev: Arc<dyn Device> = Arc::new(ReadAheadDevice::over(dev, options.cache_bytes));
        let read_only = options.read_only || dev.read_only();
        let options = Options {
            read_only,
            ..options
        };
        let image = Image::open(
            dev.clone(),
            ccfs_image::OpenOptions {
                read_only,
                cache_bytes: options.cache_bytes,
            },
        )?;
        if image.has_errors() {
            tracing::warn!(
                "a file system with errors ({} recorded): running ccfs fsck is recommended",
                image.recorded_errors().0
            );
        }
        let backend = home::backend_for(&dev, &image, read_only)?;
        if !read_only {
            image.write_in_flight(true)?;
        }
        let home = Home::new(dev, image, backend, options, 0, true);
        let operations = Operations::new(Committer::new(home));
        let calls = Calls::new(operations);
        let volume = Arc::new(Volume {
            non_blocking: calls.with(Wait::Never),
            calls,
            threads: Mutex::default(),
        });
        if volume.options().background && !read_only {
            volume.start_threads();
        }
        Ok(volume)
    }

    /// Recovers a crashed volume without mounting it: afterwards it is plain ext4. False: there was nothing to do.
    pub fn recover(dev: Arc<dyn Device>) -> Result<bool> {
        Ok(recover::recover(&dev)?.is_some())
    }

    /// Commits everything, frees nameless files, brings all home, leaves plain ext4, stops the background threads.
    /// A second call does nothing.
    pub fn unmount(&self) -> Result<()> {
        self.thaw();
        self.stop_threads();
        if self.is_unmounted() {
            return Ok(());
        }
        if self.options().read_only {
            self.note_unmounted();
            return Ok(());
        }
        self.check_running()?;
        let _hurry = self.pace().hurry();
        self.abort_all()?;
        self.close_atomic_files();
        self.commit_all(Cause::Unmount)?;
        self.drive()?;
        // All is applied now, so none has to wait any more.
        self.log_atimes();
        self.refs().clear();
        let nameless: Vec<Ino> = self.orphans().lock().iter().copied().collect();
        for ino in nameless {
            self.forget(ino, 1);
        }
        self.commit_all(Cause::Unmount)?;
        self.drive()?;
        let left = self.orphans().lock().len();
        if left > 0 {
            // Still marked as in flight: recovery frees them, or says why not.
            return Err(Error::corrupt(format!(
                "{left} files without a name cannot be freed; run ccfs fsck"
            )));
        }
        planted::also(Bug::EarlyBit, || self.image().write_in_flight(false)).transpose()?;
        self.or_stop("arranging files and directories", || {
            self.arrange_the_rest()
        })?;
        // All is applied: this leaves the log empty.
        self.checkpoint()?;
        self.image().write_in_flight(false)?;
        self.note_unmounted();
        Ok(())
    }

    /// Work that background threads would do, for tests: commits what is older than `age`, applies it.
    pub fn tick(&self, age: Duration) -> Result<()> {
        self.check_running()?;
        self.abort_expired()?;
        self.log_atimes();
        let old = self.streams().seal_older(age);
        self.commit(old, Cause::Interval)?;
        self.apply_ready()
    }
}
