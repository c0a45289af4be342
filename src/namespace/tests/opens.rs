//! Who opens a file sees what was closed before on another host, where notices never come and all is remembered for ever;
//! and what that costs.

use super::advisory::Hosts;
use super::away::Engine;
use super::world::{ROOT, World, name, refused};
use crate::document::{Ino, Key, Name};
use crate::namespace::ops::attributes::Change;
use crate::namespace::ops::make::{Make, What};
use crate::namespace::ops::rename::{Manner, Moved, Patience, Rename};
use crate::namespace::{Caller, Namespace, NamespaceError as E};

/// Two hosts that remember everything for as long as no notice comes, and none does; a file that both have open.
fn who_remember_everything() -> Hosts {
    Hosts::over(Engine::silent(), true)
}

fn read(host: &Namespace, ino: Ino) -> Vec<u8> {
    host.read(ino, 0, 1 << 20).unwrap()
}

/// In the root.
fn rename(from: &str, to: &str) -> Rename {
    Rename {
        parent: ROOT,
        name: name(from),
        new_parent: ROOT,
        new_name: name(to),
        manner: Manner::Replace,
        taken_for: None,
    }
}

/// What is to be made in the root.
fn make(name: &Name, what: What) -> Make<'_> {
    Make { parent: ROOT, name, what, mode: 0o755, umask: 0, caller: Caller::ROOT }
}

/// A file that a host makes, writes and closes.
fn written(host: &Namespace, text: &str, bytes: &[u8]) -> Ino {
    let (ino, _) = host.create(&make(&name(text), What::Regular)).unwrap();
    host.write(ino, 0, bytes, false).unwrap();
    host.close_file(ino).unwrap();
    ino
}

fn mkdir(host: &Namespace, text: &str) -> Ino {
    host.make(&make(&name(text), What::Directory)).unwrap().0
}

#[test]
fn who_opens_a_file_reads_what_was_written_before_though_no_notice_comes() {
    let hosts = who_remember_everything();
    // Beside the node, as long as what is remembered; then apart from it; then beside it again.
    let texts = [&b"one"[..], b"two", &[b'x'; 5000], b"", b"four"];
    let mut before = Vec::new();
    for bytes in texts {
        // The first one keeps the access time, which makes it forget.
        for _ in 0..2 {
            assert_eq!(read(&hosts.grace, hosts.file), before);
        }
        let change = Change { size: Some(0), ..Change::default() };
        hosts.ada.change(Caller::ROOT, hosts.file, &change).unwrap();
        hosts.ada.write(hosts.file, 0, bytes, false).unwrap();
        let size = hosts.grace.attributes(hosts.file).unwrap().size();
        assert_eq!(size, before.len() as u64, "nobody has told her");
        hosts.grace.open(hosts.file).unwrap();
        assert_eq!(read(&hosts.grace, hosts.file), bytes);
        assert_eq!(hosts.grace.attributes(hosts.file).unwrap().size(), bytes.len() as u64);
        hosts.grace.close_file(hosts.file).unwrap();
        before = bytes.to_vec();
    }
    hosts.finish();
}

#[test]
fn who_opens_what_was_replaced_or_removed_is_sent_to_look_and_finds_what_is_there() {
    let hosts = who_remember_everything();
    for (text, kept) in [("a", false), ("c", true)] {
        let old = written(&hosts.ada, text, b"old");
        assert_eq!(hosts.grace.lookup(ROOT, &name(text)).unwrap().0, old);
        if kept {
            // Without a name, it stays while she has it open.
            hosts.ada.open(old).unwrap();
        }
        let new = written(&hosts.ada, "b", b"new");
        hosts.ada.rename(Caller::ROOT, &rename("b", text), Patience::Try).unwrap();
        assert_eq!(hosts.grace.lookup(ROOT, &name(text)).unwrap().0, old, "what is remembered");
        refused!(hosts.grace.open(old), E::Stale);
        assert_eq!(hosts.grace.lookup(ROOT, &name(text)).unwrap().0, new);
        hosts.grace.open(new).unwrap();
        assert_eq!(read(&hosts.grace, new), b"new");
        hosts.grace.close_file(new).unwrap();
        if kept {
            hosts.ada.open(old).unwrap();
            assert_eq!(read(&hosts.ada, old), b"old");
            hosts.ada.close_file(old).unwrap();
            hosts.ada.close_file(old).unwrap();
        }
        hosts.ada.unlink(ROOT, &name(text)).unwrap();
        refused!(hosts.grace.open(new), E::Stale);
        refused!(hosts.grace.lookup(ROOT, &name(text)), E::NotFound);
    }
    hosts.finish();
}

/// Linux shows under the new name what it knew under the old one, so it must be known what was moved; and what it takes to
/// be replaced or removed it takes to be dead.
#[test]
fn who_renames_or_removes_what_another_host_has_replaced_hears_of_it() {
    let hosts = who_remember_everything();
    let is = |text: &str| hosts.grace.lookup(ROOT, &name(text)).unwrap().0;
    let [old, other] = ["a", "other"].map(|text| mkdir(&hosts.grace, text));
    assert_eq!([is("a"), is("other")], [old, other]);
    let moves = |rename: &Rename| hosts.grace.rename(Caller::ROOT, rename, Patience::Try);
    let replace = |text| {
        hosts.ada.rename(Caller::ROOT, &rename(text, &format!("away from {text}")), Patience::Try).unwrap();
        mkdir(&hosts.ada, text)
    };
    let new = replace("a");
    assert_eq!(is("a"), old, "what is remembered");
    assert_eq!(moves(&rename("a", "b")).unwrap(), Moved { there: new, back: None });
    let exchange = Rename { manner: Manner::Exchange, ..rename("b", "other") };
    let second = replace("other");
    assert_eq!(moves(&exchange).unwrap(), Moved { there: new, back: Some(second) });
    // The place of a directory that is not the one.
    let over = |taken_for| Rename { taken_for: Some(taken_for), ..rename("b", "other") };
    refused!(moves(&over(old)), E::Stale);
    let third = replace("other");
    refused!(moves(&over(new)), E::Stale);
    assert_eq!(moves(&over(third)).unwrap(), Moved { there: second, back: None });
    let to_nothing = |taken_for| Rename { taken_for: Some(taken_for), ..rename("other", "nothing") };
    refused!(moves(&to_nothing(old)), E::Stale);
    refused!(hosts.grace.rmdir_taken_for(ROOT, &name("other"), Some(old)), E::Stale);
    // What is gone is dead.
    assert_eq!(moves(&to_nothing(third)).unwrap(), Moved { there: second, back: None });
    hosts.grace.rmdir_taken_for(ROOT, &name("nothing"), Some(third)).unwrap();
    hosts.finish();
}

/// A rename between two names of one file does nothing. That there are two must be so, and not only remembered.
#[test]
fn a_rename_to_where_something_was_once_is_made() {
    let hosts = who_remember_everything();
    let ino = written(&hosts.ada, "there", b"here");
    assert_eq!(hosts.grace.lookup(ROOT, &name("there")).unwrap().0, ino);
    hosts.ada.rename(Caller::ROOT, &rename("there", "back"), Patience::Try).unwrap();
    assert_eq!(hosts.grace.lookup(ROOT, &name("back")).unwrap().0, ino);
    assert_eq!(hosts.grace.lookup(ROOT, &name("there")).unwrap().0, ino, "what is remembered");
    hosts.grace.rename(Caller::ROOT, &rename("back", "there"), Patience::Try).unwrap();
    for host in [&hosts.ada, &hosts.grace] {
        host.open(ino).unwrap();
        host.close_file(ino).unwrap();
    }
    refused!(hosts.grace.lookup(ROOT, &name("back")), E::NotFound);
    assert_eq!(hosts.grace.lookup(ROOT, &name("there")).unwrap().0, ino);
    hosts.finish();
}

#[test]
fn an_open_is_one_request_between_hosts_and_brings_the_bytes_of_a_small_file() {
    let hosts = who_remember_everything();
    for (text, bytes) in [("small", vec![b'x'; 64]), ("large", vec![b'x'; 5000])] {
        let ino = written(&hosts.ada, text, &bytes);
        assert_eq!(read(&hosts.grace, ino), bytes);
        let remembered = hosts.engine.reads_of(|| assert_eq!(read(&hosts.grace, ino), bytes));
        assert_eq!(remembered, 0);
        let opened = hosts.engine.reads_of(|| {
            hosts.grace.open(ino).unwrap();
            hosts.grace.close_file(ino).unwrap();
        });
        assert_eq!(opened, 1, "{text}");
        let opened_and_read = hosts.engine.reads_of(|| {
            hosts.grace.open(ino).unwrap();
            assert_eq!(read(&hosts.grace, ino), bytes);
            hosts.grace.close_file(ino).unwrap();
        });
        assert_eq!(
            opened_and_read, 1,
            "{text}: what is remembered of the bytes is still theirs, or came along"
        );
    }
    let made = hosts.engine.reads_of(|| {
        let ino = written(&hosts.ada, "made", b"bytes");
        hosts.ada.unlink(ROOT, &name("made")).unwrap();
        assert!(ino > hosts.file);
    });
    assert_eq!(made, 0, "who makes a file has nothing to ask");
    hosts.finish();
}

#[test]
fn an_open_asks_for_the_node_alone_where_one_process_owns_the_store() {
    let world = World::new();
    let f = world.filled(ROOT, "f", b"x");
    let counted = world.counted(|w| {
        w.open(f).unwrap();
        w.close_file(f).unwrap();
    });
    assert_eq!((counted.gets, counted.scans, counted.commits), (1, 0, 0));
    world.finish();
}

#[test]
fn who_remembers_directories_below_each_other_finds_the_way_up() {
    let hosts = who_remember_everything();
    let into = |from: &str, parent, to: &str| Rename { new_parent: parent, ..rename(from, to) };
    let [a, b] = ["a", "b"].map(|text| mkdir(&hosts.ada, text));
    let moves = |rename: &Rename| hosts.ada.rename(Caller::ROOT, rename, Patience::Try).unwrap();
    let looks = |parent, text| hosts.grace.lookup(parent, &name(text)).unwrap().0;
    moves(&into("a", b, "a"));
    assert_eq!((looks(ROOT, "b"), looks(b, "a")), (b, a));
    moves(&Rename { parent: b, ..rename("a", "a") });
    moves(&into("b", a, "b"));
    // Of one of the two she hears.
    hosts.grace.store().forget(&[Key::Node(b)]);
    assert_eq!(looks(a, "b"), b);
    // What she remembers is each of them below the other.
    let file = Make {
        parent: b,
        name: &name("file"),
        what: What::Regular,
        mode: 0o644,
        umask: 0,
        caller: Caller::ROOT,
    };
    hosts.grace.make(&file).unwrap();
    let within = |from: &str, to: &str| Rename { parent: b, new_parent: b, ..rename(from, to) };
    hosts.grace.rename(Caller::ROOT, &within("file", "renamed"), Patience::Try).unwrap();
    assert!(hosts.ada.lookup(b, &name("renamed")).is_ok());
}
