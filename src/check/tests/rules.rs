//! For every rule, the ways to break it alone.

use std::sync::Arc;

use super::fixture::*;
use crate::check::Rule;
use crate::content::Objects;
use crate::document::*;

type Break = fn(&mut Sample);

/// The ways to break a rule: on a volume that nobody has mounted, and on a mounted one.
type Ways = (&'static [Break], &'static [Break]);

/// One function after the other knows the ways for its part of the rules; the last refuses a rule that has none.
fn ways(rule: Rule) -> Ways {
    match rule {
        Rule::VolumeMissing => (&[|v| v.delete(Key::Volume)], &[]),
        Rule::FormatUnknown => (
            &[|v| v.edit_volume(|d| d.format = 0), |v| v.edit_volume(|d| d.format = FORMAT_VERSION + 1)],
            &[],
        ),
        Rule::NextIno => {
            (&[|v| v.edit_volume(|d| d.next_ino = 11)], &[|v| v.edit_volume(|d| d.next_ino = 13)])
        }
        Rule::Root => (
            &[
                |v| v.delete(node_key(1)),
                |v| v.edit_directory(1, |d| d.parent = Ino(2)),
                |v| v.edit_directory(1, |d| d.name = Name::new(b"root").ok()),
            ],
            &[],
        ),
        Rule::EntryParent => (&[stray_under_nothing, |v| stray_under(v, 8)], &[]),
        Rule::EntryNode => (
            &[|v| {
                v.link(1, "dangling", 40);
                v.edit_directory(1, |d| d.children += 1);
            }],
            &[],
        ),
        Rule::EntryKind => (
            &[
                |v| wrong_kind(v, "pipe", 8, FileKind::Socket),
                |v| wrong_kind(v, "pipe", 8, FileKind::Directory),
                |v| wrong_kind(v, "spare", 11, FileKind::Regular),
            ],
            &[],
        ),
        other => directories(other),
    }
}

fn directories(rule: Rule) -> Ways {
    match rule {
        Rule::DirectoryPlace => (
            &[
                |v| v.edit_directory(11, |d| d.parent = Ino(2)),
                |v| v.edit_directory(11, |d| d.name = Name::new(b"other").ok()),
                |v| v.edit_directory(11, |d| d.name = None),
                |v| second_name(v, 11),
                |v| second_name(v, 1),
            ],
            &[],
        ),
        Rule::DirectoryUnnamed => (&[|v| unlink_spare(v)], &[]),
        Rule::DirectoryParent => (
            &[
                |v| {
                    unlink_spare(v);
                    v.edit_directory(11, |d| d.parent = Ino(40));
                },
                |v| {
                    unlink_spare(v);
                    v.edit_directory(11, |d| d.parent = Ino(8));
                },
            ],
            &[],
        ),
        Rule::DirectoryChildren => (
            &[
                |v| v.edit_directory(2, |d| d.children += 1),
                |v| v.edit_directory(2, |d| d.children -= 1),
                |v| v.edit_directory(11, |d| d.children = 1),
            ],
            &[|v| v.edit_directory(12, |d| d.children = 1)],
        ),
        Rule::DirectoryLinks => (
            &[
                |v| v.edit(2, |n| n.nlink += 1),
                |v| v.edit(2, |n| n.nlink -= 1),
                |v| v.edit(11, |n| n.nlink = 0),
            ],
            &[],
        ),
        Rule::DirectoryLoop => (&[|v| make_loop(v), into_itself], &[]),
        Rule::LinkCount => (
            &[|v| v.edit(3, |n| n.nlink = 1), |v| v.edit(3, |n| n.nlink = 3), |v| v.edit(3, |n| n.nlink = 0)],
            &[],
        ),
        Rule::UnnamedNode => (&[|v| v.put(node_key(40), file(0))], &[|v| v.delete(Key::Orphan(Ino(9)))]),
        other => contents(other),
    }
}

fn contents(rule: Rule) -> Ways {
    match rule {
        Rule::ContentStray => (
            &[
                |v| v.put(Key::Content(Ino(40)), content(1)),
                |v| v.put(Key::Content(Ino(6)), content(1)),
                |v| v.put(Key::Content(Ino(7)), content(1)),
                |v| v.put(Key::Content(Ino(2)), content(1)),
            ],
            &[],
        ),
        Rule::ContentMissing => (&[|v| v.delete(Key::Content(Ino(3)))], &[]),
        Rule::ContentLength => (
            &[
                |v| v.put(Key::Content(Ino(3)), content(101)),
                |v| v.edit_volume(|d| d.inline_max = 89),
                |v| v.edit_regular(3, |r| r.size = 89),
            ],
            &[],
        ),
        Rule::ChunkLength => (
            &[|v| v.put(Key::Chunk(Ino(6), 0), chunk(0)), |v| v.put(Key::Chunk(Ino(6), 0), chunk(131_073))],
            &[],
        ),
        Rule::FileSize => (&[|v| v.edit_regular(7, |r| r.size = 1 << 63)], &[]),
        Rule::BackingMissing => (
            &[|v| v.backing.retain(|&number, _| number != 6)],
            &[|v| v.backing.retain(|&number, _| number != 6)],
        ),
        other => attributes_and_orphans(other),
    }
}

fn attributes_and_orphans(rule: Rule) -> Ways {
    match rule {
        Rule::XattrCount => (
            &[
                |v| v.delete(xattr_key(7, "user.a")),
                |v| v.put(xattr_key(7, "user.b"), xattr(1)),
                |v| v.put(xattr_key(2, "user.b"), xattr(1)),
                |v| v.edit(8, |n| n.xattrs = 1),
            ],
            &[],
        ),
        Rule::XattrStray => (&[|v| v.put(xattr_key(40, "user.a"), xattr(1))], &[]),
        Rule::XattrLength => (
            &[
                |v| v.put(xattr_key(7, "user.a"), xattr(65_537)),
                |v| rename_xattr(v, ""),
                |v| rename_xattr(v, &"n".repeat(256)),
            ],
            &[],
        ),
        Rule::OrphanNamed => (
            &[|v| v.put(Key::Orphan(Ino(3)), orphan(SESSION))],
            &[
                |v| v.put(Key::Orphan(Ino(3)), orphan(SESSION)),
                |v| v.put(Key::Orphan(Ino(2)), orphan(SESSION)),
            ],
        ),
        Rule::OrphanSession => (
            &[],
            &[
                |v| v.put(Key::Orphan(Ino(9)), orphan(SessionId(8))),
                |v| {
                    v.put(Key::Session(SessionId(8)), session(SessionId(8), SessionState::Recovered));
                    v.put(Key::Orphan(Ino(13)), orphan(SessionId(8)));
                },
            ],
        ),
        Rule::OrphanLeft => (
            &[
                |v| v.put(Key::Orphan(Ino(40)), orphan(SESSION)),
                |v| {
                    v.put(node_key(40), file(0));
                    v.put(Key::Orphan(Ino(40)), orphan(SESSION));
                },
            ],
            &[],
        ),
        other => sessions_and_values(other),
    }
}

fn sessions_and_values(rule: Rule) -> Ways {
    match rule {
        Rule::SessionOwn => (
            &[],
            &[|v| {
                // Another one is live, so that its orphans are not accused as well.
                for number in [9, 12, 13] {
                    v.delete(Key::Orphan(Ino(number)));
                }
                v.delete(node_key(9));
                v.delete(node_key(12));
                v.delete(Key::Session(SESSION));
            }],
        ),
        Rule::SessionLeft => (
            &[
                |v| v.put(Key::Session(SESSION), session(SESSION, SessionState::Live)),
                |v| v.put(Key::Session(SESSION), session(SESSION, SessionState::Recovered)),
            ],
            &[|v| v.put(Key::Session(SessionId(8)), session(SessionId(8), SessionState::Live))],
        ),
        Rule::SessionFenced => (
            &[|v| v.put(Key::Session(SESSION), session(SESSION, SessionState::Fenced))],
            &[|v| v.put(Key::Session(SessionId(8)), session(SessionId(8), SessionState::Fenced))],
        ),
        Rule::SessionKey => {
            (&[], &[|v| v.put(Key::Session(SESSION), session(SessionId(8), SessionState::Live))])
        }
        Rule::AdvisorySession => (&[leave_a_lock], &[leave_a_lock]),
        Rule::AdvisoryLocks => {
            const SHARED: (SessionId, LockMode, u64, u64) = (SESSION, LockMode::Shared, 5, OFFSET_MAX);
            (
                &[],
                &[
                    |v| v.put(Key::Advisory(Ino(3)), advisory(&[])),
                    |v| v.put(Key::Advisory(Ino(3)), advisory(&[(SESSION, LockMode::Shared, 9, 8)])),
                    // A holder's own.
                    |v| v.put(Key::Advisory(Ino(3)), advisory(&[(SESSION, LockMode::Shared, 0, 5), SHARED])),
                ],
            )
        }
        Rule::ObjectMissing => (&[lose_an_object], &[lose_an_object]),
        Rule::Mode => (&[|v| v.edit(3, |n| n.mode = 0o10000)], &[]),
        Rule::Nanoseconds => (
            &[
                |v| v.edit(3, |n| n.atime.nsec = 1_000_000_000),
                |v| v.edit(3, |n| n.mtime.nsec = 1_000_000_000),
                |v| v.edit(3, |n| n.ctime.nsec = 1_000_000_000),
                |v| v.edit(3, |n| n.btime.nsec = u32::MAX),
            ],
            &[],
        ),
        Rule::SymlinkTarget => (&[|v| target(v, 0), |v| target(v, 4096)], &[]),
        Rule::Damaged => (&[|v| v.put(node_key(3), content(1)), |v| v.put(Key::Volume, content(1))], &[]),
        Rule::KeySpaceDamaged => (&[|v| v.torn = Some(Kind::Node), |v| v.torn = Some(Kind::Volume)], &[]),
        other => panic!("{other} has no test"),
    }
}

fn lose_an_object(volume: &mut Sample) {
    volume.objects = Some(Objects::in_memory(&Arc::default()));
    volume.edit_regular(7, |file| (file.place, file.size) = (ContentPlace::Chunks, 5));
    let object = ObjectRef::to(ObjectName { session: SESSION, ino: 7, index: 0 }.with(1), b"bytes");
    volume.put(Key::Chunk(Ino(7), 0), Document::Chunk(Chunk { bytes: object.encode() }));
}

fn file(nlink: u32) -> Document {
    Document::Node(Node { nlink, ..regular(ContentPlace::Empty, 0, 0) })
}

fn orphan(session: SessionId) -> Document {
    Document::Orphan(Orphan { session })
}

fn stray_under_nothing(volume: &mut Sample) {
    stray_under(volume, 40);
}

fn stray_under(volume: &Sample, parent: u64) {
    volume.link(parent, "stray", 3);
    volume.edit(3, |node| node.nlink += 1);
}

fn wrong_kind(volume: &Sample, name: &str, number: u64, kind: FileKind) {
    volume.put(entry_key(1, name), Document::Entry(Entry { ino: Ino(number), kind }));
}

fn second_name(volume: &Sample, number: u64) {
    volume.link(2, "again", number);
    volume.edit_directory(2, |directory| directory.children += 1);
    volume.edit(2, |node| node.nlink += 1);
}

fn unlink_spare(volume: &Sample) {
    volume.delete(entry_key(1, "spare"));
    volume.edit_directory(1, |directory| directory.children -= 1);
    volume.edit(1, |node| node.nlink -= 1);
}

/// Moves /a into /a/b/c, as two renames do that each see what the other has not written yet.
pub(super) fn make_loop(volume: &Sample) {
    volume.delete(entry_key(1, "a"));
    volume.edit_directory(1, |directory| directory.children -= 1);
    volume.edit(1, |node| node.nlink -= 1);
    volume.link(10, "a", 2);
    volume.edit_directory(10, |directory| directory.children += 1);
    volume.edit(10, |node| node.nlink += 1);
    volume.edit_directory(2, |directory| directory.parent = Ino(10));
}

fn into_itself(volume: &mut Sample) {
    unlink_spare(volume);
    volume.link(11, "spare", 11);
    volume.edit(11, |node| node.nlink += 1);
    volume.edit_directory(11, |directory| {
        directory.parent = Ino(11);
        directory.children = 1;
    });
}

fn leave_a_lock(volume: &mut Sample) {
    volume.put(Key::Advisory(Ino(3)), advisory(&[(SessionId(99), LockMode::Shared, 0, 9)]));
}

fn rename_xattr(volume: &Sample, name: &str) {
    volume.delete(xattr_key(7, "user.a"));
    volume.put(xattr_key(7, name), xattr(1));
}

fn target(volume: &Sample, len: usize) {
    volume.edit(5, |node| node.body = Body::Symlink { target: vec![b'x'; len].into() });
}

#[test]
fn every_rule_is_reported_alone_when_it_alone_is_broken() {
    for &rule in Rule::ALL {
        let (offline, online) = ways(rule);
        assert!(!offline.is_empty() || !online.is_empty(), "{rule} has no test");
        let offline = offline.iter().map(|way| (Sample::offline as fn() -> Sample, way));
        let online = online.iter().map(|way| (Sample::online as fn() -> Sample, way));
        for (number, (make, break_it)) in offline.chain(online).enumerate() {
            let mut volume = make();
            break_it(&mut volume);
            let report = volume.check();
            let found: Vec<_> = report.by_rule.keys().copied().collect();
            assert_eq!(found, [rule], "way {number} to break {rule}: {report:#?}");
            assert!(report.violations.iter().all(|v| !v.detail.is_empty() && !v.document.is_empty()));
        }
    }
}

#[test]
fn rules_have_names_of_their_own_and_an_invariant_in_the_text() {
    let text = include_str!("../invariants.md");
    let mut names = std::collections::HashSet::new();
    for rule in Rule::ALL {
        assert!(names.insert(rule.text()), "{rule}");
        let variant = format!("{rule:?}").to_lowercase();
        assert_eq!(rule.text().replace('-', ""), variant);
        assert!(text.contains(&format!("\n{}. **", rule.invariant())), "{rule}");
    }
}
