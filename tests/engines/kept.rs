//! Shares that a session keeps, over real servers: renames side by side write nothing to the lock documents above them, and
//! whoever wants one of these directories gets it at once.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::until;
use crate::two::{Two, over_postgres, over_redis};

/// Without a notice the holder looks once a second.
const AT_ONCE: Duration = Duration::from_millis(900);
const RENAMES: usize = 20;

/// Renames a file of this mount to and fro.
fn rename(directory: &Path, times: usize) {
    for _ in 0..times {
        fs::rename(directory.join("x"), directory.join("y")).unwrap();
        fs::rename(directory.join("y"), directory.join("x")).unwrap();
    }
}

/// The documents of the locks that are held, as the mount has them.
fn locks(two: &Two) -> Vec<Value> {
    let listed = crate::common::lockwood(["locks", "--json", &two.url]).ok();
    serde_json::from_str::<Vec<Value>>(&listed).unwrap()
}

fn holders(two: &Two, id: &str) -> usize {
    let found = locks(two).into_iter().find(|lock| lock["id"] == id);
    found.map_or(0, |lock| lock["holders"].as_array().unwrap().len())
}

fn shares_are_kept_and_given_up(two: Two, version_of_lock: impl Fn(&Two) -> String) {
    let mut directories = Vec::new();
    for at in 0..2 {
        let directory = two.point(at).join("d").join(format!("of{at}"));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("x"), "").unwrap();
        directories.push(directory);
    }
    directories.iter().for_each(|directory| rename(directory, 3));
    assert_eq!(holders(&two, "%2Fd"), 2, "{:?}", locks(&two));
    // Both rename at once, and neither changes the document of what is above both.
    let before = version_of_lock(&two);
    std::thread::scope(|scope| {
        for directory in &directories {
            scope.spawn(|| rename(directory, RENAMES));
        }
    });
    assert_eq!(version_of_lock(&two), before);
    assert!(!before.trim().is_empty());
    // Who wants it alone waits for a notice and no longer.
    let begun = Instant::now();
    fs::rename(two.point(0).join("d"), two.point(0).join("e")).unwrap();
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    until("no lock is left", || locks(&two).is_empty());
    until("the other host sees it", || two.point(1).join("e/of1/x").exists());
    two.finish();
}

#[test]
fn over_postgresql_shares_are_kept_and_given_up() {
    over_postgres(|two, psql| {
        let schema = "SELECT table_schema FROM information_schema.tables WHERE table_name = 'lock'";
        let sql = format!("SELECT version FROM {}.lock WHERE id = '%2Fd'", psql(schema).trim());
        shares_are_kept_and_given_up(two, |_| psql(&sql));
    });
}

#[test]
fn over_redis_shares_are_kept_and_given_up() {
    over_redis(|two| shares_are_kept_and_given_up(two, |two| two.get("lock:%2Fd").ok()));
}
