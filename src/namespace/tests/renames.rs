//! Renames: what moves, what is replaced, what is refused.

use super::world::{ROOT, World, name, refused, under_each_strategy};
use crate::ambient;
use crate::document::{Body, Ino};
use crate::namespace::ops::make::What;
use crate::namespace::ops::rename::{Manner, Patience, Rename};
use crate::namespace::{Caller, NamespaceError as E};

under_each_strategy!(
    a_file_keeps_its_inode_and_bytes_and_its_old_name_is_gone,
    a_directory_takes_everything_below_along_and_learns_its_place,
    a_file_replaces_a_file_which_is_gone_with_its_bytes,
    an_empty_directory_is_replaced_and_a_full_one_is_not,
    directories_and_other_files_do_not_replace_each_other,
    no_replace_refuses_what_exists_and_takes_what_is_free,
    an_exchange_swaps_names_of_any_kind_and_both_learn_their_place,
    a_whiteout_stays_where_the_name_was,
    no_directory_moves_below_itself,
    no_directory_changes_places_with_its_ancestor_from_either_side,
    an_ancestor_is_never_replaced_by_what_is_below_it,
    two_names_of_one_inode_rename_onto_each_other_to_no_effect,
    what_is_not_there_is_not_renamed_and_nothing_goes_into_what_is_gone,
    a_rename_stamps_what_moved_and_both_parents,
    special_files_and_symbolic_links_move_like_files,
    a_rename_that_may_not_wait_is_done_when_nothing_is_in_its_way,
);

/// `/a/b/c`, and the three directories.
fn nest(world: &World) -> (Ino, Ino, Ino) {
    let a = world.dir(ROOT, "a");
    let b = world.dir(a, "b");
    (a, b, world.dir(b, "c"))
}

fn a_file_keeps_its_inode_and_bytes_and_its_old_name_is_gone(world: World) {
    let a = world.dir(ROOT, "a");
    let f = world.filled(ROOT, "f", b"here");
    world.mv((ROOT, "f"), (a, "g")).unwrap();
    refused!(world.find(ROOT, "f"), E::NotFound);
    assert_eq!(world.find(a, "g").unwrap(), f);
    assert_eq!(world.bytes(f), b"here");
    assert_eq!((world.children(ROOT), world.children(a)), (1, 1));
    world.finish();
}

fn a_directory_takes_everything_below_along_and_learns_its_place(world: World) {
    let (a, b, c) = nest(&world);
    let deep = world.filled(c, "deep", b"x");
    world.mv((a, "b"), (ROOT, "moved")).unwrap();
    assert_eq!(world.parent(b).unwrap().0, ROOT);
    assert_eq!(world.find(c, "deep").unwrap(), deep);
    assert_eq!((world.node(ROOT).nlink, world.node(a).nlink, world.node(b).nlink), (4, 2, 3));
    world.finish();
}

fn a_file_replaces_a_file_which_is_gone_with_its_bytes(world: World) {
    let f = world.filled(ROOT, "f", b"new");
    for old in [&b"small"[..], &[7; 1000]] {
        let g = world.filled(ROOT, "g", old);
        world.mv((ROOT, "f"), (ROOT, "g")).unwrap();
        refused!(world.read(g, 0, 1), E::NotFound);
        assert_eq!(world.find(ROOT, "g").unwrap(), f);
        world.mv((ROOT, "g"), (ROOT, "f")).unwrap();
    }
    assert_eq!(world.children(ROOT), 1);
    world.finish();
}

fn an_empty_directory_is_replaced_and_a_full_one_is_not(world: World) {
    let (a, b, c) = nest(&world);
    let empty = world.dir(ROOT, "empty");
    refused!(world.mv((ROOT, "empty"), (ROOT, "a")), E::NotEmpty);
    refused!(world.mv((ROOT, "empty"), (a, "b")), E::NotEmpty);
    world.mv((ROOT, "empty"), (b, "c")).unwrap();
    assert_eq!(world.find(b, "c").unwrap(), empty);
    assert_eq!((world.node(c).nlink, world.node(b).nlink, world.node(ROOT).nlink), (0, 3, 3));
    world.finish();
}

fn directories_and_other_files_do_not_replace_each_other(world: World) {
    world.dir(ROOT, "d");
    world.file(ROOT, "f");
    refused!(world.mv((ROOT, "f"), (ROOT, "d")), E::IsADirectory);
    refused!(world.mv((ROOT, "d"), (ROOT, "f")), E::NotADirectory);
    world.finish();
}

fn no_replace_refuses_what_exists_and_takes_what_is_free(world: World) {
    let f = world.file(ROOT, "f");
    world.file(ROOT, "g");
    refused!(world.move_as((ROOT, "f"), (ROOT, "g"), Manner::NoReplace), E::Exists);
    refused!(world.move_as((ROOT, "f"), (ROOT, "f"), Manner::NoReplace), E::Exists);
    world.move_as((ROOT, "f"), (ROOT, "h"), Manner::NoReplace).unwrap();
    assert_eq!(world.find(ROOT, "h").unwrap(), f);
    world.finish();
}

fn an_exchange_swaps_names_of_any_kind_and_both_learn_their_place(world: World) {
    let (a, b, _) = nest(&world);
    let f = world.filled(ROOT, "f", b"file");
    world.move_as((ROOT, "f"), (a, "b"), Manner::Exchange).unwrap();
    assert_eq!((world.find(ROOT, "f").unwrap(), world.find(a, "b").unwrap()), (b, f));
    assert_eq!(world.parent(b).unwrap().0, ROOT);
    assert_eq!((world.node(ROOT).nlink, world.node(a).nlink), (4, 2));
    assert_eq!((world.children(ROOT), world.children(a)), (2, 1));
    let d = world.dir(a, "d");
    world.move_as((a, "d"), (ROOT, "f"), Manner::Exchange).unwrap();
    assert_eq!((world.parent(b).unwrap().0, world.parent(d).unwrap().0), (a, ROOT));
    refused!(world.move_as((a, "d"), (ROOT, "absent"), Manner::Exchange), E::NotFound);
    refused!(world.move_as((ROOT, "absent"), (a, "d"), Manner::Exchange), E::NotFound);
    world.finish();
}

fn a_whiteout_stays_where_the_name_was(world: World) {
    let a = world.dir(ROOT, "a");
    let f = world.file(ROOT, "f");
    let d = world.dir(ROOT, "d");
    world.file(a, "old");
    world.move_as((ROOT, "f"), (a, "old"), Manner::Whiteout).unwrap();
    world.move_as((ROOT, "d"), (a, "d"), Manner::Whiteout).unwrap();
    assert_eq!((world.find(a, "old").unwrap(), world.find(a, "d").unwrap()), (f, d));
    for name in ["f", "d"] {
        let node = world.node(world.find(ROOT, name).unwrap());
        assert_eq!(node.body, Body::CharDevice { rdev: 0 });
        assert_eq!((node.mode, node.nlink), (0, 1));
    }
    assert_eq!((world.children(ROOT), world.node(ROOT).nlink), (3, 3));
    assert_eq!((world.children(a), world.node(a).nlink), (2, 3));
    world.finish();
}

fn no_directory_moves_below_itself(world: World) {
    let (a, b, c) = nest(&world);
    for (parent, new) in [(a, "x"), (a, "b"), (b, "x"), (b, "c"), (c, "x")] {
        for manner in [Manner::Replace, Manner::Whiteout] {
            refused!(world.move_as((ROOT, "a"), (parent, new), manner), E::IntoItself);
        }
    }
    refused!(world.move_as((ROOT, "a"), (c, "x"), Manner::NoReplace), E::IntoItself);
    assert_eq!((world.names(ROOT), world.names(a)), (vec!["a".to_owned()], vec!["b".to_owned()]));
    world.finish();
}

fn no_directory_changes_places_with_its_ancestor_from_either_side(world: World) {
    let (a, b, c) = nest(&world);
    world.file(c, "f");
    for (lower, text) in [(a, "b"), (b, "c")] {
        refused!(world.move_as((ROOT, "a"), (lower, text), Manner::Exchange), E::IntoItself);
        refused!(world.move_as((lower, text), (ROOT, "a"), Manner::Exchange), E::IntoItself);
    }
    // A file below is no directory, and still its ancestor would end up below itself.
    refused!(world.move_as((c, "f"), (ROOT, "a"), Manner::Exchange), E::IntoItself);
    refused!(world.move_as((ROOT, "a"), (c, "f"), Manner::Exchange), E::IntoItself);
    world.finish();
}

fn an_ancestor_is_never_replaced_by_what_is_below_it(world: World) {
    let (_, b, _) = nest(&world);
    refused!(world.mv((b, "c"), (ROOT, "a")), E::NotEmpty);
    world.finish();
}

fn two_names_of_one_inode_rename_onto_each_other_to_no_effect(world: World) {
    let a = world.dir(ROOT, "a");
    let f = world.filled(ROOT, "f", b"twice");
    world.link(f, a, &name("g")).unwrap();
    for manner in [Manner::Replace, Manner::Exchange, Manner::Whiteout] {
        world.move_as((ROOT, "f"), (a, "g"), manner).unwrap();
        world.move_as((a, "g"), (ROOT, "f"), manner).unwrap();
    }
    world.mv((ROOT, "f"), (ROOT, "f")).unwrap();
    world.mv((ROOT, "a"), (ROOT, "a")).unwrap();
    assert_eq!((world.find(ROOT, "f").unwrap(), world.find(a, "g").unwrap()), (f, f));
    assert_eq!(world.node(f).nlink, 2);
    world.finish();
}

fn what_is_not_there_is_not_renamed_and_nothing_goes_into_what_is_gone(world: World) {
    let gone = world.dir(ROOT, "gone");
    let f = world.file(ROOT, "f");
    world.rmdir(ROOT, &name("gone")).unwrap();
    refused!(world.mv((ROOT, "absent"), (ROOT, "x")), E::NotFound);
    refused!(world.mv((ROOT, "f"), (gone, "f")), E::NotFound);
    refused!(world.mv((gone, "f"), (ROOT, "g")), E::NotFound);
    refused!(world.mv((ROOT, "f"), (f, "x")), E::NotADirectory);
    world.finish();
}

fn a_rename_stamps_what_moved_and_both_parents(world: World) {
    let (a, b) = (world.dir(ROOT, "a"), world.dir(ROOT, "b"));
    let f = world.file(a, "f");
    let before = [a, b, f].map(|ino| world.node(ino));
    world.mv((a, "f"), (b, "f")).unwrap();
    let after = [a, b, f].map(|ino| world.node(ino));
    for at in [0, 1] {
        assert!(after[at].mtime > before[at].mtime && after[at].ctime > before[at].ctime);
    }
    assert_eq!(after[2].mtime, before[2].mtime);
    assert!(after[2].ctime > before[2].ctime);
    world.finish();
}

fn special_files_and_symbolic_links_move_like_files(world: World) {
    let a = world.dir(ROOT, "a");
    let kinds = [
        What::Symlink(b"target".to_vec()),
        What::Fifo,
        What::Socket,
        What::CharDevice(259),
        What::BlockDevice(260),
    ];
    for (at, what) in kinds.into_iter().enumerate() {
        let ino = world.make(ROOT, "s", what, 0o644, Caller::ROOT).unwrap();
        let kind = world.node(ino).kind();
        world.mv((ROOT, "s"), (a, &at.to_string())).unwrap();
        assert_eq!(world.node(world.find(a, &at.to_string()).unwrap()).kind(), kind);
    }
    world.finish();
}

fn a_rename_that_may_not_wait_is_done_when_nothing_is_in_its_way(world: World) {
    world.file(ROOT, "f");
    let rename = Rename {
        parent: ROOT,
        name: name("f"),
        new_parent: ROOT,
        new_name: name("g"),
        manner: Manner::Replace,
        taken_for: None,
    };
    world.rename(Caller::ROOT, &rename, Patience::Try).unwrap();
    assert!(world.lock_deadline() > ambient::monotonic());
    assert_eq!(world.locks().documents().len(), 0);
    world.finish();
}
