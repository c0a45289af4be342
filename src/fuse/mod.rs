//! The FUSE front end: from requests of the kernel to calls of the namespace, and back.
//!
//! Imports everything below it. What is hard, and where it is solved:
//! 1. A rename that waits for a lock must not hold up other requests: [`waiting`].
//! 2. A notification sent from inside a handler deadlocks with the kernel: [`notices`] sends from a thread of its own.
//! 3. Kernel caches live for ever, since one process owns the store: what the server changes on its own (privileges
//!    dropped by a write) is told to the kernel, and so is what goes through another mount: [`kernel_cache`].
//! 4. The errno of each error is decided in one place: [`errno`].
//! 5. Who waits for an advisory lock may do so for ever, and must be able to give up: [`advisory`], [`pending`].
//! 6. Who opens a file sees what was closed before, on another host too, whatever the kernel remembers: [`opens`].
//! 7. Written bytes that are kept back must not wait for ever, and who wrote them must learn what became of them:
//!    [`flusher`], [`bytes`].
//! 8. Threads that nobody needs must not take turns with those that somebody does: [`readers`].
//! 9. A rename must not put what the kernel remembers in the place of what it moves: [`beliefs`].
//! 10. A look must find a directory where another host has put it, though renames hold the lock that the kernel needs for
//!     that: [`below`].
//! 11. Locks, sessions and documents are shown as files beside the tree, to the mount's owner alone: [`control`].

pub mod abort;
mod adapter;
mod advisory;
pub mod attach;
mod beliefs;
mod below;
mod bytes;
mod connection;
pub mod control;
mod convert;
mod descriptors;
mod entries;
mod errno;
mod flusher;
mod kernel_cache;
mod known;
mod lately;
mod lock_flags;
pub mod mount;
mod names;
mod notices;
mod opens;
mod passthrough;
mod pending;
mod places;
mod points;
mod readers;
mod renames;
mod source;
mod stop;
mod waiting;
mod xattr;

pub use mount::{Mounted, mount};
