//! Home: the image, which holds what is durable, and how it follows the commits (apply, checkpoint, recovery).
//!
//! Recovery needs no more than this floor: it has no streams, no operations and no front end.
pub(crate) mod apply;
pub(crate) mod backend;
mod bugs;
pub(crate) mod checkpoint;
pub(crate) mod finish;
pub(crate) mod grow;
pub(crate) mod index;
pub(crate) mod inodes;
pub(crate) mod noted;
pub(crate) mod ondevice;
pub(crate) mod onlog;
pub(crate) mod pages;
pub(crate) mod recent;
pub(crate) mod recover;
pub(crate) mod scrub;
pub(crate) mod space;
pub(crate) mod view;

use crate::base::gauge::Gauge;
use crate::base::sync::Mutex;
use crate::base::types::{Ino, Result};
use crate::core::Core;
use crate::core::options::Options;
use apply::Applier;
use backend::{Backend, Manner, ReadOnly};
use ccfs_device::Device;
use ccfs_image::{Image, Wait};
use inodes::{Inodes, References};
use noted::NotedImage;
use ondevice::OnDevice;
use onlog::OnLog;
use pages::HomePages;
use recent::RecentBlocks;
use space::Space;
use std::collections::HashSet;
use std::ops::Deref;
use std::sync::Arc;

pub struct Home {
    core: Core,
    image: NotedImage,
    non_blocking: NotedImage,
    backend: Box<dyn Backend>,
    manner: Manner,
    live: bool,
    inodes: Inodes,
    refs: Arc<References>,
    applier: Mutex<Applier>,
    pages: HomePages,
    recent: RecentBlocks,
    space: Space,
    /// Held by who makes the volume larger.
    growing: Mutex<()>,
    /// Durable inodes without a name.
    orphans: Mutex<HashSet<Ino>>,
    /// Blocks that transactions not yet applied free.
    pending_free: Gauge,
    /// Inodes that they free.
    pending_inodes: Gauge,
}

/// What makes transactions of a volume durable that is to be written, or only read.
pub(crate) fn backend_for(
    dev: &Arc<dyn Device>,
    image: &Image,
    read_only: bool,
) -> Result<Box<dyn Backend>> {
    Ok(match dev.transactions() {
        _ if read_only => Box::new(ReadOnly),
        Some(_) => Box::new(OnDevice::default()),
        None => Box::new(OnLog::create(dev, image)?),
    })
}

impl Deref for Home {
    type Target = Core;
    fn deref(&self) -> &Core {
        &self.core
    }
}

impl Home {
    /// All commits up to the id `applied` are home. `live`: it is mounted, not in recovery.
    pub(crate) fn new(
        dev: Arc<dyn Device>,
        image: Image,
        backend: Box<dyn Backend>,
        options: Options,
        applied: u64,
        live: bool,
    ) -> Home {
        let block_size = image.geometry().block_size;
        let options = backend.fitted(&*dev, options);
        let manner = backend.manner();
        let reserve = if live && manner.writes {
            (image.geometry().blocks_count / 64).min(1024)
        } else {
            0
        };
        let limits = backend.limits(&*dev, block_size);
        let refs = Arc::new(References::new());
        let (read_only, recent) = (options.read_only, RecentBlocks::new(options.cache_bytes));
        let core = Core::new(dev, options, block_size, limits, applied);
        let image = NotedImage::new(image, core.wakeup().clone(), read_only);
        let space = Space::with_reserve(&image, reserve);
        Home {
            core,
            non_blocking: image.non_blocking(),
            image,
            backend,
            manner,
            live,
            inodes: Inodes::new(refs.clone()),
            refs,
            applier: Mutex::new(Applier::new(applied)),
            pages: HomePages::default(),
            recent,
            space,
            growing: Mutex::default(),
            orphans: Mutex::default(),
            pending_free: Gauge::default(),
            pending_inodes: Gauge::default(),
        }
    }

    pub(crate) fn image(&self) -> &NotedImage {
        &self.image
    }

    /// The image for who may wait for the device, or must not.
    pub(crate) fn image_for(&self, wait: Wait) -> &NotedImage {
        match wait {
            Wait::Allowed => &self.image,
            Wait::Never => &self.non_blocking,
        }
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// What others must know of it.
    pub(crate) fn manner(&self) -> Manner {
        self.manner
    }

    /// Mounted, not in recovery (where nobody but the applier changes anything, and nothing is in memory).
    pub(crate) fn is_live(&self) -> bool {
        self.live
    }

    pub(crate) fn inodes(&self) -> &Inodes {
        &self.inodes
    }

    pub(crate) fn refs(&self) -> &References {
        &self.refs
    }

    pub(crate) fn growing(&self) -> &Mutex<()> {
        &self.growing
    }

    pub(crate) fn applier(&self) -> &Mutex<Applier> {
        &self.applier
    }

    pub(crate) fn recent(&self) -> &RecentBlocks {
        &self.recent
    }

    pub(crate) fn space(&self) -> &Space {
        &self.space
    }

    pub(crate) fn orphans(&self) -> &Mutex<HashSet<Ino>> {
        &self.orphans
    }

    pub(crate) fn pending_free(&self) -> &Gauge {
        &self.pending_free
    }

    pub(crate) fn pending_inodes(&self) -> &Gauge {
        &self.pending_inodes
    }
}
