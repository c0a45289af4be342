//! What operations cost, in commits and documents. Counts do not wobble, so these are exact.

use super::world::{ROOT, World, name};
use crate::document::{ContentPlace, Ino, Kind};
use crate::namespace::ops::make::What;
use crate::namespace::ops::rename::Manner;
use crate::namespace::{Caller, NamespaceError};

/// A tree of `width` files and directories on each of four levels.
fn bushy(world: &World, root: Ino, width: usize) {
    let mut level = root;
    for _ in 0..4 {
        for n in 0..width {
            world.filled(level, &format!("f{n}"), b"x");
        }
        level = world.dir(level, "next");
    }
}

/// The promise of docs: a rename writes a constant number of documents, whatever is below.
#[test]
fn a_rename_writes_as_many_documents_whatever_is_below() {
    let written = [0, 3, 100].map(|width| {
        let world = World::new();
        let [a, b] = ["a", "b"].map(|n| world.dir(ROOT, n));
        let moved = world.dir(a, "moved");
        bushy(&world, moved, width);
        let counted = world.counted(|w| w.mv((a, "moved"), (b, "moved")).unwrap());
        assert_eq!((counted.commits, counted.conflicts), (1, 0));
        world.finish();
        counted.documents_written
    });
    // Two entries, the directory, two parents.
    assert_eq!(written, [5; 3]);
}

/// A directory or a file with bytes in it, open if that is wanted: the most that a rename can have to put away.
fn victim(world: &World, parent: Ino, name: &str, kind: Victim) {
    let ino = match kind {
        Victim::None => return,
        Victim::Directory => return drop(world.make(parent, name, What::Directory, 0o755, Caller::ROOT)),
        Victim::Inline | Victim::Open => world.filled(parent, name, b"inline"),
        Victim::Backing => world.filled(parent, name, &[1; 1000]),
    };
    if kind == Victim::Open {
        world.open(ino).unwrap();
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Victim {
    None,
    Directory,
    Inline,
    Backing,
    Open,
}

/// The documents that the costliest rename of a manner writes, over all kinds of what moves and what is there already.
fn most_written(manner: Manner) -> u64 {
    let mut world = World::new();
    let [a, b] = ["a", "b"].map(|n| world.dir(ROOT, n));
    let mut most = 0;
    for source in [What::Directory, What::Regular] {
        for kind in [Victim::None, Victim::Directory, Victim::Inline, Victim::Backing, Victim::Open] {
            let text = format!("{source:?}-{kind:?}");
            world.make(a, &text, source.clone(), 0o755, Caller::ROOT).unwrap();
            victim(&world, b, &text, kind);
            let orphans = world.count(Kind::Orphan);
            let counted = world.counted(|w| {
                let outcome = w.move_as((a, &text), (b, &text), manner);
                assert!(!matches!(outcome, Err(NamespaceError::Conflict(_))));
                // What is removed in the background is counted too, so it must have happened.
                while kind == Victim::Backing && w.count(Kind::Orphan) > orphans {
                    std::thread::yield_now();
                }
            });
            // Where the bytes of a file are documents, those go in a commit of their own, before the orphan.
            let afterwards = if world.apart() == ContentPlace::Chunks { 2 } else { 1 };
            assert!(counted.conflicts == 0 && counted.commits <= 1 + afterwards);
            let written = counted.documents_written - counted.commits.saturating_sub(1);
            most = most.max(written);
        }
    }
    world.reopen();
    world.reopen();
    world.finish();
    most
}

#[test]
fn a_rename_writes_at_most_seven_documents_and_one_more_where_it_leaves_a_whiteout() {
    assert_eq!(most_written(Manner::NoReplace), 5);
    assert_eq!(most_written(Manner::Exchange), 6);
    assert_eq!(most_written(Manner::Replace), 7);
    assert_eq!(most_written(Manner::Whiteout), 8);
}

#[test]
fn every_operation_is_one_commit_and_looking_is_none() {
    let world = World::new();
    let [d, other] = ["d", "other"].map(|n| world.dir(ROOT, n));
    let f = world.file(d, "f");
    world.read(f, 0, 1).unwrap();
    type Work<'a> = (&'a str, u64, u64, &'a dyn Fn(&World));
    let works: [Work<'_>; 12] = [
        ("create", 1, 3, &|w| {
            w.file(d, "g");
        }),
        ("mkdir", 1, 3, &|w| {
            w.dir(d, "sub");
        }),
        ("write inline", 1, 2, &|w| {
            let _ = w.write(f, 0, b"x", false).unwrap();
        }),
        ("link", 1, 3, &|w| drop(w.link(f, d, &name("h")).unwrap())),
        ("unlink one of two names", 1, 3, &|w| w.unlink(d, &name("h")).unwrap()),
        ("rename within a directory", 1, 4, &|w| w.mv((d, "g"), (d, "i")).unwrap()),
        ("rename across", 1, 5, &|w| w.mv((d, "i"), (other, "g")).unwrap()),
        ("rename onto a file with inline content", 1, 7, &|w| w.mv((other, "g"), (d, "f")).unwrap()),
        ("rmdir", 1, 3, &|w| w.rmdir(d, &name("sub")).unwrap()),
        ("unlink", 1, 3, &|w| w.unlink(d, &name("f")).unwrap()),
        ("look up and stat", 0, 0, &|w| drop(w.find(ROOT, "d").map(|d| w.node(d)).unwrap())),
        ("look up what is not there", 0, 0, &|w| drop(w.find(ROOT, "absent").unwrap_err())),
    ];
    for (what, commits, documents, work) in works {
        let counted = world.counted(work);
        assert_eq!((counted.commits, counted.documents_written), (commits, documents), "{what}");
        assert_eq!(counted.conflicts, 0, "{what}");
    }
    world.finish();
}

#[test]
fn a_thousand_creates_in_one_directory_conflict_with_nobody() {
    let world = World::new();
    let threads = 4;
    let counted = world.counted(|world| {
        std::thread::scope(|scope| {
            for thread in 0..threads {
                scope.spawn(move || {
                    for n in 0..250 {
                        world.file(ROOT, &format!("{thread}-{n}"));
                    }
                });
            }
        });
    });
    assert_eq!(counted.conflicts, 0);
    assert_eq!(world.children(ROOT), 1000);
    // One block of inode numbers beside the creates themselves.
    assert_eq!(counted.commits, 1001);
    world.finish();
}
