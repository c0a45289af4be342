//! The operations, how they are drawn, and how each is done on both sides.

use proptest::prelude::*;

use super::reference::{Body, Id, Manner, Outcome, ROOT, Reference, Refusal};
use super::subject::Subject;

/// Few names and few nodes, so that operations meet.
const NAMES: [&str; 4] = ["a", "b", "c", "\u{e9}"];

/// Where contents end, often around the largest that a document holds.
const OFFSET_MAX: usize = 200;

/// Which node: taken modulo the number of those that there are or were.
pub(crate) type Pick = u8;

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Create(Pick, usize),
    CreateOpen(Pick, usize),
    Mkdir(Pick, usize),
    Symlink(Pick, usize),
    Link(Pick, Pick, usize),
    Unlink(Pick, usize),
    Rmdir(Pick, usize),
    Rename(Pick, usize, Pick, usize, Manner),
    Write(Pick, usize, usize, u8),
    Resize(Pick, usize),
    Reserve(Pick, usize, usize, bool),
    Zero(Pick, usize, usize, bool),
    Punch(Pick, usize, usize),
    Copy(Pick, usize, Pick, usize, usize),
    SetXattr(Pick, usize, usize),
    RemoveXattr(Pick, usize),
    Chmod(Pick, u32),
    Open(Pick),
    Close(Pick),
    Sync(Pick),
    Reopen,
    Crash,
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    let pick = || any::<Pick>();
    let name = || 0..NAMES.len();
    let offset = || 0..OFFSET_MAX;
    let manner = prop_oneof![
        3 => Just(Manner::Replace),
        1 => Just(Manner::NoReplace),
        1 => Just(Manner::Exchange),
        1 => Just(Manner::Whiteout),
    ];
    let names = prop_oneof![
        4 => (pick(), name()).prop_map(|(d, n)| Step::Create(d, n)),
        1 => (pick(), name()).prop_map(|(d, n)| Step::CreateOpen(d, n)),
        5 => (pick(), name()).prop_map(|(d, n)| Step::Mkdir(d, n)),
        1 => (pick(), name()).prop_map(|(d, n)| Step::Symlink(d, n)),
        2 => (pick(), pick(), name()).prop_map(|(f, d, n)| Step::Link(f, d, n)),
        2 => (pick(), name()).prop_map(|(d, n)| Step::Unlink(d, n)),
        2 => (pick(), name()).prop_map(|(d, n)| Step::Rmdir(d, n)),
        8 => (pick(), name(), pick(), name(), manner).prop_map(|(d, n, e, m, how)| Step::Rename(d, n, e, m, how)),
    ];
    let bytes = prop_oneof![
        4 => (pick(), offset(), offset(), any::<u8>()).prop_map(|(f, o, l, b)| Step::Write(f, o, l, b)),
        3 => (pick(), offset()).prop_map(|(f, s)| Step::Resize(f, s)),
        1 => (pick(), offset(), offset(), any::<bool>()).prop_map(|(f, o, l, k)| Step::Reserve(f, o, l, k)),
        1 => (pick(), offset(), offset(), any::<bool>()).prop_map(|(f, o, l, k)| Step::Zero(f, o, l, k)),
        1 => (pick(), offset(), offset()).prop_map(|(f, o, l)| Step::Punch(f, o, l)),
        1 => (pick(), offset(), pick(), offset(), 1..OFFSET_MAX)
            .prop_map(|(f, o, g, p, l)| Step::Copy(f, o, g, p, l)),
    ];
    let rest = prop_oneof![
        2 => (pick(), name(), offset()).prop_map(|(i, n, l)| Step::SetXattr(i, n, l)),
        1 => (pick(), name()).prop_map(|(i, n)| Step::RemoveXattr(i, n)),
        1 => (pick(), 0..0o1000u32).prop_map(|(i, m)| Step::Chmod(i, m)),
        2 => pick().prop_map(Step::Open),
        2 => pick().prop_map(Step::Close),
        1 => pick().prop_map(Step::Sync),
        1 => Just(Step::Reopen),
        1 => Just(Step::Crash),
    ];
    prop_oneof![3 => names, 2 => bytes, 1 => rest]
}

fn directory(reference: &Reference, pick: Pick) -> Id {
    let all: Vec<Id> = (0..reference.nodes.len()).filter(|id| reference.is_directory(*id)).collect();
    all[usize::from(pick) % all.len()]
}

/// Something that is no directory; the root if there is none.
fn file(reference: &Reference, pick: Pick) -> Id {
    let all: Vec<Id> = (0..reference.nodes.len()).filter(|id| !reference.is_directory(*id)).collect();
    if all.is_empty() { ROOT } else { all[usize::from(pick) % all.len()] }
}

/// Anything, and files more often.
fn any_node(reference: &Reference, pick: Pick) -> Id {
    if pick.is_multiple_of(4) { directory(reference, pick / 4) } else { file(reference, pick / 4) }
}

/// Does a step on both sides. The outcomes are compared by the caller.
pub(crate) fn apply(step: &Step, reference: &mut Reference, subject: &mut Subject) -> (Outcome, Outcome) {
    match *step {
        Step::Create(..) | Step::CreateOpen(..) | Step::Mkdir(..) | Step::Symlink(..) => {
            make(step, reference, subject)
        }
        Step::Link(f, d, n) => {
            let (f, d) = (any_node(reference, f), directory(reference, d));
            (reference.link(f, d, NAMES[n]), subject.link(f, d, NAMES[n]))
        }
        Step::Unlink(d, n) => {
            let d = directory(reference, d);
            (reference.remove(d, NAMES[n], false), subject.unlink(d, NAMES[n]))
        }
        Step::Rmdir(d, n) => {
            let d = directory(reference, d);
            (reference.remove(d, NAMES[n], true), subject.rmdir(d, NAMES[n]))
        }
        Step::Rename(d, n, e, m, manner) => {
            let (from, to) = ((directory(reference, d), NAMES[n]), (directory(reference, e), NAMES[m]));
            let expected = reference.rename(from, to, manner);
            let found = subject.rename(from, to, manner);
            if found.is_ok() && manner == Manner::Whiteout && reference.nodes.len() > subject.inos.len() {
                subject.learn(from);
            }
            (expected, found)
        }
        Step::Write(..) | Step::Resize(..) | Step::Copy(..) => change_bytes(step, reference, subject),
        Step::Reserve(..) | Step::Zero(..) | Step::Punch(..) => change_space(step, reference, subject),
        Step::SetXattr(i, n, len) => {
            let (id, name, value) = (any_node(reference, i), format!("user.{}", NAMES[n]), vec![7; len]);
            (reference.set_xattr(id, &name, &value), subject.set_xattr(id, &name, &value))
        }
        Step::RemoveXattr(i, n) => {
            let (id, name) = (any_node(reference, i), format!("user.{}", NAMES[n]));
            let expected = reference.live(id).map(drop).and_then(|()| reference.remove_xattr(id, &name));
            (expected, subject.remove_xattr(id, &name))
        }
        Step::Chmod(i, mode) => {
            let id = any_node(reference, i);
            (reference.chmod(id, mode), subject.chmod(id, mode))
        }
        Step::Open(_) | Step::Close(_) | Step::Sync(_) => use_file(step, reference, subject),
        Step::Reopen | Step::Crash => {
            reference.remount();
            subject.remount(matches!(step, Step::Crash));
            (Ok(()), Ok(()))
        }
    }
}

fn make(step: &Step, reference: &mut Reference, subject: &mut Subject) -> (Outcome, Outcome) {
    let (parent, name, body, mode, open) = match *step {
        Step::Mkdir(d, n) => (d, n, Body::Directory(Default::default()), 0o755, false),
        Step::Symlink(d, n) => (d, n, Body::Symlink(b"to/where".to_vec()), 0o777, false),
        Step::CreateOpen(d, n) => (d, n, Body::File(Vec::new()), 0o600, true),
        Step::Create(d, n) => (d, n, Body::File(Vec::new()), 0o644, false),
        _ => unreachable!("not a step that makes something"),
    };
    let (parent, name) = (directory(reference, parent), NAMES[name]);
    let expected = reference.make(parent, name, body.clone(), mode);
    let found = subject.make(parent, name, &body, mode, open);
    if let (Ok(id), true) = (expected, open) {
        reference.nodes[id].opens += 1;
    }
    (expected.map(drop), found)
}

fn change_bytes(step: &Step, reference: &mut Reference, subject: &mut Subject) -> (Outcome, Outcome) {
    match *step {
        Step::Write(f, offset, len, byte) => {
            let (id, data) = (file(reference, f), vec![byte; len]);
            (reference.write(id, offset, &data), subject.write(id, offset, &data))
        }
        Step::Resize(f, size) => {
            let id = file(reference, f);
            let expected = reference.bytes_mut(id).map(|bytes| bytes.resize(size, 0));
            (expected, subject.resize(id, size))
        }
        Step::Copy(f, offset, g, to, len) => {
            let (source, target) = (file(reference, f), file(reference, g));
            if source == target {
                return (Ok(()), Ok(())); // The kernel refuses ranges that overlap, and does the rest.
            }
            let data = reference.bytes_mut(source).map(|bytes| {
                let end = (offset + len).min(bytes.len());
                bytes.get(offset..end).unwrap_or_default().to_vec()
            });
            let found = subject.copy((source, offset), (target, to), len);
            match data {
                Err(refusal) => (Err(refusal), found),
                // Nothing goes to a file that is gone, or is none: done and refused are both right.
                Ok(data) if data.is_empty() && reference.bytes_mut(target).is_err() => (found, found),
                Ok(data) => (reference.write(target, to, &data), found),
            }
        }
        _ => unreachable!("not a step that changes bytes"),
    }
}

fn change_space(step: &Step, reference: &mut Reference, subject: &mut Subject) -> (Outcome, Outcome) {
    use lockwood::namespace::ops::space::Allocation;
    let (pick, offset, len, allocation, keep) = match *step {
        Step::Reserve(f, offset, len, keep) => (f, offset, len, Allocation::Reserve, keep),
        Step::Zero(f, offset, len, keep) => (f, offset, len, Allocation::Zero, keep),
        Step::Punch(f, offset, len) => (f, offset, len, Allocation::PunchHole, true),
        _ => unreachable!("not a step that changes space"),
    };
    let id = file(reference, pick);
    let range = offset..offset + len;
    let expected = if range.is_empty() {
        Err(Refusal::Invalid)
    } else {
        reference.zero(id, range, allocation != Allocation::Reserve, !keep)
    };
    (expected, subject.allocate(id, offset, len, allocation, keep))
}

fn use_file(step: &Step, reference: &mut Reference, subject: &mut Subject) -> (Outcome, Outcome) {
    match *step {
        Step::Open(f) => {
            let id = file(reference, f);
            (reference.open(id), subject.open(id))
        }
        Step::Close(f) => {
            let id = file(reference, f);
            (reference.close(id), subject.close(id))
        }
        Step::Sync(f) => {
            let id = file(reference, f);
            // One that is gone has nothing left to lose: either answer will do.
            let found = subject.sync(id);
            if reference.live(id).is_ok() { (Ok(()), found) } else { (found, found) }
        }
        _ => unreachable!("not a step that uses a file"),
    }
}
