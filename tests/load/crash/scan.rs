//! What is really there, and how it differs from a model. Follows no symlink and reads every byte.

use crate::common::sys;
use crate::model::{Body, Model, XATTRS};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Longer than a mount is busy with renames without a pause that a look fits in.
const REFUSED_AT_MOST: Duration = Duration::from_secs(10);

/// One path found.
pub(crate) struct Actual {
    inode: u64,
    links: u64,
    mode: u32,
    size: u64,
    xattrs: BTreeMap<String, String>,
    /// As a model has it.
    pub(crate) body: Body,
}

/// All paths below a directory.
pub(crate) type Tree = BTreeMap<String, Actual>;

/// Reads all of a file.
pub(crate) fn read(dir: &OwnedFd, path: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::from(sys::open_at(dir, path, libc::O_RDONLY, 0)?).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Scans everything below a directory.
pub(crate) fn scan(top: &OwnedFd) -> Result<Tree, String> {
    let mut tree = Tree::new();
    let mut directories = vec![String::new()];
    let mut seen = BTreeSet::new();
    while let Some(dir) = directories.pop() {
        let at = if dir.is_empty() { ".".to_owned() } else { dir.clone() };
        let opened = again(|| sys::open_dir_at(top, &at).and_then(|fd| sys::read_dir(&fd)));
        for (name, _) in opened.map_err(|e| format!("{at} cannot be listed: {e}"))? {
            let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
            let actual = again(|| look(top, &path)).map_err(|e| format!("{path} is listed, but: {e}"))?;
            if actual.body == Body::Dir {
                if !seen.insert(actual.inode) {
                    return Err(format!("directory {path} is in the tree twice"));
                }
                directories.push(path.clone());
            }
            if tree.insert(path.clone(), actual).is_some() {
                return Err(format!("{path} is listed twice"));
            }
        }
    }
    Ok(tree)
}

/// Asks again after ESTALE, for a while: a kernel refuses a look at a directory that another host has moved, as long as a
/// rename between directories runs in this mount (docs/semantics.md).
fn again<T>(ask: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let begun = Instant::now();
    loop {
        match ask() {
            Err(error) if error.raw_os_error() == Some(libc::ESTALE) && begun.elapsed() < REFUSED_AT_MOST => {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other,
        }
    }
}

fn look(top: &OwnedFd, path: &str) -> io::Result<Actual> {
    let stat = sys::stat_at(top, path)?;
    let mut xattrs = BTreeMap::new();
    let body = match stat.st_mode & libc::S_IFMT {
        libc::S_IFLNK => Body::Symlink(sys::readlink_at(top, path)?),
        kind => {
            let fd = sys::open_at(top, path, libc::O_RDONLY | libc::O_NONBLOCK, 0)?;
            for name in XATTRS {
                if let Some(value) = sys::get_xattr(&fd, name)? {
                    xattrs.insert(name.to_owned(), String::from_utf8_lossy(&value).into_owned());
                }
            }
            match kind {
                libc::S_IFDIR => Body::Dir,
                libc::S_IFREG => Body::File(read(top, path)?.into()),
                other => return Err(io::Error::other(format!("it is of kind {other:o}, which nobody made"))),
            }
        }
    };
    let (inode, links, size) = (stat.st_ino, stat.st_nlink, stat.st_size as u64);
    Ok(Actual { inode, links, mode: stat.st_mode & 0o7777, size, xattrs, body })
}

/// Where two contents begin to differ.
pub(crate) fn first_difference(expected: &[u8], found: &[u8]) -> String {
    let at = expected.iter().zip(found).position(|(a, b)| a != b);
    match at {
        Some(at) => format!(
            "byte {at} is {:#04x}, not {:#04x} (sizes: {}, expected {})",
            found[at],
            expected[at],
            found.len(),
            expected.len()
        ),
        None => format!("size is {}, not {}", found.len(), expected.len()),
    }
}

/// Every difference of what is there from what the model says; empty if there is none.
pub(crate) fn compare(model: &Model, tree: &Tree) -> Vec<String> {
    let mut wrong = Vec::new();
    for path in tree.keys().filter(|path| !model.paths.contains_key(*path)) {
        wrong.push(format!("{path} is there, but must not be"));
    }
    let mut names: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for (path, number) in &model.paths {
        match tree.get(path) {
            Some(actual) => compare_one(model, path, actual, &mut wrong),
            None => wrong.push(format!("{path} is missing")),
        }
        names.entry(*number).or_default().push(path);
    }
    compare_links(&names, tree, &mut wrong);
    wrong
}

fn compare_one(model: &Model, path: &str, actual: &Actual, wrong: &mut Vec<String>) {
    let Some(object) = model.at(path) else { return };
    match (&object.body, &actual.body) {
        (Body::File(expected), Body::File(found)) => {
            if expected != found {
                wrong.push(format!("{path}: {}", first_difference(expected, found)));
            } else if actual.size != found.len() as u64 {
                wrong.push(format!("{path}: stat says {} bytes, read gives {}", actual.size, found.len()));
            }
        }
        (Body::Dir, Body::Dir) => {
            let below = format!("{path}/");
            let is_child = |p: &str| p.strip_prefix(&below).is_some_and(|rest| !rest.contains('/'));
            let children = model
                .paths
                .keys()
                .filter(|p| is_child(p) && model.at(p).is_some_and(|o| o.body == Body::Dir));
            let links = 2 + children.count() as u64;
            // 1: filesystems that do not count.
            if actual.links != links && actual.links != 1 {
                wrong.push(format!("{path}: directory with {} links, not {links}", actual.links));
            }
        }
        (expected, found) if expected != found => {
            wrong.push(format!("{path}: is a {}, not a {}", describe(found), describe(expected)));
        }
        _ => {}
    }
    let is_link = matches!(object.body, Body::Symlink(_));
    if object.mode != actual.mode && !is_link {
        wrong.push(format!("{path}: mode {:o}, not {:o}", actual.mode, object.mode));
    }
    if object.xattrs != actual.xattrs {
        wrong.push(format!("{path}: attributes {:?}, not {:?}", actual.xattrs, object.xattrs));
    }
}

fn describe(body: &Body) -> String {
    match body {
        Body::Dir => "directory".into(),
        Body::File(bytes) => format!("file of {} bytes", bytes.len()),
        Body::Symlink(target) => format!("symlink to {target}"),
    }
}

/// The names of one object are one inode with as many links; two objects are two inodes.
fn compare_links(names: &BTreeMap<u64, Vec<&str>>, tree: &Tree, wrong: &mut Vec<String>) {
    let mut owners: BTreeMap<u64, u64> = BTreeMap::new();
    for (number, paths) in names {
        for actual in paths.iter().filter_map(|p| tree.get(*p)) {
            if *owners.entry(actual.inode).or_insert(*number) != *number {
                wrong.push(format!("{paths:?} share inode {} with another file", actual.inode));
            }
            if actual.body != Body::Dir && actual.links != paths.len() as u64 {
                wrong.push(format!("{paths:?}: {} links", actual.links));
            }
        }
        let inodes: BTreeSet<u64> = paths.iter().filter_map(|p| tree.get(*p)).map(|a| a.inode).collect();
        if inodes.len() > 1 {
            wrong.push(format!("{paths:?} are names of one file, but of {} inodes", inodes.len()));
        }
    }
}
