//! Exit codes of the conventions that commands follow; others fail with 1, and with 2 where their arguments are wrong.

/// Exit codes of mount(8) and umount(8).
pub mod mount_code {
    /// Wrong arguments, or no permission.
    pub const USAGE: u8 = 1;
    /// The system refused something (no memory, no device).
    pub const SYSTEM: u8 = 2;
    /// The mount itself failed.
    pub const FAILED: u8 = 32;
}

/// Exit codes of fsck(8); they are bits.
pub mod fsck_code {
    /// Errors are left.
    pub const UNCORRECTED: u8 = 4;
    /// The check could not be carried out.
    pub const OPERATIONAL: u8 = 8;
    /// Wrong arguments.
    pub const USAGE: u8 = 16;
}
