//! The operations, and how they are drawn: few names and small trees, so that operations meet.

use rustix::fs::{Dev, FileType};

use crate::common::rng::Rng;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const XATTRS: [&str; 3] = ["user.one", "user.two", "trusted.three"];
const MODES: [u32; 8] = [0o644, 0o755, 0o600, 0o777, 0o4755, 0o2755, 0o6777, 0o1777];
const OWNERS: [u32; 3] = [0, 1000, 65534];
const SLOTS: u64 = 4;

/// Where contents end, around what a document holds and well beyond it.
const OFFSETS: [u64; 8] = [0, 1, 100, 2047, 2048, 2049, 5000, 300_000];

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Mkdir(String, u32),
    Rmdir(String),
    Unlink(String),
    Create(String),
    Node(String, FileType, Dev),
    Symlink(String, String),
    Link(String, String),
    Rename(String, String, u32),
    Stat(String),
    Readlink(String),
    Chmod(String, u32),
    Chown(String, u32, u32),
    SetTimes(String, i64, i64),
    SetXattr(String, String, Vec<u8>, u32),
    GetXattr(String, String),
    RemoveXattr(String, String),
    Write(String, u64, Vec<u8>),
    Append(String, Vec<u8>),
    Read(String, u64, usize),
    Truncate(String, u64),
    Overwrite(String),
    Fallocate(String, u32, u64, u64),
    Copy(String, String, [u64; 2], usize),
    Open(usize, String),
    Close(usize),
    WriteOpen(usize, u64, Vec<u8>),
    ReadOpen(usize, u64, usize),
    TruncateOpen(usize, u64),
    StatOpen(usize),
    SyncOpen(usize),
}

impl Op {
    /// The paths whose modification times must change on both sides or on neither. Not of what the file systems of Linux
    /// differ in among themselves: cutting to the same size, and reserving space.
    pub(crate) fn watched(&self) -> Vec<String> {
        let parent = |path: &str| path.rsplit_once('/').map_or(".".to_owned(), |(p, _)| p.to_owned());
        let with_parent = |paths: &[&String]| -> Vec<String> {
            paths.iter().flat_map(|path| [(*path).clone(), parent(path)]).collect()
        };
        match self {
            Self::Mkdir(path, _)
            | Self::Rmdir(path)
            | Self::Unlink(path)
            | Self::Create(path)
            | Self::Node(path, ..)
            | Self::Symlink(_, path)
            | Self::Chmod(path, _)
            | Self::Chown(path, ..)
            | Self::SetXattr(path, ..)
            | Self::RemoveXattr(path, _)
            | Self::Write(path, ..)
            | Self::Append(path, _)
            | Self::Read(path, ..) => with_parent(&[path]),
            Self::Link(from, to) => with_parent(&[from, to]),
            // Under the new name there is another file, whose time may happen to be the same.
            Self::Rename(from, to, _) => vec![parent(from), parent(to)],
            _ => Vec::new(),
        }
    }
}

/// What to draw from: randomness, and the paths that there are.
pub(crate) struct Source {
    pub(crate) rng: Rng,
    pub(crate) paths: Vec<String>,
}

impl Source {
    fn below(&mut self, bound: u64) -> u64 {
        self.rng.below(bound)
    }

    fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        self.rng.pick(items)
    }

    /// Mostly one that there is, or could be; sometimes one that leads nowhere.
    fn path(&mut self) -> String {
        let known = if self.paths.is_empty() { "a" } else { self.rng.pick(&self.paths).as_str() };
        match self.rng.below(10) {
            0..6 => known.to_owned(),
            6..8 => format!("{known}/{}", self.rng.pick(&NAMES)),
            _ => (*self.rng.pick(&NAMES)).to_owned(),
        }
    }
}

/// Often short, now and then beyond what goes into a document.
fn data(rng: &mut Source) -> Vec<u8> {
    let len = *rng.pick(&[0, 1, 10, 500, 2048, 3000, 40_000]);
    let first = rng.below(256) as u8;
    (0..len).map(|n: usize| first.wrapping_add((n / 7) as u8)).collect()
}

/// A list of the kernel's form, with a named user or no more than a mode says.
fn acl(rng: &mut Source) -> Vec<u8> {
    const MINIMAL: [u16; 3] = [0x01, 0x04, 0x20];
    let entries = [(0x01u16, u32::MAX), (0x02, 1000), (0x04, u32::MAX), (0x10, u32::MAX), (0x20, u32::MAX)];
    let minimal = rng.below(4) == 0;
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, id) in entries.into_iter().filter(|(tag, _)| !minimal || MINIMAL.contains(tag)) {
        bytes.extend(tag.to_le_bytes());
        bytes.extend((rng.below(8) as u16).to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

pub(crate) fn draw(rng: &mut Source) -> Op {
    match rng.below(100) {
        0..38 => draw_name(rng),
        38..60 => draw_attribute(rng),
        60..82 => draw_bytes(rng),
        _ => draw_open(rng),
    }
}

fn draw_name(rng: &mut Source) -> Op {
    const KINDS: [(FileType, Dev); 4] = [
        (FileType::Fifo, 0),
        (FileType::Socket, 0),
        (FileType::CharacterDevice, 0x0103),
        (FileType::RegularFile, 0),
    ];
    // Each flag, and two that go together with nobody.
    const FLAGS: [u32; 8] = [0, 0, 0, 0, 1, 2, 4, 3];
    let at = rng.path();
    match rng.below(19) {
        0..4 => Op::Mkdir(at, *rng.pick(&MODES)),
        4 | 5 => Op::Create(at),
        6 => Op::Rmdir(at),
        7 => Op::Unlink(at),
        8 => {
            let (kind, rdev) = *rng.pick(&KINDS);
            Op::Node(at, kind, rdev)
        }
        9 => Op::Symlink(rng.path(), at),
        10 | 11 => Op::Link(at, rng.path()),
        _ => Op::Rename(at, rng.path(), *rng.pick(&FLAGS)),
    }
}

fn draw_attribute(rng: &mut Source) -> Op {
    let at = rng.path();
    match rng.below(12) {
        0..3 => Op::Stat(at),
        3 => Op::Readlink(at),
        4 | 5 => Op::Chmod(at, *rng.pick(&MODES)),
        6 => Op::Chown(at, *rng.pick(&OWNERS), *rng.pick(&OWNERS)),
        7 => Op::SetTimes(at, rng.below(5 << 29) as i64 - (1 << 30), rng.below(1_000_000_000) as i64),
        8 => Op::GetXattr(at, (*rng.pick(&XATTRS)).to_owned()),
        9 => Op::RemoveXattr(at, (*rng.pick(&XATTRS)).to_owned()),
        10 => {
            let name = *rng.pick(&["system.posix_acl_access", "system.posix_acl_default"]);
            Op::SetXattr(at, name.to_owned(), acl(rng), 0)
        }
        _ => {
            let value = vec![rng.below(256) as u8; rng.below(200) as usize];
            Op::SetXattr(at, (*rng.pick(&XATTRS)).to_owned(), value, rng.below(3) as u32)
        }
    }
}

fn draw_bytes(rng: &mut Source) -> Op {
    // Reserve, keeping the size or not; punch; zero, keeping the size or not; and one that is refused.
    const FALLOCATE: [u32; 6] = [0x00, 0x01, 0x03, 0x10, 0x11, 0x02];
    let (at, offset) = (rng.path(), *rng.pick(&OFFSETS));
    match rng.below(12) {
        0..4 => Op::Write(at, offset, data(rng)),
        4 => Op::Append(at, data(rng)),
        5 | 6 => Op::Read(at, offset, 100_000),
        7 | 8 => Op::Truncate(at, offset),
        9 => Op::Overwrite(at),
        10 => Op::Fallocate(at, *rng.pick(&FALLOCATE), offset, *rng.pick(&OFFSETS)),
        _ => Op::Copy(at, rng.path(), [offset, *rng.pick(&OFFSETS)], *rng.pick(&OFFSETS) as usize),
    }
}

fn draw_open(rng: &mut Source) -> Op {
    let (slot, offset) = (rng.below(SLOTS) as usize, *rng.pick(&OFFSETS));
    match rng.below(9) {
        0..3 => Op::Open(slot, rng.path()),
        3 => Op::Close(slot),
        4 => Op::WriteOpen(slot, offset, data(rng)),
        5 => Op::ReadOpen(slot, offset, 100_000),
        6 => Op::TruncateOpen(slot, offset),
        7 => Op::StatOpen(slot),
        _ => Op::SyncOpen(slot),
    }
}
