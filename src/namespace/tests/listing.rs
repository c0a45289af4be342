//! Listings: what is there throughout is listed exactly once, whatever happens in between.

use std::collections::BTreeMap;

use super::world::{ROOT, World, name, refused};
use crate::document::{EntryPosition, Ino};
use crate::namespace::NamespaceError as E;

/// Lists in steps of `step` entries as the kernel does, from the offset where it stopped, and calls `between` after each
/// step. Returns how often each name was seen.
fn list_in_steps(
    world: &World,
    directory: Ino,
    step: usize,
    mut between: impl FnMut(usize),
) -> BTreeMap<String, usize> {
    let mut seen = BTreeMap::new();
    let mut offset = 0;
    for round in 0.. {
        let mut taken = 0;
        let mut more = false;
        world
            .list(directory, offset, 4, |listed| {
                if taken == step {
                    more = true;
                    return false;
                }
                taken += 1;
                offset = listed.next;
                *seen.entry(String::from_utf8(listed.name.clone()).unwrap()).or_insert(0) += 1;
                true
            })
            .unwrap();
        if !more {
            break;
        }
        between(round);
    }
    assert_eq!((seen.remove("."), seen.remove("..")), (Some(1), Some(1)));
    seen
}

fn assert_each_once(seen: &BTreeMap<String, usize>, prefix: &str, count: usize) {
    let kept: Vec<_> = seen.iter().filter(|(name, _)| name.starts_with(prefix)).collect();
    assert_eq!(kept.len(), count);
    assert!(kept.iter().all(|(_, times)| **times == 1), "{kept:?}");
}

#[test]
fn every_step_size_lists_everything_once() {
    let world = World::new();
    for n in 0..60 {
        world.file(ROOT, &format!("k{n}"));
    }
    for step in 1..64 {
        assert_each_once(&list_in_steps(&world, ROOT, step, |_| {}), "k", 60);
    }
    world.finish();
}

#[test]
fn what_stays_is_listed_once_while_others_come_and_go() {
    let world = World::new();
    let other = world.dir(ROOT, "other");
    let d = world.dir(ROOT, "d");
    for n in 0..200 {
        world.file(d, &format!("keep{n}"));
        world.file(d, &format!("go{n}"));
    }
    let mut seen = list_in_steps(&world, d, 3, |round| {
        if round < 200 {
            world.file(d, &format!("come{round}"));
            let go = format!("go{round}");
            match round % 3 {
                0 => world.unlink(d, &name(&go)).unwrap(),
                1 => world.mv((d, &go), (other, &go)).unwrap(),
                _ => world.mv((d, &go), (d, &format!("moved{round}"))).unwrap(),
            }
        }
    });
    assert_each_once(&seen, "keep", 200);
    // What came, went or moved is listed at most once under each of its names.
    seen.retain(|_, times| *times > 1);
    assert!(seen.is_empty(), "{seen:?}");
    world.finish();
}

/// The defect of clio-core 889: a file that is renamed during a listing shows under neither name, or under both.
#[test]
fn a_file_that_is_renamed_back_and_forth_shows_under_one_of_its_names_when_it_stands_still() {
    let world = World::new();
    for n in 0..50 {
        world.file(ROOT, &format!("keep{n}"));
    }
    world.file(ROOT, "here");
    for at in 0..26 {
        let seen = list_in_steps(&world, ROOT, 2, |round| {
            if round == at {
                // An even number of renames within one step: it stands where it stood.
                world.mv((ROOT, "here"), (ROOT, "there")).unwrap();
                world.mv((ROOT, "there"), (ROOT, "here")).unwrap();
            }
        });
        assert_each_once(&seen, "keep", 50);
        assert_eq!((seen.get("here"), seen.get("there")), (Some(&1), None));
    }
    world.finish();
}

#[test]
fn an_offset_stays_good_when_its_entry_is_gone_and_after_a_remount() {
    let mut world = World::new();
    for n in 0..40 {
        world.file(ROOT, &format!("k{n}"));
    }
    let mut entries = Vec::new();
    world
        .list(ROOT, 0, 1000, |listed| {
            entries.push(listed.clone());
            true
        })
        .unwrap();
    assert!(entries.iter().all(|listed| listed.next > 0 && listed.next < i64::MAX as u64));
    world.unlink(ROOT, &name(std::str::from_utf8(&entries[10].name).unwrap())).unwrap();
    world.reopen();
    let mut rest = Vec::new();
    world
        .list(ROOT, entries[10].next, 3, |listed| {
            rest.push(listed.clone());
            true
        })
        .unwrap();
    assert_eq!(rest, entries[11..]);
    world.finish();
}

/// Lists as the kernel does, `step` entries an answer and from a page of `limit`, until an answer is empty; returns the
/// names seen from `offset` on.
fn rest_of(world: &World, directory: Ino, mut offset: u64, step: usize, limit: usize) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    loop {
        let mut taken = 0;
        let answer = world.list(directory, offset, limit, |listed| {
            taken += 1;
            if taken <= step {
                offset = listed.next;
                names.push(listed.name.clone());
            }
            taken <= step
        });
        answer.unwrap();
        if taken == 0 {
            return names;
        }
    }
}

#[test]
fn what_is_left_of_a_page_is_listed_without_another_look() {
    let world = World::new();
    let d = world.dir(ROOT, "d");
    for n in 0..250 {
        world.file(d, &n.to_string());
    }
    world.list(d, 0, 1, |_| false).unwrap(); // Its access time is kept.
    let mut listed = 0;
    let counted = world.counted(|w| listed = rest_of(w, d, 0, 7, 100).len());
    assert_eq!((listed, counted.scans), (252, 3), "also the answer that this was all is at hand");
    // Nothing is left for who begins anew, or somewhere else.
    assert_eq!(world.counted(|w| assert_eq!(rest_of(w, d, 0, 1000, 1000).len(), 252)).scans, 1);
    world.finish();
}

#[test]
fn an_entry_that_is_made_behind_where_a_listing_stands_is_listed() {
    let world = World::new();
    let d = world.dir(ROOT, "d");
    for n in 0..50 {
        world.file(d, &format!("old{n}"));
    }
    let mut offset = 0;
    let mut taken = 0;
    let first = world.list(d, 0, 100, |listed| {
        taken += 1;
        if taken <= 20 {
            offset = listed.next;
        }
        taken <= 20
    });
    first.unwrap();
    let made: Vec<String> = (0..50).map(|n| format!("new{n}")).collect();
    for name in &made {
        world.file(d, name);
    }
    let behind = |name: &&String| EntryPosition::of(name.as_bytes()).0 >= offset;
    let behind: Vec<&String> = made.iter().filter(behind).collect();
    assert!(!behind.is_empty());
    let seen = rest_of(&world, d, offset, 20, 100);
    assert!(behind.iter().all(|name| seen.contains(&name.as_bytes().to_vec())), "{behind:?}: {seen:?}");
    world.finish();
}

#[test]
fn a_listing_that_is_removed_or_emptied_under_it_ends() {
    let world = World::new();
    let d = world.dir(ROOT, "d");
    for n in 0..20 {
        world.file(d, &n.to_string());
    }
    let mut emptied = false;
    let seen = list_in_steps(&world, d, 5, |_| {
        if !emptied {
            emptied = true;
            for n in 0..20 {
                world.unlink(d, &name(&n.to_string())).unwrap();
            }
        }
    });
    assert_eq!(seen.len(), 3);
    world.rmdir(ROOT, &name("d")).unwrap();
    refused!(world.list(d, 0, 4, |_| true), E::NotFound);
    let f = world.file(ROOT, "f");
    refused!(world.list(f, 0, 4, |_| true), E::NotADirectory);
    world.finish();
}

#[test]
fn an_entry_says_what_it_is_and_its_attributes_are_at_hand() {
    let world = World::new();
    let d = world.dir(ROOT, "d");
    let f = world.filled(ROOT, "f", b"four");
    world
        .list(ROOT, 0, 10, |listed| {
            let node = world.listed_attributes(listed).unwrap().unwrap();
            assert_eq!(node.kind(), listed.kind);
            match &*listed.name {
                b"f" => assert_eq!((listed.ino, node.size()), (f, 4)),
                b"d" => assert_eq!(listed.ino, d),
                _ => assert_eq!(listed.ino, ROOT),
            }
            true
        })
        .unwrap();
    world.finish();
}
