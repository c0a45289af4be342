//! Making, linking and removing names.

use super::world::{ADA, ROOT, World, name, refused};
use crate::document::{FileKind, Ino, Kind, Name, NameError};
use crate::namespace::ops::make::{Make, What};
use crate::namespace::{Caller, NamespaceError as E};

#[test]
fn every_link_counts_and_the_last_name_takes_the_inode_along() {
    let world = World::new();
    let a = world.dir(ROOT, "a");
    let f = world.filled(ROOT, "f", b"shared");
    for n in 0..10 {
        let (ino, node) = world.link(f, a, &name(&n.to_string())).unwrap();
        assert_eq!((ino, node.nlink), (f, n + 2));
    }
    refused!(world.link(f, a, &name("3")), E::Exists);
    world.unlink(ROOT, &name("f")).unwrap();
    for n in 0..10 {
        assert_eq!((world.node(f).nlink, world.bytes(f)), (10 - n, b"shared".to_vec()));
        world.unlink(a, &name(&n.to_string())).unwrap();
    }
    refused!(world.read(f, 0, 1), E::NotFound);
    assert_eq!((world.count(Kind::Content), world.count(Kind::Node)), (0, 2));
    world.finish();
}

#[test]
fn what_cannot_be_linked() {
    let world = World::new();
    let a = world.dir(ROOT, "a");
    let f = world.file(ROOT, "f");
    refused!(world.link(a, ROOT, &name("b")), E::NotPermitted(_));
    refused!(world.link(f, f, &name("b")), E::NotADirectory);
    refused!(world.link(Ino(999_999), ROOT, &name("b")), E::NotFound);
    world.unlink(ROOT, &name("f")).unwrap();
    refused!(world.link(f, ROOT, &name("b")), E::NotFound);
    world.finish();
}

#[test]
fn directories_count_the_directories_in_them() {
    let world = World::new();
    let a = world.dir(ROOT, "a");
    for n in 0..5 {
        world.dir(a, &n.to_string());
        world.file(a, &format!("f{n}"));
    }
    assert_eq!((world.node(a).nlink, world.children(a)), (7, 10));
    refused!(world.rmdir(ROOT, &name("a")), E::NotEmpty);
    for n in 0..5 {
        world.rmdir(a, &name(&n.to_string())).unwrap();
        world.unlink(a, &name(&format!("f{n}"))).unwrap();
    }
    assert_eq!((world.node(a).nlink, world.children(a)), (2, 0));
    world.rmdir(ROOT, &name("a")).unwrap();
    assert_eq!(world.node(ROOT).nlink, 2);
    world.finish();
}

#[test]
fn a_removed_directory_takes_nothing_in() {
    let world = World::new();
    let gone = world.dir(ROOT, "gone");
    let f = world.file(ROOT, "f");
    world.rmdir(ROOT, &name("gone")).unwrap();
    for what in [What::Regular, What::Directory, What::Fifo, What::Symlink(b"t".to_vec())] {
        refused!(world.make(gone, "x", what, 0o644, Caller::ROOT), E::NotFound);
    }
    let x = name("x");
    let make =
        Make { parent: gone, name: &x, what: What::Regular, mode: 0o600, umask: 0, caller: Caller::ROOT };
    refused!(world.create(&make), E::NotFound);
    refused!(world.link(f, gone, &x), E::NotFound);
    refused!(world.list(gone, 0, 8, |_| true), E::NotFound);
    refused!(world.find(gone, "x"), E::NotFound);
    refused!(world.rmdir(gone, &x), E::NotFound);
    assert_eq!((world.node(gone).nlink, world.node(gone).kind()), (0, FileKind::Directory));
    assert_eq!(world.open_inodes(), 0);
    world.finish();
}

#[test]
fn names_are_any_bytes_up_to_255() {
    let world = World::new();
    let mut names: Vec<Vec<u8>> = (1..=255u8).filter(|b| *b != b'/' && *b != b'.').map(|b| vec![b]).collect();
    names.push((1..=255).filter(|b| *b != b'/').collect());
    names.push(vec![0xff; 255]);
    names.push(b"...".to_vec());
    for bytes in &names {
        let name = Name::new(bytes).unwrap();
        let make = Make {
            parent: ROOT,
            name: &name,
            what: What::Regular,
            mode: 0o600,
            umask: 0,
            caller: Caller::ROOT,
        };
        let made = world.make_with(&make);
        assert_eq!(world.lookup(ROOT, &name).unwrap().0, made);
    }
    let mut listed = Vec::new();
    world
        .list(ROOT, 0, 7, |entry| {
            listed.push(entry.name.clone());
            true
        })
        .unwrap();
    listed.drain(..2);
    listed.sort();
    names.sort();
    assert_eq!(listed, names);
    assert_eq!(Name::new(&[b'x'; 256]), Err(NameError::TooLong));
    world.finish();
}

#[test]
fn a_name_that_is_taken_is_not_made_again() {
    let world = World::new();
    world.file(ROOT, "f");
    for what in [What::Regular, What::Directory, What::Symlink(b"x".to_vec())] {
        refused!(world.make(ROOT, "f", what, 0o644, ADA), E::Exists);
    }
    refused!(world.unlink(ROOT, &name("g")), E::NotFound);
    refused!(world.rmdir(ROOT, &name("f")), E::NotADirectory);
    world.dir(ROOT, "d");
    refused!(world.unlink(ROOT, &name("d")), E::IsADirectory);
    assert_eq!(world.children(ROOT), 2);
    world.finish();
}

#[test]
fn a_symbolic_link_says_where_it_points_and_is_as_long_as_that() {
    let world = World::new();
    let target = [b'/'; 4095];
    let link = world.make(ROOT, "l", What::Symlink(target.to_vec()), 0o777, ADA).unwrap();
    assert_eq!(world.readlink(link).unwrap(), target);
    assert_eq!(world.node(link).size(), 4095);
    refused!(world.make(ROOT, "m", What::Symlink(vec![b'a'; 4096]), 0o777, ADA), E::Name(NameError::TooLong));
    refused!(world.make(ROOT, "m", What::Symlink(Vec::new()), 0o777, ADA), E::Invalid(_));
    refused!(world.readlink(ROOT), E::Invalid(_));
    world.finish();
}

#[test]
fn inode_numbers_are_never_used_twice() {
    let mut world = World::new();
    let mut last = world.file(ROOT, "f");
    for round in 0..20 {
        world.unlink(ROOT, &name("f")).unwrap();
        if round % 2 == 0 {
            world.reopen()
        } else {
            world.crash()
        }
        let next = world.file(ROOT, "f");
        assert!(next > last, "{next} after {last}");
        last = next;
    }
    world.finish();
}
