//! Whose a call is.
use crate::call::Call;

/// A number that Linux gives to no call on x86-64 (x32's begin at 512): whoever makes it is told that its calls come here.
pub const HERE: u64 = 511;

/// Makes the call, if it is not the kernel's. False: the kernel makes it.
pub fn call(call: &mut Call) -> bool {
    match call.rax {
        HERE => {
            call.rax = 1;
            true
        }
        _ => false,
    }
}
