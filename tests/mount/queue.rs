//! Renames that wait hold up nobody who need not wait.

use std::fs;
use std::time::Duration;

use lockwood::ambient::monotonic;
use serde_json::Value;

use crate::common::interrupted::{SOON, renames_end};
use crate::common::{Held, LIMIT, Mounted, until};

const RENAMES: usize = 200;
const OTHERS: usize = 500;

/// What one operation beside the queue may take, on average and with a machine that does other things too.
const BOUND_EACH: Duration = Duration::from_millis(10);

fn waiting(mounted: &Mounted, lock: &str) -> usize {
    let Ok(text) = fs::read(mounted.path(".lockwood/locks").join(lock)) else { return 0 };
    let document: Value = serde_json::from_slice(&text).unwrap();
    document["waiters"].as_array().map_or(0, Vec::len)
}

#[test]
fn two_hundred_renames_behind_a_lock_leave_everything_else_quick_and_all_succeed() {
    let Some(mounted) = Mounted::new() else { return };
    fs::create_dir(mounted.path("top")).unwrap();
    for n in 0..RENAMES {
        fs::create_dir(mounted.path(&format!("top/{n}"))).unwrap();
        fs::write(mounted.path(&format!("top/{n}/f")), n.to_string()).unwrap();
    }
    fs::create_dir(mounted.path("elsewhere")).unwrap();
    let held = Held::exclusive(&mounted.path("top"));
    std::thread::scope(|scope| {
        let mounted = &mounted;
        let renames: Vec<_> = (0..RENAMES)
            .map(|n| {
                let [from, to] = ["f", "g"].map(|name| mounted.path(&format!("top/{n}/{name}")));
                scope.spawn(move || fs::rename(from, to))
            })
            .collect();
        // Whatever fails here, the lock must go before the threads are waited for.
        let begun = monotonic();
        while waiting(mounted, "%2Ftop") < RENAMES && begun.elapsed() < LIMIT / 4 {
            std::thread::sleep(Duration::from_millis(5));
        }
        let queued = waiting(mounted, "%2Ftop");
        let begun = monotonic();
        let done: Vec<_> = (0..OTHERS).map(|n| beside(mounted, n)).collect();
        let took = begun.elapsed();
        let still_queued = waiting(mounted, "%2Ftop");
        drop(held);
        let outcomes: Vec<_> = renames.into_iter().map(|rename| rename.join().unwrap()).collect();
        assert_eq!((queued, still_queued), (RENAMES, RENAMES));
        assert!(done.iter().all(Result::is_ok), "{done:?}");
        assert!(took < BOUND_EACH * OTHERS as u32, "{OTHERS} creates and stats took {took:?}");
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    });
    for n in 0..RENAMES {
        assert_eq!(fs::read_to_string(mounted.path(&format!("top/{n}/g"))).unwrap(), n.to_string());
    }
    until("the locks are released", || fs::read_dir(mounted.path(".lockwood/locks")).unwrap().count() == 0);
    let status = mounted.status();
    assert!(status.to_string().contains("waits"), "{status}");
    mounted.finish();
}

/// One create and two stats, one of them below what is locked.
fn beside(mounted: &Mounted, n: usize) -> std::io::Result<()> {
    fs::write(mounted.path(&format!("elsewhere/{n}")), b"x")?;
    fs::metadata(mounted.path("elsewhere"))?;
    fs::metadata(mounted.path(&format!("top/{}", n % RENAMES))).map(drop)
}

#[test]
fn a_rename_gives_up_with_ebusy_when_its_time_is_over() {
    let Some(mounted) = Mounted::with_options("lock_wait=0.3") else { return };
    fs::create_dir(mounted.path("d")).unwrap();
    fs::write(mounted.path("d/f"), b"x").unwrap();
    let held = Held::exclusive(&mounted.path("d"));
    let begun = monotonic();
    let error = fs::rename(mounted.path("d/f"), mounted.path("d/g")).unwrap_err();
    let took = begun.elapsed();
    drop(held);
    assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
    assert!(took >= Duration::from_millis(300) && took < Duration::from_secs(10), "{took:?}");
    fs::rename(mounted.path("d/f"), mounted.path("d/g")).unwrap();
    let log = fs::read_to_string(mounted.store.join("log")).unwrap();
    assert!(log.contains("%2Fd") && log.contains("timed out"), "{log}");
    mounted.finish();
}

#[test]
fn a_signal_ends_a_rename_that_waits() {
    let Some(mounted) = Mounted::new() else { return };
    renames_end(&mounted.path(""), &mounted.path(""), SOON);
    until("the locks are released", || fs::read_dir(mounted.path(".lockwood/locks")).unwrap().count() == 0);
    mounted.finish();
}
