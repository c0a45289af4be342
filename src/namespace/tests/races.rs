//! Operations at the same moment: whatever the order, the tree stays a tree and nothing is lost.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use super::world::{ROOT, World, name, under_each_strategy};
use crate::document::Ino;
use crate::namespace::ops::make::What;
use crate::namespace::ops::rename::Manner;
use crate::namespace::{Caller, NamespaceError as E};

under_each_strategy!(
    two_moves_that_would_make_a_loop_together_never_do,
    random_moves_of_directories_keep_the_tree_a_tree,
    a_create_and_the_replacement_of_its_directory_never_both_win,
    of_two_renames_to_one_name_each_counts_and_one_file_is_left,
    of_two_renames_that_must_not_replace_one_wins,
);

/// Runs all of `works` at the same moment, `rounds` times; `before` and `after` run alone, around each round.
///
/// In most rounds one of them, each in its turn, begins up to 2 ms after the others: on a machine that always runs the same
/// one first, every order comes about all the same.
fn collide(rounds: usize, before: impl Fn(usize), works: &[&(dyn Fn(usize) + Sync)], after: impl Fn(usize)) {
    let (barrier, turns) = (Barrier::new(works.len()), works.len() + 1);
    for round in 0..rounds {
        before(round);
        // Threads of this round alone: one that fails is waited for by nobody in the next.
        std::thread::scope(|scope| {
            for (turn, work) in works.iter().enumerate() {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    if round % turns == turn {
                        std::thread::sleep(Duration::from_micros(1 << (round / turns % 12)));
                    }
                    work(round);
                });
            }
        });
        after(round);
    }
}

/// juicefs 4800: `mv a b/d/e` and `mv b/d a/c` are each legal alone, and together cut a loop off the root.
fn two_moves_that_would_make_a_loop_together_never_do(world: World) {
    let (first, second, refused) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let tops: Vec<(Ino, Ino, Ino)> = (0..200)
        .map(|n| {
            let top = world.dir(ROOT, &n.to_string());
            let b = world.dir(top, "b");
            world.dir(top, "a");
            world.dir(b, "d");
            (top, world.find(top, "a").unwrap(), b)
        })
        .collect();
    let judge = |outcome: Result<(), E>, moved: &AtomicUsize| match outcome {
        Ok(()) => drop(moved.fetch_add(1, Relaxed)),
        Err(E::NotFound | E::IntoItself) => drop(refused.fetch_add(1, Relaxed)),
        Err(other) => panic!("{other}"),
    };
    let one = |round: usize| {
        let (top, _, b) = tops[round];
        let d = world.find(b, "d");
        judge(d.and_then(|d| world.mv((top, "a"), (d, "e"))), &first);
    };
    let other = |round: usize| {
        let (_, a, b) = tops[round];
        judge(world.mv((b, "d"), (a, "c")), &second);
    };
    collide(
        tops.len(),
        |_| {},
        &[&one, &other],
        |round| {
            if round % 20 == 19 {
                world.assert_clean();
            }
        },
    );
    let (first, second, refused) = (first.into_inner(), second.into_inner(), refused.into_inner());
    assert_eq!(first + second + refused, 400);
    assert!(first > 0 && second > 0 && refused >= 100, "{first}, {second}, {refused}");
    // All 800 directories are still there, and `check` finds each below the root.
    assert_eq!(world.check().counts.directories, 801);
    world.finish();
}

fn random_moves_of_directories_keep_the_tree_a_tree(world: World) {
    const DIRECTORIES: usize = 12;
    let inos: Vec<Ino> = (0..DIRECTORIES).map(|n| world.dir(ROOT, &n.to_string())).collect();
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for seed in 1..=4u64 {
            let (world, inos, done) = (&world, &inos, &done);
            scope.spawn(move || {
                let mut state = seed;
                let mut pick = |below: usize| {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (state >> 33) as usize % below
                };
                for _ in 0..400 {
                    let (what, to) = (pick(DIRECTORIES), pick(DIRECTORIES + 1));
                    let to = inos.get(to).copied().unwrap_or(ROOT);
                    let Ok((from, _)) = world.parent(inos[what]) else { continue };
                    let text = what.to_string();
                    match world.mv((from, &text), (to, &text)) {
                        Ok(()) => drop(done.fetch_add(1, Relaxed)),
                        Err(E::NotFound | E::IntoItself | E::NotEmpty) => {}
                        Err(other) => panic!("seed {seed}: {other}"),
                    }
                }
            });
        }
    });
    assert!(done.load(Relaxed) > 100, "too few moves came about: {done:?}");
    assert_eq!(world.check().counts.directories, DIRECTORIES as u64 + 1);
    world.finish();
}

/// seaweedfs 4015, juicefs 6597: a create lands in a directory that is being removed.
#[test]
fn a_create_and_the_removal_of_its_directory_never_both_win() {
    let world = World::new();
    let (created, removed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let create = |_: usize| {
        let made = world.find(ROOT, "d").and_then(|d| world.make(d, "f", What::Regular, 0o644, Caller::ROOT));
        match made {
            Ok(_) => drop(created.fetch_add(1, Relaxed)),
            Err(E::NotFound) => {}
            Err(other) => panic!("{other}"),
        }
    };
    let remove = |_: usize| match world.rmdir(ROOT, &name("d")) {
        Ok(()) => drop(removed.fetch_add(1, Relaxed)),
        Err(E::NotEmpty) => {}
        Err(other) => panic!("{other}"),
    };
    collide(
        300,
        |_| {
            world.dir(ROOT, "d");
        },
        &[&create, &remove],
        |_| {
            if let Ok(d) = world.find(ROOT, "d") {
                world.unlink(d, &name("f")).unwrap();
                world.rmdir(ROOT, &name("d")).unwrap();
            }
        },
    );
    let (created, removed) = (created.into_inner(), removed.into_inner());
    assert_eq!(created + removed, 300);
    assert!(created > 0 && removed > 0, "{created} creates and {removed} removals: no race was run");
    world.finish();
}

fn a_create_and_the_replacement_of_its_directory_never_both_win(world: World) {
    let (created, replaced) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let old = std::sync::Mutex::new(ROOT);
    let create = |_: usize| {
        let d = *old.lock().unwrap();
        match world.make(d, "f", What::Regular, 0o644, Caller::ROOT) {
            Ok(_) => drop(created.fetch_add(1, Relaxed)),
            Err(E::NotFound) => {}
            Err(other) => panic!("{other}"),
        }
    };
    let replace = |_: usize| match world.mv((ROOT, "new"), (ROOT, "d")) {
        Ok(()) => drop(replaced.fetch_add(1, Relaxed)),
        Err(E::NotEmpty) => {}
        Err(other) => panic!("{other}"),
    };
    let before = |_: usize| {
        *old.lock().unwrap() = world.dir(ROOT, "d");
        world.dir(ROOT, "new");
    };
    collide(300, before, &[&create, &replace], |_| {
        for name in world.names(ROOT) {
            let d = world.find(ROOT, &name).unwrap();
            for file in world.names(d) {
                world.unlink(d, &super::world::name(&file)).unwrap();
            }
            world.rmdir(ROOT, &super::world::name(&name)).unwrap();
        }
    });
    let (created, replaced) = (created.into_inner(), replaced.into_inner());
    assert_eq!(created + replaced, 300);
    assert!(created > 0 && replaced > 0, "{created} creates and {replaced} replacements: no race was run");
    world.finish();
}

fn of_two_renames_to_one_name_each_counts_and_one_file_is_left(world: World) {
    let [a, b, to] = ["a", "b", "to"].map(|n| world.dir(ROOT, n));
    let before = |_: usize| {
        world.filled(a, "f", b"from a");
        world.filled(b, "f", &[b'b'; 200]);
    };
    let work = |from: Ino| move |world: &World| world.mv((from, "f"), (to, "f")).unwrap();
    let (one, other) = (work(a), work(b));
    collide(150, before, &[&|_| one(&world), &|_| other(&world)], |_| {
        assert_eq!((world.children(a), world.children(b), world.children(to)), (0, 0, 1));
        let left = world.bytes(world.find(to, "f").unwrap());
        assert!(left == b"from a" || left == [b'b'; 200]);
    });
    world.finish();
}

fn of_two_renames_that_must_not_replace_one_wins(world: World) {
    let [a, b, to] = ["a", "b", "to"].map(|n| world.dir(ROOT, n));
    let wins = AtomicUsize::new(0);
    let work = |from: Ino| match world.move_as((from, "f"), (to, "f"), Manner::NoReplace) {
        Ok(()) => drop(wins.fetch_add(1, Relaxed)),
        Err(E::Exists) => {}
        Err(other) => panic!("{other}"),
    };
    let before = |_: usize| {
        for parent in [a, b] {
            if world.find(parent, "f").is_err() {
                world.file(parent, "f");
            }
        }
    };
    collide(150, before, &[&|_| work(a), &|_| work(b)], |_| world.unlink(to, &name("f")).unwrap());
    assert_eq!(wins.into_inner(), 150);
    world.finish();
}

#[test]
fn an_open_and_the_last_unlink_leave_an_open_file_or_none() {
    let world = World::new();
    let opened = AtomicUsize::new(0);
    let f = std::sync::Mutex::new(ROOT);
    let open = |_: usize| {
        let f = *f.lock().unwrap();
        match world.open(f) {
            Ok(()) => {
                assert_eq!(world.bytes(f), [1; 100]);
                world.close_file(f).unwrap();
                opened.fetch_add(1, Relaxed);
            }
            Err(E::Stale) => {}
            Err(other) => panic!("{other}"),
        }
    };
    let before = |_: usize| *f.lock().unwrap() = world.filled(ROOT, "f", &[1; 100]);
    let unlink = |_: usize| world.unlink(ROOT, &name("f")).unwrap();
    collide(300, before, &[&open, &unlink], |_| {});
    let opened = opened.into_inner();
    assert!(opened > 0 && opened < 300, "{opened} of 300 were opened: no race was run");
    assert_eq!(world.open_inodes(), 0);
    world.finish();
}

#[test]
fn links_and_unlinks_of_one_inode_keep_the_count_right() {
    let world = World::new();
    let f = world.file(ROOT, "f");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let world = &world;
            scope.spawn(move || {
                let own = name(&format!("t{thread}"));
                for _ in 0..100 {
                    world.link(f, ROOT, &own).unwrap();
                    world.unlink(ROOT, &own).unwrap();
                }
            });
        }
    });
    assert_eq!((world.node(f).nlink, world.children(ROOT)), (1, 1));
    world.finish();
}
