//! What is loaded into programs whose calls on a mount shall not go through the kernel (`ccfs direct`).
//!
//! Before the program begins, the system calls of its C library are led here ([`patch`]). Each comes to [`dispatch`], in the middle of
//! whatever the program does: it may hold any lock of the library, be in a signal handler, or have little stack. So memory is this library's own
//! ([`heap`]), and system calls are made by rustix, whose instructions are its own.
//!
//! A call is about a path ([`by_path`], [`paths`], [`taking`]), a descriptor ([`by_descriptor`], [`files`]), or the process ([`process`], [`children`]). It is
//! made here if it is about something that this process holds: a directory of the [`tree`], an open file of the [`table`]. All else is the kernel's,
//! which is given real descriptors before ([`real`]).
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod acl;
mod ahead;
mod answer;
mod asking;
mod attributes;
mod attrs;
mod by_descriptor;
mod by_path;
mod call;
mod changes;
mod children;
mod copying;
mod count;
mod descriptors;
mod dispatch;
mod entry;
mod files;
mod gain;
mod heads;
mod heap;
mod identity;
mod leak;
mod limits;
mod listing;
mod mapping;
mod mounts;
mod objects;
mod patch;
mod path;
mod paths;
mod place;
mod process;
mod program;
mod raw;
mod real;
mod region;
mod register;
mod sanitizer;
mod sessions;
mod signals;
mod start;
mod state;
mod table;
mod taking;
mod thread;
mod tree;
mod tries;
mod writers;
