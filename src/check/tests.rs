//! The judge's judge: a small good volume is clean, and each rule that is broken in it is reported alone.

mod damage;
mod fixture;
mod objects;
mod rules;
mod shared;

use std::collections::BTreeMap;

use super::table::{Table, What};
use super::*;
use crate::document::{ContentPlace, Name};
use fixture::{Freeze as _, Sample, ino, node_key};

#[test]
fn a_good_volume_is_clean() {
    for volume in [Sample::offline(), Sample::online()] {
        let report = volume.check();
        assert!(report.is_clean() && !report.is_leftover_only(), "{report:#?}");
        assert_eq!(report.violations, []);
        assert_eq!(report.garbage, []);
        let online = u64::from(volume.mode != Mode::Offline);
        let expected = Counts {
            nodes: 10 + 2 * online,
            directories: 5 + online,
            entries: 10,
            contents: 1,
            xattrs: 2,
            orphans: 3 * online,
            sessions: online,
            backing_files: 1 + online,
            backing_bytes: 8192 * (1 + online),
            ..Counts::default()
        };
        assert_eq!(report.counts, expected);
    }
}

#[test]
fn what_a_crash_leaves_is_told_from_damage() {
    let mut volume = Sample::online();
    volume.mode = Mode::Offline;
    let report = volume.check();
    assert!(report.is_leftover_only());
    assert_eq!(
        report.by_rule.iter().map(|(&rule, &n)| (rule, n)).collect::<Vec<_>>(),
        [(Rule::OrphanLeft, 3), (Rule::SessionLeft, 1)]
    );
    let session = report.violations.iter().find(|v| v.rule == Rule::SessionLeft).unwrap();
    assert_eq!(session.document, "session:0000000000000007");
    assert_eq!(session.detail, "not ended: process 4711 on ada, mounted at \"/mnt\"");
    assert_eq!(session.advice, Some("mount the volume once to recover"));
    volume.delete(Key::Entry(ino(1), Name::new(b"pipe").unwrap()));
    assert!(!volume.check().is_leftover_only());
}

#[test]
fn backing_files_without_an_owner_are_garbage() {
    let mut volume = Sample::offline();
    volume.backing.insert(50, BackingFile { allocated: 4096 });
    volume.backing.insert(7, BackingFile { allocated: 512 }); // An empty file's.
    let report = volume.check();
    assert!(report.is_clean());
    assert_eq!(report.garbage.iter().map(|g| &*g.document).collect::<Vec<_>>(), ["backing:7", "backing:50"]);
    assert_eq!((report.counts.garbage, report.counts.garbage_bytes), (2, 4608));
}

#[test]
fn online_the_live_documents_decide_about_backing_files() {
    let mut volume = Sample::online();
    let past = volume.store.snapshot_of_all();
    // Since the snapshot: one file made, one removed with its bytes, and one file that nothing names.
    volume.copy_node(6, 60);
    volume.delete(node_key(6));
    let taken = volume.backing.remove(&6).unwrap();
    volume.backing.insert(60, taken);
    volume.backing.insert(70, taken);
    let report = volume.check_with(&past);
    assert_eq!(report.violations, []);
    assert_eq!(report.garbage.iter().map(|g| &*g.document).collect::<Vec<_>>(), ["backing:70"]);
}

#[test]
fn a_loop_names_its_members() {
    let volume = Sample::offline();
    rules::make_loop(&volume);
    let report = volume.check();
    let [violation] = &report.violations[..] else { panic!("{report:#?}") };
    assert_eq!((violation.rule, violation.document.as_str()), (Rule::DirectoryLoop, "node:2"));
    assert_eq!(violation.detail, "directories lie in each other and not under the root: 2 in 10 in 4 in 2");
    assert_eq!(report.counts.unreachable_directories, 3);
}

#[test]
fn a_lost_directory_is_one_violation_and_not_one_for_each_entry() {
    let volume = Sample::offline();
    for i in 0..500 {
        volume.link(40, &format!("lost {i}"), 3);
    }
    volume.edit(3, |node| node.nlink += 500);
    let report = volume.check();
    let [violation] = &report.violations[..] else { panic!("{report:#?}") };
    assert_eq!(violation.rule, Rule::EntryParent);
    assert_eq!(violation.detail, "its parent, node 40, is missing; 499 more entries are in it");
}

#[test]
fn a_root_that_is_a_file_is_seen() {
    let volume = Sample::offline();
    volume.copy_node(8, 1);
    let report = volume.check();
    assert!(report.by_rule.contains_key(&Rule::Root) && report.by_rule.contains_key(&Rule::EntryParent));
}

#[test]
fn an_online_check_without_live_documents_accuses_no_backing_file() {
    let mut volume = Sample::online();
    volume.backing.clear();
    volume.backing.insert(70, BackingFile::default());
    let inputs = Inputs { live: None, ..volume.inputs(&volume) };
    let report = run(&inputs, &mut |_| {}).unwrap();
    assert!(report.is_clean() && report.garbage.is_empty());
}

/// Who changes the tree meanwhile: each time that the nodes have been judged.
#[test]
fn what_is_only_being_changed_is_not_accused() {
    let volume = Sample::online();
    let check = |change: &dyn Fn(u64)| {
        let mut times = 0;
        run_while_changing(&volume.inputs(&volume), &mut |progress| {
            if progress.phase == Phase::Nodes && Some(progress.done) == progress.total {
                times += 1;
                change(times);
            }
        })
        .map(|report| (report, times))
        .unwrap()
    };
    let more = |number, by: i64| {
        volume.edit_directory(number, |directory| {
            directory.children = directory.children.wrapping_add_signed(by)
        });
    };
    assert_eq!(check(&|_| ()).1, 1, "nothing is accused");
    // A different one each time.
    more(4, 1);
    let (report, times) = check(&|times| {
        if times == 1 {
            more(4, -1);
            more(1, 1);
        } else if times == 2 {
            more(1, -1);
        }
    });
    assert!(report.is_clean() && report.by_rule.is_empty(), "{report:#?}");
    assert_eq!((times, report.counts.changing), (3, 0));
    // One that stays, beside one that was mended in between.
    more(4, 1);
    more(1, 1);
    let (report, times) = check(&|times| {
        if times == 1 {
            more(1, -1)
        }
    });
    let [violation] = &report.violations[..] else { panic!("{report:#?}") };
    assert_eq!((violation.document.as_str(), report.counts.violations, times), ("node:4", 1, 2));
    assert_eq!(report.by_rule, BTreeMap::from([(violation.rule, 1)]));
    // One that is changed all the time, and wrong at each look.
    let (report, times) = check(&|_| more(4, 1));
    assert!(report.is_clean(), "{report:#?}");
    assert_eq!((times, report.counts.changing), (5, 1));
}

#[test]
fn many_violations_are_counted_and_few_kept() {
    let volume = Sample::offline();
    let many = report::KEPT_MAX as u64 + 500;
    for i in 0..many {
        volume.link(4, &format!("{i}"), 80_000 + i);
    }
    volume.edit_directory(4, |directory| directory.children += many);
    let report = volume.check();
    assert_eq!(report.violations.len(), report::KEPT_MAX);
    assert_eq!(report.counts.violations, many);
    assert_eq!(report.by_rule[&Rule::EntryNode], many);
}

#[test]
fn the_json_form_has_rules_in_kebab_case() {
    let volume = Sample::offline();
    volume.delete(Key::Volume);
    let json = serde_json::to_value(volume.check()).unwrap();
    assert_eq!(json["violations"][0]["rule"], "volume-missing");
    assert_eq!(json["violations"][0]["document"], "volume");
    assert_eq!(json["by_rule"]["volume-missing"], 1);
    assert_eq!(json["counts"]["nodes"], 10);
}

#[test]
fn progress_is_told_and_ends_at_its_total() {
    let volume = Sample::offline();
    for i in 0..3000 {
        volume.link(1, &format!("x{i}"), 3);
    }
    volume.edit(3, |node| node.nlink += 3000);
    volume.edit_directory(1, |directory| directory.children += 3000);
    let mut told = Vec::new();
    run(&volume.inputs(&volume), &mut |progress| told.push(progress)).unwrap();
    let entries: Vec<_> = told.iter().filter(|p| p.phase == Phase::Documents(Kind::Entry)).collect();
    assert_eq!(entries.iter().map(|p| p.done).collect::<Vec<_>>(), [1024, 2048, 3010]);
    assert!(entries.iter().all(|p| p.total == Some(3010)));
    assert!(told.iter().any(|p| p.phase == Phase::Backing));
}

#[test]
fn the_table_finds_what_a_scan_delivered_out_of_order() {
    let mut table = Table::default();
    for i in [5, 3, 9] {
        table.push(ino(i), Some(&fixture::regular(ContentPlace::Empty, i, 0)));
    }
    table.push(ino(4), None);
    table.seal().unwrap();
    assert_eq!(table.get(ino(9)).map(|r| r.size), Some(9));
    assert_eq!(table.get(ino(4)).map(|r| r.what), Some(What::Unreadable));
    assert!(table.get(ino(6)).is_none());
}
