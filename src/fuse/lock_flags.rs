//! With which call a lock is asked for: flock(2) or fcntl(2).
//!
//! The kernel says so in `lk_flags` of `struct fuse_lk_in`, which `fuser` 0.18.0 reads and does not hand on. Without it the
//! two kinds of locks would be in each other's way, and a change of a flock(2) lock could not be told from one of fcntl(2).
//!
//! What is hard: `fuser` does hand on the header of the request, as a reference into the buffer that the kernel filled, and
//! what is wanted stands 80 bytes behind its beginning. That is read here, after what stands around it was compared with
//! what `fuser` says of the same request. The version of `fuser` is pinned; a test through a mount holds that flock(2) and
//! fcntl(2) are told apart.

use fuser::Request;

use crate::document::AdvisoryFamily;

/// `struct fuse_in_header` and `struct fuse_lk_in` of <linux/fuse.h>, as far as they matter.
#[repr(C)]
#[derive(Clone, Copy)]
struct LockRequest {
    len: u32,
    opcode: u32,
    unique: u64,
    nodeid: u64,
    uid: u32,
    gid: u32,
    pid: u32,
    padding: u32,
    fh: u64,
    owner: u64,
    start: u64,
    end: u64,
    typ: u32,
    lock_pid: u32,
    lk_flags: u32,
    padding_behind: u32,
}

const GETLK: u32 = 31;
const SETLK: u32 = 32;
const SETLKW: u32 = 33;
/// `FUSE_LK_FLOCK`.
const FLOCK: u32 = 1;

/// The family of the locks that `request` is about, a request for a lock of `owner`.
pub(super) fn family(request: &Request, owner: u64) -> AdvisoryFamily {
    let header: *const Request = request;
    // SAFETY: `fuser` 0.18.0 casts the beginning of the buffer that one read(2) filled into `Request`, and calls getlk and
    // setlk only after it has found a whole `fuse_lk_in` behind the header, in the same buffer. So all of `LockRequest` is
    // there and initialized, aligned as the header is, and nobody writes to it while `request` is borrowed.
    let whole = unsafe { header.cast::<LockRequest>().read() };
    let is_it = whole.len as usize >= size_of::<LockRequest>()
        && matches!(whole.opcode, GETLK | SETLK | SETLKW)
        && whole.unique == request.unique().0
        && whole.owner == owner;
    if !is_it {
        log::error!("a request for a lock is not as it should be; it is taken for one of fcntl(2)");
    }
    if is_it && whole.lk_flags & FLOCK != 0 { AdvisoryFamily::Flock } else { AdvisoryFamily::Fcntl }
}

const _: () = assert!(size_of::<LockRequest>() == 40 + 48 && align_of::<LockRequest>() == 8);
