//! The operations of the crash load, how they are written in the ledger, and how they are performed.
//!
//! Paths are relative to the directory of the thread and hold no spaces. The bytes of a write are a function of the
//! file, the write and the offset, so that each byte found later says whether it belongs there.

use crate::common::rng::mix;
use crate::common::sys;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

/// One change of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Op {
    /// An empty file; its number is that of the operation.
    Create {
        path: String,
    },
    /// Bytes of this operation's generation, at an offset.
    Write {
        path: String,
        offset: u64,
        length: u64,
    },
    /// The same through `O_APPEND`; the offset is the size before.
    Append {
        path: String,
        offset: u64,
        length: u64,
    },
    /// Changes nothing that can be seen.
    Fsync {
        path: String,
    },
    Truncate {
        path: String,
        size: u64,
    },
    /// Of a file or a directory; a victim at `new` goes.
    Rename {
        old: String,
        new: String,
    },
    Exchange {
        old: String,
        new: String,
    },
    Link {
        old: String,
        new: String,
    },
    Unlink {
        path: String,
    },
    Symlink {
        path: String,
        target: String,
    },
    Chmod {
        path: String,
        mode: u32,
    },
    SetXattr {
        path: String,
        name: String,
        value: String,
    },
    RemoveXattr {
        path: String,
        name: String,
    },
    Mkdir {
        path: String,
    },
    Rmdir {
        path: String,
    },
}

/// The byte that write `generation` puts at an offset.
fn word(generation: u64, offset: u64) -> [u8; 8] {
    mix(generation ^ mix(offset / 8)).to_le_bytes()
}

/// The bytes that write `generation` of a thread puts at `offset..offset + length`.
pub(crate) fn bytes_of(thread: usize, generation: u64, offset: u64, length: u64) -> Vec<u8> {
    let generation = ((thread as u64 + 1) << 48) | generation;
    let mut bytes = Vec::with_capacity(length as usize + 8);
    let mut at = offset;
    while at < offset + length {
        let word = word(generation, at);
        let take = &word[(at % 8) as usize..];
        bytes.extend_from_slice(take);
        at += take.len() as u64;
    }
    bytes.truncate(length as usize);
    bytes
}

impl Op {
    /// As written in the ledger.
    pub(crate) fn to_text(&self) -> String {
        match self {
            Self::Create { path } => format!("create {path}"),
            Self::Write { path, offset, length } => format!("write {path} {offset} {length}"),
            Self::Append { path, offset, length } => format!("append {path} {offset} {length}"),
            Self::Fsync { path } => format!("fsync {path}"),
            Self::Truncate { path, size } => format!("truncate {path} {size}"),
            Self::Rename { old, new } => format!("rename {old} {new}"),
            Self::Exchange { old, new } => format!("exchange {old} {new}"),
            Self::Link { old, new } => format!("link {old} {new}"),
            Self::Unlink { path } => format!("unlink {path}"),
            Self::Symlink { path, target } => format!("symlink {path} {target}"),
            Self::Chmod { path, mode } => format!("chmod {path} {mode:o}"),
            Self::SetXattr { path, name, value } => format!("setxattr {path} {name} {value}"),
            Self::RemoveXattr { path, name } => format!("removexattr {path} {name}"),
            Self::Mkdir { path } => format!("mkdir {path}"),
            Self::Rmdir { path } => format!("rmdir {path}"),
        }
    }

    /// Reads what [`Op::to_text`] wrote; `None` if it did not.
    pub(crate) fn from_words(words: &[&str]) -> Option<Self> {
        let text = |i: usize| words.get(i).map(|w| (*w).to_owned());
        let number = |i: usize| words.get(i).and_then(|w| w.parse::<u64>().ok());
        let path = text(1)?;
        Some(match *words.first()? {
            "create" => Self::Create { path },
            "write" => Self::Write { path, offset: number(2)?, length: number(3)? },
            "append" => Self::Append { path, offset: number(2)?, length: number(3)? },
            "fsync" => Self::Fsync { path },
            "truncate" => Self::Truncate { path, size: number(2)? },
            "rename" => Self::Rename { old: path, new: text(2)? },
            "exchange" => Self::Exchange { old: path, new: text(2)? },
            "link" => Self::Link { old: path, new: text(2)? },
            "unlink" => Self::Unlink { path },
            "symlink" => Self::Symlink { path, target: text(2)? },
            "chmod" => Self::Chmod { path, mode: u32::from_str_radix(words.get(2)?, 8).ok()? },
            "setxattr" => Self::SetXattr { path, name: text(2)?, value: text(3)? },
            "removexattr" => Self::RemoveXattr { path, name: text(2)? },
            "mkdir" => Self::Mkdir { path },
            "rmdir" => Self::Rmdir { path },
            _ => return None,
        })
    }

    /// Does it, below the directory of the thread.
    pub(crate) fn perform(&self, dir: &OwnedFd, thread: usize, number: u64) -> io::Result<()> {
        let open = |path: &str, flags| sys::open_at(dir, path, flags, 0).map(File::from);
        match self {
            Self::Create { path } => sys::create_at(dir, path).map(drop),
            Self::Write { path, offset, length } => {
                open(path, libc::O_WRONLY)?.write_all_at(&bytes_of(thread, number, *offset, *length), *offset)
            }
            Self::Append { path, offset, length } => {
                let bytes = bytes_of(thread, number, *offset, *length);
                io::Write::write_all(&mut open(path, libc::O_WRONLY | libc::O_APPEND)?, &bytes)
            }
            Self::Fsync { path } => open(path, libc::O_RDWR)?.sync_all(),
            Self::Truncate { path, size } => open(path, libc::O_WRONLY)?.set_len(*size),
            Self::Rename { old, new } => sys::rename_at(dir, old, dir, new, 0),
            Self::Exchange { old, new } => sys::rename_at(dir, old, dir, new, libc::RENAME_EXCHANGE),
            Self::Link { old, new } => sys::link_at(dir, old, new),
            Self::Unlink { path } => sys::unlink_at(dir, path),
            Self::Symlink { path, target } => sys::symlink_at(target, dir, path),
            Self::Chmod { path, mode } => sys::chmod_at(dir, path, *mode),
            Self::SetXattr { path, name, value } => {
                sys::set_xattr(open(path, libc::O_RDONLY)?, name, value.as_bytes())
            }
            Self::RemoveXattr { path, name } => sys::remove_xattr(open(path, libc::O_RDONLY)?, name),
            Self::Mkdir { path } => sys::mkdir_at(dir, path),
            Self::Rmdir { path } => sys::rmdir_at(dir, path),
        }
    }
}
