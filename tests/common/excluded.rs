//! What two mounts of one volume promise about locks, whatever is behind them: each test is given one file as both have it.

use std::path::Path;
use std::time::Duration;

use super::locker::Locker;
use super::until;
use lockwood::ambient::monotonic;

/// EAGAIN, as the processes answer it.
const HELD: &str = "errno 11";
const INTERRUPTED: &str = "errno 4";
/// Long enough for a waiter that is not going to be granted anything to show it.
const A_WHILE: Duration = Duration::from_millis(300);

/// All of it, through one mount and the other.
pub(crate) fn exclude(here: &Path, there: &Path) {
    let parts: [fn(&Path, &Path); 6] = [
        exclude_by_flock,
        exclude_by_ranges,
        families_are_apart,
        closes_give_up,
        waits_end,
        increments_are_not_lost,
    ];
    for part in parts {
        // What a process had is given up soon after its death.
        let mut far = Locker::at(there);
        for (lock, unlock) in [("flock a ex", "flock a un"), ("fcntl a wr 0 0", "fcntl a un 0 0")] {
            until("the locks of the part before are given up", || far.ask(lock) == "ok");
            assert_eq!(far.ask(unlock), "ok");
        }
        part(here, there);
    }
}

fn exclude_by_flock(here: &Path, there: &Path) {
    let (mut one, mut near, mut far) = (Locker::at(here), Locker::at(here), Locker::at(there));
    assert_eq!(one.ask("flock a ex"), "ok");
    for other in [&mut near, &mut far] {
        assert_eq!(other.ask("flock a sh"), HELD);
    }
    assert_eq!(one.ask("flock a sh"), "ok");
    for other in [&mut near, &mut far] {
        assert_eq!(other.ask("flock a sh"), "ok");
        assert_eq!(other.ask("flock a un"), "ok");
    }
    // Another descriptor of the same process is another holder.
    assert_eq!(one.ask("open b"), "ok");
    assert_eq!(one.ask("flock b ex"), HELD);
    assert_eq!(one.ask("flock a un"), "ok");
    assert_eq!(far.ask("flock a ex"), "ok");
    // What cannot be changed at once is lost.
    assert_eq!(far.ask("flock a sh"), "ok");
    assert_eq!(one.ask("flock a sh"), "ok");
    assert_eq!(one.ask("flock a ex"), HELD);
    assert_eq!(far.ask("flock a ex"), "ok");
}

fn exclude_by_ranges(here: &Path, there: &Path) {
    let (mut one, mut near, mut far) = (Locker::at(here), Locker::at(here), Locker::at(there));
    assert_eq!(one.ask("fcntl a wr 10 10"), "ok");
    assert_eq!(far.ask("fcntl a wr 20 0"), "ok");
    assert_eq!(far.ask("fcntl a rd 19 1"), HELD);
    assert_eq!(near.ask("fcntl a rd 0 0"), HELD);
    assert_eq!(near.ask("fcntl a wr 0 10"), "ok");
    let pid = one.pid();
    assert_eq!(near.ask("test a rd 5 6"), format!("wr 10 10 {pid}"));
    // Both mounts are on this host, so the number of the process means something.
    assert_eq!(far.ask("test a wr 15 1"), format!("wr 10 10 {pid}"));
    assert_eq!(one.ask("test a wr 10 10"), "free");
    assert_eq!(one.ask("fcntl a un 12 3"), "ok");
    assert_eq!(far.ask("fcntl a wr 12 3"), "ok");
    assert_eq!(far.ask("fcntl a wr 12 4"), HELD);
    // An open file's own.
    assert_eq!(one.ask("ofd a wr 1000 1"), HELD);
    assert_eq!(far.ask("fcntl a un 1000 1"), "ok");
    assert_eq!(one.ask("ofd a wr 1000 1"), "ok");
    assert_eq!(one.ask("fcntl a rd 1000 1"), HELD);
}

fn families_are_apart(here: &Path, there: &Path) {
    let (mut one, mut far) = (Locker::at(here), Locker::at(there));
    assert_eq!(one.ask("flock a ex"), "ok");
    assert_eq!(far.ask("fcntl a wr 0 0"), "ok");
    assert_eq!(far.ask("flock a ex"), HELD);
    assert_eq!(one.ask("fcntl a wr 0 0"), HELD);
}

fn closes_give_up(here: &Path, there: &Path) {
    let (mut one, mut far) = (Locker::at(here), Locker::at(there));
    for line in ["open b", "flock a ex", "ofd a wr 0 1", "fcntl a wr 1 1"] {
        assert_eq!(one.ask(line), "ok", "{line}");
    }
    // Any close of the process gives up what fcntl locked, as POSIX wants, and nothing else.
    assert_eq!(one.ask("close b"), "ok");
    assert_eq!(far.ask("fcntl a wr 1 1"), "ok");
    assert_eq!((far.ask("fcntl a wr 0 1").as_str(), far.ask("flock a ex").as_str()), (HELD, HELD));
    // The end of an open file comes to the daemon after close(2) has returned.
    assert_eq!(one.ask("close a"), "ok");
    until("the locks of the open file are given up", || far.ask("fcntl a wr 0 1") == "ok");
    until("and that of flock", || far.ask("flock a ex") == "ok");
    assert_eq!(far.ask("fcntl a un 0 0"), "ok");
    // So does every death.
    let mut dies = Locker::at(here);
    assert_eq!(dies.ask("fcntl a wr 0 0"), "ok");
    assert_eq!(far.ask("fcntl a wr 5 1"), HELD);
    dies.kill();
    until("the locks of the dead are given up", || far.ask("fcntl a wr 5 1") == "ok");
}

fn waits_end(here: &Path, there: &Path) {
    let (mut one, mut far) = (Locker::at(here), Locker::at(there));
    for (lock, waits, unlock) in [
        ("flock a ex", "flock a ex wait", "flock a un"),
        ("fcntl a wr 0 0", "fcntl a rd 7 1 wait", "fcntl a un 0 0"),
    ] {
        assert_eq!(one.ask(lock), "ok");
        far.say(waits);
        // Just after a look of its daemon's own; the next one is 1.6 s away.
        assert_eq!(far.answer(Duration::from_millis(1700)), None);
        let begun = monotonic();
        assert_eq!(one.ask(unlock), "ok");
        assert_eq!(far.answer(Duration::from_secs(10)).as_deref(), Some("ok"), "{waits}");
        assert!(begun.elapsed() < Duration::from_secs(1), "{waits} took {:?}", begun.elapsed());
        assert_eq!(far.ask(unlock), "ok");
    }
    // A signal ends a wait: one that is handled, and one that kills.
    assert_eq!(one.ask("flock a ex"), "ok");
    assert_eq!(far.ask("handle"), "ok");
    for waits in ["flock a sh wait", "fcntl a rd 0 0 wait"] {
        assert_eq!(one.ask("fcntl a wr 0 0"), "ok");
        far.say(waits);
        assert_eq!(far.answer(A_WHILE), None);
        far.interrupt();
        assert_eq!(far.answer(Duration::from_secs(10)).as_deref(), Some(INTERRUPTED));
    }
    far.say("flock a sh wait");
    assert_eq!(far.answer(A_WHILE), None);
    let begun = monotonic();
    far.kill();
    assert!(begun.elapsed() < Duration::from_secs(3), "killed after {:?}", begun.elapsed());
    // Who gave up is not in the way of who comes after.
    assert_eq!(one.ask("flock a un"), "ok");
    assert_eq!(Locker::at(there).ask("flock a ex"), "ok");
}

/// What one writes under the lock the next reads under it.
fn increments_are_not_lost(here: &Path, there: &Path) {
    const TIMES: u64 = 40;
    assert_eq!(Locker::at(here).ask("write a 0"), "ok");
    std::thread::scope(|scope| {
        for (path, lock, unlock) in [
            (here, "flock a ex wait", "flock a un"),
            (here, "flock a ex wait", "flock a un"),
            (there, "flock a ex wait", "flock a un"),
        ] {
            scope.spawn(move || {
                let mut locker = Locker::at(path);
                for _ in 0..TIMES {
                    assert_eq!(locker.ask(lock), "ok");
                    let text = locker.ask("read a");
                    let number: u64 = text.parse().unwrap_or_else(|_| panic!("{text:?} is no number"));
                    assert_eq!(locker.ask(&format!("write a {}", number + 1)), "ok");
                    assert_eq!(locker.ask(unlock), "ok");
                }
            });
        }
    });
    assert_eq!(Locker::at(there).ask("read a"), (3 * TIMES).to_string());
}
