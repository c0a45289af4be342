//! A whole tree as text, one line an entry: what two trees must have in common.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

pub(crate) type Lines = BTreeMap<String, String>;

/// Type, mode, owner, links, size, content, attributes and target of everything below `root`, by path.
pub(crate) fn describe(root: &Path) -> Lines {
    let mut lines = Lines::new();
    walk(root, ".", &mut lines);
    lines
}

fn walk(path: &Path, name: &str, lines: &mut Lines) {
    let found = fs::symlink_metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let kind = found.file_type();
    let mut line = format!(
        "mode {:o} owner {}:{} links {} rdev {}",
        found.mode(),
        found.uid(),
        found.gid(),
        found.nlink(),
        found.rdev()
    );
    for (attribute, value) in attributes(path) {
        line.push_str(&format!(" {attribute}={value:x?}"));
    }
    if kind.is_file() {
        let bytes = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert_eq!(bytes.len() as u64, found.len(), "{}", path.display());
        line.push_str(&format!(" size {} {:016x}", bytes.len(), xxhash_rust::xxh3::xxh3_64(&bytes)));
    } else if kind.is_symlink() {
        line.push_str(&format!(" size {} to {:?}", found.len(), fs::read_link(path).ok()));
    } else if kind.is_dir() {
        for entry in fs::read_dir(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())) {
            let child = entry.expect("an entry").file_name();
            walk(&path.join(&child), &format!("{name}/{}", child.to_string_lossy()), lines);
        }
    }
    lines.insert(name.to_owned(), line);
}

fn attributes(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut names = vec![0; 4096];
    let len = rustix::fs::llistxattr(path, &mut names).unwrap_or(0);
    let names = names[..len].split(|b| *b == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let mut value = vec![0; 4096];
            let len = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value).unwrap_or(0);
            value.truncate(len);
            (String::from_utf8_lossy(name).into_owned(), value)
        })
        .collect()
}

/// The first entry that differs, in words.
pub(crate) fn difference(here: &Lines, there: &Lines) -> Option<String> {
    let mut paths = here.keys().chain(there.keys());
    let path = paths.find(|path| here.get(*path) != there.get(*path))?;
    Some(format!("{path}\n  here:  {:?}\n  there: {:?}", here.get(path), there.get(path)))
}
