//! The judge: walks the tree from its root when all is quiet and compares what is there with what was acknowledged.
//!
//! It believes nothing but `openat`, `getdents64`, `fstatat` and `read`, follows no symlink, and knows nothing of how
//! the filesystem works. A directory in a loop is reachable from nowhere, so that it shows as lost.

use crate::common::sys;
use crate::ledger::{Arrival, Id, Ledger, MARKER, read_id};
use crate::slots::slot_name;
use crate::world::View;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// What the walk found.
#[derive(Default)]
pub(crate) struct Found {
    /// Every place of every id: one each, if all is well.
    pub(crate) places: BTreeMap<Id, Vec<String>>,
    /// Paths of files of the pool, to play tricks with.
    pub(crate) pool_files: Vec<String>,
    /// Directories seen, by device and inode.
    seen: BTreeSet<(u64, u64)>,
    /// What is wrong in the tree by itself.
    problems: Vec<String>,
}

/// A directory to visit: open, its path, and the inode of its parent.
struct Visit {
    dir: OwnedFd,
    path: String,
    parent: Option<u64>,
}

/// Walks everything below `home`.
pub(crate) fn walk(home: &Path) -> io::Result<Found> {
    let mut found = Found::default();
    let mut stack = vec![Visit { dir: sys::open_dir(home)?, path: String::new(), parent: None }];
    while let Some(visit) = stack.pop() {
        found.directory(&visit, &mut stack)?;
    }
    Ok(found)
}

impl Found {
    fn directory(&mut self, visit: &Visit, stack: &mut Vec<Visit>) -> io::Result<()> {
        let stat = sys::stat_fd(&visit.dir)?;
        if !self.seen.insert((stat.st_dev, stat.st_ino)) {
            self.problems
                .push(format!("directory {} is in the tree twice: inode {}", visit.path, stat.st_ino));
            return Ok(());
        }
        if let Some(parent) = visit.parent
            && sys::stat_at(&visit.dir, "..")?.st_ino != parent
        {
            self.problems.push(format!("{}/.. is another directory than the one it stands in", visit.path));
        }
        let (mut subdirectories, mut markers) = (0, Vec::new());
        for (name, kind) in sys::read_dir(&visit.dir)? {
            let path = format!("{}/{name}", visit.path);
            let entry = match sys::stat_at(&visit.dir, &name) {
                Ok(entry) => entry,
                Err(e) => {
                    self.problems.push(format!("{path} is listed, but stat says: {e}"));
                    continue;
                }
            };
            let is_dir = entry.st_mode & libc::S_IFMT == libc::S_IFDIR;
            if kind != libc::DT_UNKNOWN && is_dir != (kind == libc::DT_DIR) {
                self.problems.push(format!("{path}: readdir and stat disagree about what it is"));
            }
            if is_dir {
                subdirectories += 1;
                let dir = sys::open_dir_at(&visit.dir, &name)?;
                stack.push(Visit { dir, path, parent: Some(stat.st_ino) });
            } else if let Some(hex) = name.strip_prefix(MARKER) {
                markers.push(Id::from_str_radix(hex, 16).unwrap_or_default());
            } else {
                self.file(&visit.dir, &name, path, &entry);
            }
        }
        // 1: filesystems that do not count, such as btrfs and overlays.
        let links = stat.st_nlink;
        if links != 2 + subdirectories && links != 1 {
            self.problems.push(format!("{}: {links} links, {subdirectories} subdirectories", visit.path));
        }
        self.identity(&visit.path, &markers);
        Ok(())
    }

    fn identity(&mut self, path: &str, markers: &[Id]) {
        match markers {
            [id] => self.places.entry(*id).or_default().push(format!("{path}/")),
            [] if path.is_empty() => {}
            other => self.problems.push(format!("directory {path} holds {} ids: {other:x?}", other.len())),
        }
    }

    fn file(&mut self, dir: &OwnedFd, name: &str, path: String, stat: &libc::stat) {
        if stat.st_nlink != 1 || stat.st_mode & libc::S_IFMT != libc::S_IFREG {
            let (mode, links) = (stat.st_mode, stat.st_nlink);
            self.problems.push(format!("{path}: mode {mode:o}, {links} links; made as a file with one"));
        }
        let file = sys::open_at(dir, name, libc::O_RDONLY, 0).map(File::from);
        match file.and_then(|file| read_id(&file)) {
            Ok(Some(id)) => {
                if path.starts_with("/pool/") {
                    self.pool_files.push(path.clone());
                }
                self.places.entry(id).or_default().push(path);
            }
            Ok(None) => self.problems.push(format!("{path}: holds no id")),
            Err(e) => self.problems.push(format!("{path}: {e}")),
        }
    }
}

/// Everything that is wrong; empty if every acknowledged object is there exactly once, and nothing else.
pub(crate) fn compare(found: &Found, ledgers: &[Ledger], view: &View) -> Vec<String> {
    let mut wrong: Vec<String> = found.problems.clone();
    wrong.extend(ledgers.iter().flat_map(|l| l.violations.clone()));
    let mut expected: BTreeSet<Id> = ledgers.iter().flat_map(|l| l.created.iter().copied()).collect();
    for id in ledgers.iter().flat_map(|l| &l.deleted) {
        if !expected.remove(id) {
            wrong.push(format!("{id:x} was deleted twice, or never made"));
        }
    }
    let arrivals: Vec<&Arrival> = ledgers.iter().flat_map(|l| &l.arrivals).collect();
    contests(found, &arrivals, &mut expected, &mut wrong);
    for (id, places) in &found.places {
        if places.len() > 1 {
            wrong.push(format!("{id:x} is there {} times: {}", places.len(), places.join(" and ")));
        }
        if !expected.remove(id) {
            wrong.push(format!(
                "{id:x} is at {}, but its delete was acknowledged, or nobody made it",
                places[0]
            ));
        }
    }
    for id in expected {
        wrong.push(format!("{id:x} is lost: it was made, never deleted, and is nowhere"));
    }
    for dir in &view.pool {
        if let Ok(stat) = sys::stat_fd(dir)
            && !found.seen.contains(&(stat.st_dev, stat.st_ino))
        {
            let (inode, links) = (stat.st_ino, stat.st_nlink);
            wrong.push(format!(
                "directory {inode} lives ({links} links), reachable from nowhere: orphan or loop"
            ));
        }
    }
    wrong
}

/// Of the files that went to a contested name one is left, under that name; no other rename came wholly after its own.
fn contests(found: &Found, arrivals: &[&Arrival], expected: &mut BTreeSet<Id>, wrong: &mut Vec<String>) {
    let slots: BTreeSet<usize> = arrivals.iter().map(|a| a.slot).collect();
    for slot in slots {
        let mine: Vec<&&Arrival> = arrivals.iter().filter(|a| a.slot == slot).collect();
        let (left, gone): (Vec<&&Arrival>, Vec<&&Arrival>) =
            mine.into_iter().partition(|a| found.places.contains_key(&a.id));
        for arrival in &gone {
            expected.remove(&arrival.id);
        }
        let place = format!("/slots/{}", slot_name(slot));
        let [winner] = left.as_slice() else {
            wrong.push(format!(
                "{place}: {} of {} files are left, not one",
                left.len(),
                left.len() + gone.len()
            ));
            continue;
        };
        if found.places[&winner.id] != [place.clone()] {
            wrong.push(format!("{place}: its file is at {:?}", found.places[&winner.id]));
        }
        if gone.iter().any(|other| other.start > winner.end) {
            wrong.push(format!("{place}: {:x} is there, though a later rename replaced it", winner.id));
        }
    }
}
