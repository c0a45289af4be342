//! Damage at random: the check never panics, names what is damaged, and sees whatever matters.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::fixture::*;
use crate::check::{BackingFile, Rule};
use crate::document::*;
use crate::store::Reader as _;

fn volumes() -> [Sample; 2] {
    [Sample::offline(), Sample::online()]
}

#[test]
fn each_damaged_document_is_named_and_no_sound_one_is_accused() {
    for which in 0..volumes().len() {
        for key in volumes()[which].keys() {
            let [offline, online] = volumes();
            let mut volume = if which == 0 { offline } else { online };
            volume.damaged.insert(key.clone());
            let report = volume.check();
            let found: Vec<_> = report.violations.iter().map(|v| (v.rule, v.document.clone())).collect();
            assert_eq!(found, [(Rule::Damaged, key.to_string())], "{report:#?}");
            assert_eq!(report.garbage, []);
        }
    }
}

#[test]
fn each_torn_key_space_is_named_and_no_sound_document_is_accused() {
    for kind in Kind::ALL {
        for mut volume in volumes() {
            volume.torn = Some(kind);
            let report = volume.check();
            let found: Vec<_> = report.violations.iter().map(|v| (v.rule, v.document.as_str())).collect();
            assert_eq!(found, [(Rule::KeySpaceDamaged, kind.name())], "{report:#?}");
            assert_eq!(report.garbage, []);
        }
    }
}

#[test]
fn each_lost_document_is_missed() {
    for which in 0..volumes().len() {
        for key in volumes()[which].keys() {
            // An orphan needs no node; and of an orphan that has none only the backing file is left, which is garbage.
            let collected = key == Key::Orphan(Ino(13));
            let expendable = collected || key == node_key(9) || key == node_key(12);
            let [offline, online] = volumes();
            let volume = if which == 0 { offline } else { online };
            volume.delete(key.clone());
            let report = volume.check();
            assert!(expendable || !report.is_clean(), "{key} was not missed");
            assert!(!collected || report.counts.garbage == 1);
        }
    }
}

/// What to do to a document, and with which number.
#[derive(Clone, Debug)]
enum Damage {
    Delete,
    Unreadable,
    /// Put under the key what stands under another.
    Replace(prop::sample::Index),
    /// Put under another key of any number what stands here.
    Stray(u64),
    /// Change the fields that refer to others.
    Redirect(u64),
    Count(u32),
}

fn damages() -> impl Strategy<Value = Vec<(prop::sample::Index, Damage)>> {
    let number = prop_oneof![0..16_u64, Just(u64::MAX), Just(0), any::<u64>()];
    let damage = prop_oneof![
        Just(Damage::Delete),
        Just(Damage::Unreadable),
        any::<prop::sample::Index>().prop_map(Damage::Replace),
        number.clone().prop_map(Damage::Stray),
        number.prop_map(Damage::Redirect),
        prop_oneof![0..5_u32, Just(u32::MAX)].prop_map(Damage::Count),
    ];
    prop::collection::vec((any::<prop::sample::Index>(), damage), 1..12)
}

fn redirect(document: &mut Document, to: u64) {
    match document {
        Document::Volume(volume) => volume.next_ino = to,
        Document::Entry(entry) => entry.ino = Ino(to),
        Document::Orphan(orphan) => orphan.session = SessionId(to),
        Document::Session(session) => session.id = SessionId(to),
        Document::Node(node) => match &mut node.body {
            Body::Directory(directory) => directory.parent = Ino(to),
            Body::Regular(regular) => regular.size = to,
            _ => node.mode = to as u32,
        },
        Document::Content(content) => content.bytes = vec![0; (to % 9000) as usize].into(),
        Document::Xattr(xattr) => xattr.value = vec![0; (to % 90_000) as usize].into(),
        Document::Chunk(chunk) => chunk.bytes = vec![0; (to % 9000) as usize].into(),
        Document::Lock(lock) => lock.holders.clear(),
        Document::Advisory(advisory) => advisory.locks.clear(),
    }
}

fn count(document: &mut Document, number: u32) {
    match document {
        Document::Volume(volume) => volume.inline_max = number,
        Document::Node(node) => {
            node.nlink = number;
            if let Body::Directory(directory) = &mut node.body {
                directory.children = u64::from(number) << 32;
            }
        }
        Document::Session(session) => session.state = SessionState::Fenced,
        Document::Entry(entry) => entry.kind = FileKind::Socket,
        Document::Orphan(_)
        | Document::Content(_)
        | Document::Xattr(_)
        | Document::Chunk(_)
        | Document::Lock(_)
        | Document::Advisory(_) => {}
    }
}

fn moved(key: &Key, to: u64) -> Key {
    match key.clone() {
        Key::Volume => Key::Volume,
        Key::Node(_) => Key::Node(Ino(to)),
        Key::Entry(_, name) => Key::Entry(Ino(to), name),
        Key::Content(_) => Key::Content(Ino(to)),
        Key::Xattr(_, name) => Key::Xattr(Ino(to), name),
        Key::Orphan(_) => Key::Orphan(Ino(to)),
        Key::Session(_) => Key::Session(SessionId(to)),
        Key::Chunk(_, index) => Key::Chunk(Ino(to), index),
        Key::Lock(_) => Key::Lock(format!("%2F{to}").into()),
        Key::Advisory(_) => Key::Advisory(Ino(to)),
    }
}

fn apply(volume: &mut Sample, key: &Key, damage: Damage) {
    let mut document = volume.document(key);
    match damage {
        Damage::Delete => return volume.delete(key.clone()),
        Damage::Unreadable => {
            volume.damaged.insert(key.clone());
            return;
        }
        Damage::Replace(index) => {
            let keys = volume.keys();
            document = volume.document(index.get(&keys));
        }
        Damage::Stray(number) => return volume.put(moved(key, number), document),
        Damage::Redirect(number) => redirect(&mut document, number),
        Damage::Count(number) => count(&mut document, number),
    }
    volume.put(key.clone(), document);
}

fn documents(volume: &Sample) -> Vec<(Key, Document)> {
    volume.keys().into_iter().map(|key| (key.clone(), volume.document(&key))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn nothing_makes_it_panic(damages in damages(), online: bool, torn in 0..20_usize, strays: BTreeSet<u64>) {
        let mut volume = if online { Sample::online() } else { Sample::offline() };
        for (index, damage) in damages {
            let keys = volume.keys();
            if !keys.is_empty() {
                apply(&mut volume, &index.get(&keys).clone(), damage);
            }
        }
        volume.torn = Kind::ALL.get(torn).copied();
        volume.backing.extend(strays.iter().map(|&i| (i, BackingFile { allocated: i })));
        let report = volume.check();
        let by_rule: u64 = report.by_rule.values().sum();
        prop_assert_eq!(report.counts.violations, by_rule);
        prop_assert_eq!(report.violations.len() as u64, by_rule);
        // Whatever else was done to it: what cannot be read is named.
        for key in &volume.damaged {
            let there = volume.store.get(key).unwrap().is_some();
            let named = report.violations.iter().any(|v| v.document == key.to_string());
            let judged = !report.by_rule.contains_key(&Rule::FormatUnknown);
            let behind_a_tear = volume.torn == Some(key.kind());
            prop_assert!(!there || named || !judged || behind_a_tear, "{}: {:#?}", key, report);
        }
    }

    /// One change alone is seen, unless the good volume could hold it.
    #[test]
    fn one_change_is_reported(which: prop::sample::Index, online: bool, to in 0..16_u64, number in 0..5_u32, counted: bool) {
        let volume = if online { Sample::online() } else { Sample::offline() };
        let keys = volume.keys();
        let key = which.get(&keys);
        let before = documents(&volume);
        let mut document = volume.document(key);
        let harmless = matches!(key, Key::Content(_) | Key::Xattr(..))
            || (*key == Key::Volume && (if counted { number > 90 } else { to > 11 }))
            || (matches!(&document, Document::Node(node) if node.directory().is_none()) && !counted);
        if counted { count(&mut document, number) } else { redirect(&mut document, to) }
        volume.put(key.clone(), document);
        let changed = documents(&volume) != before;
        // What the mount's only orphan of an absent node says, and that alone, is not bound to anything counted.
        let orphan = matches!(key, Key::Orphan(_)) && counted;
        let removed = matches!(key, Key::Node(Ino(12))) && !counted;
        let seen = !volume.check().is_clean();
        prop_assert!(seen || !changed || harmless || orphan || removed, "{}", key);
    }
}
