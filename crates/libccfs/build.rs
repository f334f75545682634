//! Gives the shared library its soname: programs are bound to the first number of the interface, not to a file.
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libccfs.so.1");
}
