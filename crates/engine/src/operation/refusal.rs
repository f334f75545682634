//! Why a try of an operation came to nothing, inside of the engine: what passes is waited for (`Operations::unblocked`), the rest is the
//! caller's error.
use crate::overlay::objects::Txn;
use crate::overlay::stream::Refused;
use ccfs_ext4::Error;
use std::sync::Arc;

pub(crate) enum Refusal {
    /// An open group has changed what the operation would change. It is tried again when that has ended.
    Blocked(Arc<Txn>),
    /// Another operation has its turn alone at what is free. It is tried again when that is over.
    AnothersTurn,
    /// It is not tried again.
    Final(Error),
}

/// What a try of an operation gave.
pub(crate) type Tried<T> = Result<T, Refusal>;

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::Final(error)
    }
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Refusal {
        match refused {
            Refused::Blocked(txn) => Refusal::Blocked(txn),
            Refused::Cancelled => Refusal::Final(Error::Errno(libc::ECANCELED)),
            Refused::TooLarge => Refusal::Final(Error::Errno(libc::EDQUOT)),
        }
    }
}
