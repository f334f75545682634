//! Where the system calls of a C library are, and how they are led elsewhere.
//!
//! A program makes its system calls by instructions of its C library. `find` looks for these in the library's file once, and writes down
//! a [`plan`] of how each is replaced; whoever is loaded into a program only carries that out, which costs microseconds.
//!
//! An instruction `syscall` has two bytes, a jump five. So the jump takes the place of the instructions *before* it, which set the number of the
//! call as a rule; they are carried out elsewhere. `syscall` itself stays where it is: a call that is nobody's is made there, so that
//! what compares the program counter with it (the kernel's restarts, pthread_cancel of glibc 2.41) finds what it expects.
#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod calls;
pub mod environment;
#[cfg(feature = "find")]
pub mod find;
pub mod own_calls;
pub mod plan;
pub mod report;
