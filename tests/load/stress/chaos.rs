//! Moves and exchanges of whatever is found in the pool. Nothing is deleted and no two names are ever equal, so none
//! of these may lose or double anything, whoever wins: the judge needs no record of them.

use crate::common::rng::Rng;
use crate::common::sys;
use crate::ledger::{Ledger, MARKER};
use crate::own::OWN;
use crate::world::View;
use std::os::fd::OwnedFd;

/// One random operation.
pub(crate) fn step(view: &View, rng: &mut Rng, ledger: &mut Ledger) {
    match rng.below(100) {
        0..30 => move_within(view, rng, ledger),
        30..70 => move_across(view, rng, ledger),
        70..90 => exchange(view, rng, ledger),
        90..97 => move_into_itself(view, rng, ledger),
        _ => deepen(view, rng, ledger),
    }
}

fn any<'a>(view: &'a View, rng: &mut Rng) -> &'a OwnedFd {
    &view.pool[rng.below(view.pool.len())]
}

/// A directory of the pool and a movable name that was in it a moment ago.
fn find<'a>(view: &'a View, rng: &mut Rng) -> Option<(&'a OwnedFd, String)> {
    for _ in 0..8 {
        let dir = any(view, rng);
        let mut names: Vec<String> = sys::read_dir(dir).ok()?.into_iter().map(|(name, _)| name).collect();
        names.retain(|name| !name.starts_with(MARKER) && !name.starts_with(OWN));
        if let Some(name) = rng.pick(&names) {
            return Some((dir, name.clone()));
        }
    }
    None
}

/// A name that nothing has had before; it keeps its first letter.
fn renamed(name: &str, ledger: &mut Ledger) -> String {
    format!("{}{:x}", name.get(..1).unwrap_or("x"), ledger.fresh())
}

/// A rename in one directory: the kind that several workers can have in flight in one mount.
fn move_within(view: &View, rng: &mut Rng, ledger: &mut Ledger) {
    let Some((dir, name)) = find(view, rng) else { return };
    let new = renamed(&name, ledger);
    ledger.count("rename", &sys::rename_at(dir, &name, dir, &new, 0));
}

fn move_across(view: &View, rng: &mut Rng, ledger: &mut Ledger) {
    let Some((dir, name)) = find(view, rng) else { return };
    let new = if rng.chance(50) { name.clone() } else { renamed(&name, ledger) };
    let flags = if view.flags && rng.chance(30) { libc::RENAME_NOREPLACE } else { 0 };
    let result = sys::rename_at(dir, &name, any(view, rng), &new, flags);
    ledger.count("move", &result);
}

fn exchange(view: &View, rng: &mut Rng, ledger: &mut Ledger) {
    let (Some((dir, name)), Some((other, theirs))) = (find(view, rng), find(view, rng)) else { return };
    // With itself it would succeed even where exchange is not supported.
    if !view.flags || (std::ptr::eq(dir, other) && name == theirs) {
        return;
    }
    let result = sys::rename_at(dir, &name, other, &theirs, libc::RENAME_EXCHANGE);
    ledger.count("exchange", &result);
}

/// Moves a directory to below itself, as a child or deeper: it must never succeed. The child is taken by its name, so
/// that whatever others do meanwhile, source and destination are tied to each other.
fn move_into_itself(view: &View, rng: &mut Rng, ledger: &mut Ledger) {
    let Some((dir, name)) = find(view, rng) else { return };
    let Ok(inside) = sys::open_dir_at(dir, &name) else { return };
    let flags = if view.flags && rng.chance(30) { libc::RENAME_NOREPLACE } else { 0 };
    let new = renamed(&name, ledger);
    let result = sys::rename_at(dir, &name, &inside, &new, flags);
    // The name may be another object's by now (an exchange), so that success is no proof of wrong: the judge walks.
    ledger.count("into-itself", &result);
}

/// Puts directories below each other, each in the one before, so that the tree grows deep again.
fn deepen(view: &View, rng: &mut Rng, ledger: &mut Ledger) {
    let Ok(mut below) = any(view, rng).try_clone() else { return };
    for _ in 0..12 {
        let Some((dir, name)) = find(view, rng).filter(|(_, name)| name.starts_with('d')) else { continue };
        let moved = ledger.count("deepen", &sys::rename_at(dir, &name, &below, &name, 0));
        if let Some(next) = sys::open_dir_at(&below, &name).ok().filter(|_| moved) {
            below = next;
        }
    }
}
