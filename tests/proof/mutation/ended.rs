//! What was ended from outside changes nothing any more, and who has waited moves what he has locked. Real tables and
//! namespaces, over the engine in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use lockwood::ambient;
use lockwood::content::BackingFiles;
use lockwood::document::{Locking, Name, SessionId};
use lockwood::lock::{LockError, LockId, LockSet, LockTable, Mode, Request};
use lockwood::namespace::ops::make::What;
use lockwood::namespace::ops::rename::{Manner, Patience};

use super::interleave::{Mount, Trapped, name};
use super::{Judged, objection};

/// Judges all three.
pub(super) fn judge() -> Judged {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let place = directory.path().join("content");
    BackingFiles::create(&place, 8).expect("a content directory");
    let files = BackingFiles::open(&place, 8).expect("the content directory");
    Ok(an_operation()? + a_session(&files)? + a_subtree_that_was_exchanged(&files)?)
}

fn id(path: &str) -> LockId {
    LockId::from_path(path.as_bytes()).expect("a path")
}

fn an_operation() -> Judged {
    let table = LockTable::new();
    let set = LockSet::for_hold(&id("/a"), Mode::Exclusive).expect("no root");
    let request = Request { session: SessionId(1), set, operation: "rename /a to /b".into() };
    let guard = table.try_acquire(request).expect("nobody else is there");
    table.revoke(guard.op(), &"by a test".into());
    match guard.while_held(|| Ok::<(), LockError>(())) {
        Ok(()) => objection(1, "an operation whose locks were broken made its change"),
        Err(_) => Ok(1),
    }
}

fn a_session(files: &BackingFiles) -> Judged {
    let mount = Mount::begin(&Trapped::formatted(Locking::Tree), files);
    mount.namespace.fence(&"by a test".into()).expect("a store that works");
    match mount.make(lockwood::document::Ino::ROOT, &name("late"), What::Directory) {
        Ok(_) => objection(1, "a session that was fenced made a directory"),
        Err(_) => Ok(1),
    }
}

/// A rename under `document` waits for `/a` with the locks of what was in it. Meanwhile another directory comes to stand at
/// `/a`. What is moved then must be locked with all that is in it.
fn a_subtree_that_was_exchanged(files: &BackingFiles) -> Judged {
    let store = Trapped::formatted(Locking::Document);
    let mut mount = Mount::begin(&store, files);
    mount.fill();
    let other = Mount { inos: mount.inos.clone(), ..Mount::begin(&store, files) };
    let mount = Arc::new(mount);
    let held = [Name::new(b"a").expect("a name")];
    let hold = mount.namespace.hold(&held, Mode::Exclusive, "a test", Patience::Try).expect("free");
    let unlocked = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let patience = Patience::Wait((ambient::monotonic() + Duration::from_secs(10)).into());
            mount.rename_with("/a", "/x", Manner::Replace, patience)
        });
        while mount.namespace.locks().counters().waits == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        other.rename("/a", "/away", Manner::Replace).expect("its table is its own");
        other.rename("/b", "/a", Manner::Replace).expect("its table is its own");
        let (seen, watched) = (Arc::clone(&unlocked), Arc::clone(&mount));
        *store.trap.lock() = Some(Box::new(move || {
            seen.store(matches!(watched.namespace.locks().document(&id("/a/d/e")), Ok(None)), SeqCst);
        }));
        drop(hold);
        let _ = waits.join(); // Whether it may be made is not this judge's affair.
    });
    drop(store.trap.lock().take());
    match unlocked.load(SeqCst) {
        true => {
            objection(1, "mv /a /x moved /a/d/e, which came there while it waited, and had not locked it")
        }
        false => Ok(1),
    }
}
