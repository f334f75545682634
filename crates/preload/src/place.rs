//! Where paths begin, and where they lead.

/// A directory of the tree.
pub type Id = u64;

/// From where a path goes.
#[derive(Clone, Copy)]
pub enum Base {
    Held(Id),
    /// A descriptor of the kernel's, or AT_FDCWD.
    At(i32),
}

/// Where a path leads inside of a held tree.
pub struct Place<'p> {
    pub dir: Id,
    /// `None`: to the directory itself.
    pub name: Option<&'p [u8]>,
    /// It says that it is one of a directory.
    pub slash: bool,
}
