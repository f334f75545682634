//! The scrub call: one step of verifying the volume's metadata.
use super::ioctl::{CAP_SYS_ADMIN, versioned};
use super::{Answer, Server};
use crate::wire::{Errno, Reply, Request};
use ccfs_client::abi::{self as client, SCRUB_DAMAGES, SCRUB_TEXT, ScrubArg};
use ccfs_engine::{Damage, ScrubAt};

impl Server {
    /// Block numbers and the device's time are root's business.
    pub(super) fn scrub(&self, request: &Request<'_>, input: &[u8], reply: &mut Reply) -> Answer {
        self.needs(request, CAP_SYS_ADMIN)?;
        let mut arg = versioned::<ScrubArg>(input)?;
        if arg.reserved != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let at = ScrubAt {
            phase: arg.phase,
            item: arg.item,
            part: arg.part,
        };
        let step = self.volume.scrub(at, arg.blocks.into())?;
        arg.ended = u32::from(step.next.is_none());
        if let Some(next) = step.next {
            (arg.phase, arg.item, arg.part) = (next.phase, next.item, next.part);
        }
        (arg.done, arg.total) = (step.done, step.total);
        (arg.visited, arg.newer) = (step.visited.len() as u32, step.newer as u32);
        arg.damages = step.damage.len().min(SCRUB_DAMAGES) as u32;
        for (slot, damage) in arg.damage.iter_mut().zip(&step.damage) {
            tracing::error!("scrub: {} (block {})", damage.what, damage.pblk);
            *slot = told(damage);
        }
        reply.push(&arg);
        Ok(())
    }
}

fn told(damage: &Damage) -> client::ScrubDamage {
    let mut text = [0; SCRUB_TEXT];
    let mut length = damage.what.len().min(SCRUB_TEXT);
    while !damage.what.is_char_boundary(length) {
        length -= 1;
    }
    text[..length].copy_from_slice(&damage.what.as_bytes()[..length]);
    client::ScrubDamage {
        block: damage.pblk,
        inode: damage.ino,
        length: length as u32,
        text,
    }
}
