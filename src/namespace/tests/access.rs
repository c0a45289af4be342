//! Modes, owners and access control lists: what new files inherit, and what writing takes away.

use super::world::{ADA, ROOT, World, another_host, refused};
use crate::document::Ino;
use crate::namespace::acl::{ACCESS, DEFAULT};
use crate::namespace::ops::attributes::Change;
use crate::namespace::ops::make::{Make, What};
use crate::namespace::ops::space::Allocation;
use crate::namespace::ops::write::Privileges;
use crate::namespace::ops::xattr::SetMode;
use crate::namespace::{Caller, Namespace, NamespaceError as E};

/// In the kernel's numbers: owner, named user, group, mask, others.
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// The owner, user 1000, the group, and nobody else.
fn shared_with_ada(mask: u16) -> Vec<u8> {
    acl(&[(OWNER, 7, 0), (USER, 7, 1000), (GROUP, 5, 0), (MASK, mask, 0), (OTHERS, 0, 0)])
}

fn set_acl(world: &World, caller: Caller, ino: Ino, name: &[u8], list: &[u8]) {
    world.set_attribute(caller, ino, name, list, SetMode::Any).unwrap();
}

fn made_with_umask(world: &World, parent: Ino, name: &str, what: What, mode: u32, umask: u32) -> Ino {
    let name = super::world::name(name);
    world.make_with(&Make { parent, name: &name, what, mode, umask, caller: Caller::ROOT })
}

fn chmod(world: &World, ino: Ino, mode: u32) {
    world.change(Caller::ROOT, ino, &Change { mode: Some(mode), ..Change::default() }).unwrap();
}

fn chown(world: &World, ino: Ino, uid: u32, gid: u32) {
    let change = Change { uid: Some(uid), gid: Some(gid), ..Change::default() };
    world.change(Caller::ROOT, ino, &change).unwrap();
}

#[test]
fn the_mask_of_the_caller_applies_and_the_caller_owns_what_it_makes() {
    let world = World::new();
    let f = world.make(ROOT, "f", What::Regular, 0o666, ADA).unwrap();
    let node = world.node(f);
    assert_eq!((node.mode, node.uid, node.gid), (0o644, 1000, 1000));
    world.finish();
}

#[test]
fn a_set_group_id_directory_gives_its_group_to_files_and_its_bit_to_directories() {
    let world = World::new();
    let d = world.dir(ROOT, "d");
    chown(&world, d, 0, 500);
    chmod(&world, d, 0o2775);
    let f = world.make(d, "f", What::Regular, 0o644, ADA).unwrap();
    let sub = world.make(d, "sub", What::Directory, 0o755, ADA).unwrap();
    let below = world.make(sub, "below", What::Fifo, 0o644, ADA).unwrap();
    assert_eq!((world.node(f).mode, world.node(f).gid, world.node(f).uid), (0o644, 500, 1000));
    assert_eq!((world.node(sub).mode, world.node(sub).gid), (0o2755, 500));
    assert_eq!((world.node(below).mode, world.node(below).gid), (0o644, 500));
    world.finish();
}

#[test]
fn a_default_list_takes_the_place_of_the_mask_and_passes_down() {
    let world = World::new();
    let d = world.dir(ROOT, "d");
    set_acl(&world, Caller::ROOT, d, DEFAULT, &shared_with_ada(7));
    assert_eq!(world.node(d).mode, 0o755, "a default list says nothing of the directory itself");
    let f = made_with_umask(&world, d, "f", What::Regular, 0o666, 0o077);
    assert_eq!(world.node(f).mode, 0o660);
    assert_eq!(
        *world.get_attribute(f, ACCESS).unwrap(),
        *acl(&[(OWNER, 6, 0), (USER, 7, 1000), (GROUP, 5, 0), (MASK, 6, 0), (OTHERS, 0, 0)])
    );
    refused!(world.get_attribute(f, DEFAULT), E::NoAttribute);
    let sub = made_with_umask(&world, d, "sub", What::Directory, 0o777, 0o077);
    assert_eq!(world.node(sub).mode, 0o770);
    assert_eq!(*world.get_attribute(sub, DEFAULT).unwrap(), *shared_with_ada(7));
    let link = made_with_umask(&world, d, "link", What::Symlink(b"x".to_vec()), 0o777, 0);
    refused!(world.get_attribute(link, ACCESS), E::NoAttribute);
    world.finish();
}

#[test]
fn chmod_and_the_list_say_the_same() {
    let world = World::new();
    let f = world.file(ROOT, "f");
    set_acl(&world, Caller::ROOT, f, ACCESS, &shared_with_ada(7));
    assert_eq!(world.node(f).mode, 0o770);
    chmod(&world, f, 0o641);
    assert_eq!(
        *world.get_attribute(f, ACCESS).unwrap(),
        *acl(&[(OWNER, 6, 0), (USER, 7, 1000), (GROUP, 5, 0), (MASK, 4, 0), (OTHERS, 1, 0)])
    );
    world.remove_attribute(Caller::ROOT, f, ACCESS).unwrap();
    assert_eq!(world.node(f).xattrs, 0);
    world.finish();
}

#[test]
fn a_list_that_says_no_more_than_the_mode_is_not_stored() {
    let world = World::new();
    let f = world.file(ROOT, "f");
    set_acl(&world, Caller::ROOT, f, ACCESS, &shared_with_ada(7));
    set_acl(&world, Caller::ROOT, f, ACCESS, &acl(&[(OWNER, 6, 0), (GROUP, 4, 0), (OTHERS, 0, 0)]));
    assert_eq!((world.node(f).mode, world.node(f).xattrs), (0o640, 0));
    refused!(world.get_attribute(f, ACCESS), E::NoAttribute);
    world.finish();
}

#[test]
fn lists_that_make_no_sense_are_refused() {
    let world = World::new();
    let f = world.file(ROOT, "f");
    let link = world.make(ROOT, "l", What::Symlink(b"x".to_vec()), 0o777, ADA).unwrap();
    let list = shared_with_ada(7);
    chown(&world, f, ADA.uid, ADA.gid);
    let set = |ino, name, value: &[u8]| world.set_attribute(ADA, ino, name, value, SetMode::Any);
    refused!(set(f, ACCESS, &list[..10]), E::Invalid(_));
    refused!(set(f, DEFAULT, &list), E::NotPermitted(_));
    refused!(set(link, ACCESS, &list), E::Unsupported(_));
    assert_eq!(world.node(f).mode, 0o644);
    world.finish();
}

#[test]
fn setting_a_list_takes_the_set_group_id_bit_from_who_is_not_in_the_group() {
    let world = World::new();
    let f = world.file(ROOT, "f");
    chown(&world, f, 1000, 500);
    chmod(&world, f, 0o2755);
    set_acl(&world, Caller::ROOT, f, ACCESS, &shared_with_ada(7));
    assert_eq!(world.node(f).mode, 0o2770);
    set_acl(&world, ADA, f, ACCESS, &shared_with_ada(7));
    assert_eq!(world.node(f).mode, 0o770);
    world.finish();
}

#[test]
fn writing_takes_set_id_bits_when_the_kernel_says_so() {
    let world = World::new();
    for (offset, mode, left) in
        [(0, 0o6755, 0o755), (0, 0o6745, 0o2745), (1000, 0o6755, 0o755), (0, 0o755, 0o755)]
    {
        let f = world.filled(ROOT, "f", b"program");
        chmod(&world, f, mode);
        let write = |told| Namespace::write(&world, f, offset, b"x", told).unwrap();
        assert_eq!((write(false), world.node(f).mode), (Privileges::Kept, mode));
        let expected = if mode == left { Privileges::Kept } else { Privileges::Dropped };
        assert_eq!(write(true), expected);
        assert_eq!(world.node(f).mode, left, "{mode:o}");
        world.unlink(ROOT, &super::world::name("f")).unwrap();
    }
    world.finish();
}

#[test]
fn cutting_reserving_and_copying_take_set_id_bits_from_users_and_not_from_root() {
    let world = World::new();
    let f = world.filled(ROOT, "f", b"program");
    let source = world.filled(ROOT, "source", &[1; 500]);
    let works: [&dyn Fn(Caller); 4] = [
        &|caller| {
            world.change(caller, f, &Change { size: Some(3), ..Change::default() }).unwrap();
        },
        &|caller| {
            world.allocate(caller, f, 0, 100, Allocation::Reserve, false).unwrap();
        },
        &|caller| {
            world.allocate(caller, f, 0, 100, Allocation::PunchHole, true).unwrap();
        },
        &|caller| {
            world.allocate(caller, f, 0, 100, Allocation::Zero, false).unwrap();
        },
    ];
    for work in works {
        chmod(&world, f, 0o6755);
        work(Caller::ROOT);
        assert_eq!(world.node(f).mode, 0o6755);
        work(ADA);
        assert_eq!(world.node(f).mode, 0o755);
    }
    for len in [10, 500] {
        chmod(&world, f, 0o6755);
        assert_eq!(world.copy(ADA, (source, 0), (f, 0), len).unwrap(), (len, Privileges::Dropped));
        assert_eq!(world.node(f).mode, 0o755);
    }
    world.finish();
}

#[test]
fn a_new_owner_gets_no_set_id_program_but_keeps_a_set_group_id_directory() {
    let world = World::new();
    let f = world.file(ROOT, "f");
    let d = world.dir(ROOT, "d");
    for (ino, mode, left) in [(f, 0o6755, 0o755), (f, 0o6644, 0o2644), (d, 0o2755, 0o2755)] {
        chmod(&world, ino, mode);
        chown(&world, ino, 1000, 1000);
        let node = world.node(ino);
        assert_eq!((node.mode, node.uid, node.gid), (left, 1000, 1000), "{mode:o}");
    }
    world.finish();
}

#[test]
fn capabilities_go_when_the_content_or_the_owner_changes() {
    let world = World::new();
    let f = world.filled(ROOT, "f", b"program");
    let works: [&dyn Fn(); 3] = [
        &|| {
            world.write(f, 0, b"x", false).unwrap();
        },
        &|| {
            world.resize(f, 1).unwrap();
        },
        &|| chown(&world, f, 5, 5),
    ];
    for work in works {
        set_acl(&world, Caller::ROOT, f, b"security.capability", b"cap");
        set_acl(&world, Caller::ROOT, f, b"user.kept", b"kept");
        chmod(&world, f, 0o755);
        assert_eq!(world.node(f).xattrs, 2);
        work();
        refused!(world.get_attribute(f, b"security.capability"), E::NoAttribute);
        assert_eq!(world.node(f).xattrs, 1);
    }
    world.finish();
}

/// Its kernel may take him for the owner still.
#[test]
fn who_was_the_owner_before_is_told_to_look_again() {
    let world = World::new();
    let (f, info) = (world.file(ROOT, "f"), another_host());
    let alone = world.change(ADA, f, &Change { mode: Some(0o644), ..Change::default() });
    alone.expect("the kernel of a mount alone knows who owns what");
    let beside = world.beside(info).unwrap();
    let change = |change: Change| world.change(ADA, f, &change).map(drop);
    world.change(Caller::ROOT, f, &Change { uid: Some(ADA.uid), ..Change::default() }).unwrap();
    change(Change { mode: Some(0o700), ..Change::default() }).unwrap();
    world.change(Caller::ROOT, f, &Change { uid: Some(0), ..Change::default() }).unwrap();
    refused!(change(Change { mode: Some(0o4755), ..Change::default() }), E::Stale);
    refused!(change(Change { uid: Some(ADA.uid), ..Change::default() }), E::Stale);
    let acl = world.set_attribute(ADA, f, ACCESS, b"", SetMode::Any);
    refused!(acl, E::Stale);
    // What a mode lets others do is the kernel's to judge.
    change(Change { size: Some(1), ..Change::default() }).unwrap();
    assert_eq!(world.node(f).mode, 0o700);
    beside.end().unwrap();
}

#[test]
fn capabilities_count_for_the_owners_that_their_namespace_has() {
    let maps = |map: &str, id| crate::namespace::maps_to(map, id);
    assert!(maps("         0          0 4294967295\n", 7));
    let container = "         0       1000          1\n         1     100000      65536\n";
    let ids = [0, 999, 1000, 1001, 99_999, 100_000, 165_535, 165_536];
    assert_eq!(ids.map(|id| maps(container, id)), [false, false, true, false, false, true, true, false]);
    assert!(!maps("", 0) && !maps("0 x y", 0));
}
