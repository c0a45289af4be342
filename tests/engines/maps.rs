//! What a map shows when notices are lost, between two mounts, each a daemon of its own as on two hosts.
//!
//! What is hard: the kernel keeps the pages of a map until it is told that they are old. Nobody asks for them again, so what
//! is missed once would be missed for as long as the file is open.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use crate::common::mapped::Map;
use crate::common::until;
use crate::two::{Two, over_postgres, over_redis};

/// So many that one of them at least falls into the gap.
const ROUNDS: u8 = 8;

/// `listeners` counts the connections on which mounts hear of each other's changes, and `cut` ends them.
fn a_map_shows_what_was_written_in_a_gap(two: &Two, listeners: &dyn Fn() -> usize, cut: &dyn Fn()) {
    fs::write(two.file(1), [b'a'; 4096]).unwrap();
    let ours = File::options().read(true).write(true).open(two.file(0)).unwrap();
    let theirs = File::options().write(true).open(two.file(1)).unwrap();
    // Who maps a file asks for its size first; a fault does not.
    assert_eq!(ours.metadata().unwrap().len(), 4096);
    let map = Map::of(&ours, 4096);
    for round in 1..=ROUNDS {
        until("both mounts listen", || listeners() == 2);
        assert_eq!(map.get(0), b'a' + round - 1);
        cut();
        theirs.write_all_at(&[b'a' + round], 0).unwrap();
        until("the map shows what was written in the gap", || map.get(0) == b'a' + round);
    }
}

#[test]
fn a_map_shows_what_was_written_in_a_gap_over_postgresql() {
    over_postgres(|two, sql| {
        let of_listeners = |what: &str| {
            sql(&format!("SELECT count({what}) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"))
        };
        let listeners = || of_listeners("pid").trim().parse().unwrap();
        a_map_shows_what_was_written_in_a_gap(&two, &listeners, &|| {
            of_listeners("pg_terminate_backend(pid)");
        });
        two.finish();
    });
}

#[test]
fn a_map_shows_what_was_written_in_a_gap_over_redis() {
    over_redis(|two| {
        let server = redis::Client::open(two.url.split('?').next().unwrap()).unwrap();
        let client = |words: &[&str]| {
            let mut server = server.get_connection().unwrap();
            redis::cmd("CLIENT").arg(words).query::<redis::Value>(&mut server).unwrap()
        };
        let listeners = || {
            let list: String = redis::from_redis_value(client(&["LIST", "TYPE", "pubsub"])).unwrap();
            list.lines().count()
        };
        a_map_shows_what_was_written_in_a_gap(&two, &listeners, &|| {
            client(&["KILL", "TYPE", "pubsub"]);
        });
        two.finish();
    });
}
