//! Extended attributes and their limits.

use super::world::{ADA, ROOT, World, name, refused};
use crate::document::{Kind, NameError};
use crate::namespace::ops::xattr::SetMode;
use crate::namespace::{Caller, NamespaceError as E};

#[test]
fn a_value_is_at_most_64_kib_and_may_be_empty() {
    let world = World::new();
    let f = world.file(ROOT, "f");
    let set = |value: &[u8]| world.set_attribute(ADA, f, b"user.v", value, SetMode::Any);
    for len in [0, 1, 64 << 10] {
        set(&vec![b'v'; len]).unwrap();
        assert_eq!(world.get_attribute(f, b"user.v").unwrap().len(), len);
    }
    refused!(set(&vec![b'v'; (64 << 10) + 1]), E::AttributeTooLarge);
    assert_eq!((world.get_attribute(f, b"user.v").unwrap().len(), world.node(f).xattrs), (64 << 10, 1));
    world.finish();
}

#[test]
fn a_file_may_have_a_thousand_and_takes_them_along_when_it_goes() {
    let mut world = World::new();
    let f = world.file(ROOT, "f");
    for n in 0..1000u32 {
        world
            .set_attribute(ADA, f, format!("user.{n}").as_bytes(), &n.to_le_bytes(), SetMode::Create)
            .unwrap();
    }
    world.reopen();
    let listed = world.list_attributes(ADA, f).unwrap();
    assert_eq!((listed.split(|b| *b == 0).count(), world.node(f).xattrs), (1001, 1000));
    for n in (0..1000u32).step_by(97) {
        assert_eq!(*world.get_attribute(f, format!("user.{n}").as_bytes()).unwrap(), n.to_le_bytes());
    }
    world.unlink(ROOT, &name("f")).unwrap();
    assert_eq!(world.count(Kind::Xattr), 0);
    world.finish();
}

#[test]
fn a_directory_that_is_removed_or_replaced_takes_its_attributes_along() {
    let world = World::new();
    for replaced in [false, true] {
        let d = world.dir(ROOT, "d");
        world.set_attribute(ADA, d, b"user.a", b"1", SetMode::Any).unwrap();
        if replaced {
            world.dir(ROOT, "new");
            world.mv((ROOT, "new"), (ROOT, "d")).unwrap();
        }
        world.rmdir(ROOT, &name("d")).unwrap();
        assert_eq!(world.count(Kind::Xattr), 0);
    }
    world.finish();
}

#[test]
fn labels_are_not_kept_and_whoever_asks_for_one_is_told_so() {
    let world = World::new();
    let f = world.file(ROOT, "f");
    let label = b"security.selinux";
    refused!(world.get_attribute(f, label), E::Unsupported(_));
    refused!(world.set_attribute(ADA, f, label, b"a:b:c", SetMode::Any), E::Unsupported(_));
    refused!(world.remove_attribute(Caller::ROOT, f, label), E::NoAttribute);
    // As to others of the class.
    refused!(world.get_attribute(f, b"security.other"), E::NoAttribute);
    world.finish();
}

#[test]
fn to_make_and_to_replace_are_told_apart() {
    let world = World::new();
    let f = world.file(ROOT, "f");
    let set = |value: &[u8], mode| world.set_attribute(ADA, f, b"user.a", value, mode);
    refused!(set(b"1", SetMode::Replace), E::NoAttribute);
    set(b"1", SetMode::Create).unwrap();
    refused!(set(b"2", SetMode::Create), E::Exists);
    set(b"3", SetMode::Replace).unwrap();
    assert_eq!(*world.get_attribute(f, b"user.a").unwrap(), *b"3");
    world.remove_attribute(Caller::ROOT, f, b"user.a").unwrap();
    refused!(world.remove_attribute(Caller::ROOT, f, b"user.a"), E::NoAttribute);
    refused!(world.get_attribute(f, b"user.a"), E::NoAttribute);
    assert_eq!(world.list_attributes(ADA, f).unwrap(), b"");
    world.finish();
}

#[test]
fn names_have_a_class_and_at_most_255_bytes() {
    let world = World::new();
    let f = world.file(ROOT, "f");
    let set = |name: &[u8]| world.set_attribute(ADA, f, name, b"v", SetMode::Any);
    let long = |len: usize| [b"user.".to_vec(), vec![b'n'; len - 5]].concat();
    set(&long(255)).unwrap();
    refused!(set(&long(256)), E::Name(NameError::TooLong));
    refused!(set(b"user."), E::Invalid(_));
    for name in [&b"system.posix_acl_other"[..], b"none", b""] {
        refused!(set(name), E::Unsupported(_));
    }
    set(b"user.\xff\xfe").unwrap();
    world.finish();
}

#[test]
fn trusted_attributes_are_listed_for_root_alone() {
    let world = World::new();
    let f = world.file(ROOT, "f");
    for name in [&b"trusted.t"[..], b"user.u", b"security.s"] {
        world.set_attribute(Caller::ROOT, f, name, b"v", SetMode::Any).unwrap();
    }
    assert_eq!(world.list_attributes(Caller::ROOT, f).unwrap().split(|b| *b == 0).count(), 4);
    let listed = world.list_attributes(ADA, f).unwrap();
    assert!(!listed.windows(7).any(|w| w == b"trusted"));
    assert_eq!(listed.split(|b| *b == 0).count(), 3);
    world.finish();
}
