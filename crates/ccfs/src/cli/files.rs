//! Those that work with files of a volume that is not mounted.
use crate::values;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

/// Lists a directory of a volume that is not mounted
///
/// This command, and tree, cat, put, get, cp, rm and mkdir, open the image in process: no mount, no root. A volume that a crash left in flight is
/// recovered first. IMAGE may also be LABEL=, UUID=, PARTLABEL= or PARTUUID= of a device.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub struct LsArgs {
    /// Names that begin with a dot, and `.` and `..`, too
    #[arg(short = 'a', long)]
    pub all: bool,
    /// Sizes with units, like 1.5 MiB
    #[arg(short = 'h', long)]
    pub human_readable: bool,
    /// What is below the directory as well, directory by directory
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    pub help: Option<bool>,
    /// Rights, links, owner, size, time (UTC) and targets of symlinks, too
    #[arg(short = 'l', long)]
    pub long: bool,
    /// As JSON, for programs
    #[arg(long)]
    pub json: bool,
    /// Directory or file in an image file or block device; without a path the root
    #[arg(value_name = "IMAGE[:PATH]")]
    pub place: OsString,
}

/// Shows a directory of a volume that is not mounted, with all that is below it
#[derive(Args, Debug)]
pub struct TreeArgs {
    /// As JSON, for programs
    #[arg(long)]
    pub json: bool,
    /// Directory in an image file or block device; without a path the root
    #[arg(value_name = "IMAGE[:PATH]")]
    pub place: OsString,
}

/// Prints files of a volume that is not mounted
#[derive(Args, Debug)]
pub struct CatArgs {
    /// Files in image files or block devices
    #[arg(required = true, value_name = "IMAGE:PATH")]
    pub places: Vec<OsString>,
}

/// Copies files and directories of this host into a volume that is not mounted
///
/// Keeps modes, owners, times, symlinks, hard links, holes, devices, extended attributes and ACLs. Each file appears whole; what has its
/// name is replaced. If the copy is killed, what was copied is there up to some point, in order. `ccfs put - IMAGE:PATH` makes one file of
/// standard input.
#[derive(Args, Debug)]
pub struct PutArgs {
    /// Give everything to this user and group, as numbers: 0 or 0:0
    #[arg(long, value_name = "UID[:GID]", value_parser = values::owner)]
    pub owner: Option<(u32, u32)>,
    /// What to copy, and at last where to: a directory that takes it, or its new name. FILE/. stands for what is in a directory, - for
    /// standard input
    #[arg(required = true, num_args = 2.., value_names = ["FILE", "IMAGE[:PATH]"])]
    pub files: Vec<OsString>,
}

/// Copies a file or directory of a volume that is not mounted to this host
///
/// Keeps what put keeps; owners and devices only as root. Nothing is written outside of DEST, whatever the volume holds. `ccfs get IMAGE:PATH
/// -` writes one file to standard output.
#[derive(Args, Debug)]
pub struct GetArgs {
    /// File or directory in an image file or block device; without a path all that is in the root
    #[arg(value_name = "IMAGE[:PATH]")]
    pub place: OsString,
    /// Where to: a directory that takes it, or its new name; - for standard output
    #[arg(value_name = "DEST", default_value = ".")]
    pub dest: PathBuf,
}

/// Copies files and directories within a volume that is not mounted, or from one to another
#[derive(Args, Debug)]
pub struct CpArgs {
    /// Give everything to this user and group, as numbers: 0 or 0:0
    #[arg(long, value_name = "UID[:GID]", value_parser = values::owner)]
    pub owner: Option<(u32, u32)>,
    /// What to copy, and at last where to
    #[arg(required = true, num_args = 2.., value_name = "IMAGE:PATH")]
    pub places: Vec<OsString>,
}

/// Removes files of a volume that is not mounted
#[derive(Args, Debug)]
pub struct RmArgs {
    /// Directories too, with all that is in them
    #[arg(short = 'r', long)]
    pub recursive: bool,
    /// What is not there is no failure
    #[arg(short = 'f', long)]
    pub force: bool,
    /// Files in image files or block devices
    #[arg(required = true, value_name = "IMAGE:PATH")]
    pub places: Vec<OsString>,
}

/// Makes directories in a volume that is not mounted
#[derive(Args, Debug)]
pub struct MkdirArgs {
    /// With the directories above; one that is there is no failure
    #[arg(short = 'p', long)]
    pub parents: bool,
    /// Directories in image files or block devices
    #[arg(required = true, value_name = "IMAGE:PATH")]
    pub places: Vec<OsString>,
}
