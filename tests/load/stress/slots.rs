//! Names that everybody wants. Two games:
//!
//! - *contest*: a slot always holds a file and is only ever overwritten. So of all files that went there exactly one is
//!   left, and it is one whose rename no other followed.
//! - *take*: a free name taken with `RENAME_NOREPLACE` belongs to whoever succeeded, until that one moves it away: a
//!   mutex made of a rename. Two owners at once is a violation.

use crate::common::rng::Rng;
use crate::common::{Res, now, sys};
use crate::ledger::{Arrival, Ledger, read_id};
use crate::world::View;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// How many slots are contested.
pub(crate) const SLOTS: usize = 3;
const TAKEN: usize = 2;

/// The name of a contested slot.
pub(crate) fn slot_name(slot: usize) -> String {
    format!("s{slot}")
}

/// Puts the first file into each contested slot.
pub(crate) fn prepare(view: &View, ledger: &mut Ledger) -> Res<()> {
    for slot in 0..SLOTS {
        let made = ledger.make_file(&view.slots, &slot_name(slot));
        let (id, _) = made.map_err(|e| format!("cannot fill the slots: {e}"))?;
        ledger.arrivals.push(Arrival { slot, id, start: Duration::ZERO, end: Duration::ZERO });
    }
    Ok(())
}

/// One random operation of a worker with a directory of its own.
pub(crate) fn step(view: &View, mine: &OwnedFd, rng: &mut Rng, ledger: &mut Ledger) {
    let name = format!("c{:x}", ledger.fresh());
    let made = ledger.make_file(mine, &name);
    let Ok((id, _)) = made else {
        let refused = made.map(drop);
        ledger.must("slot-create", &name, &refused);
        return;
    };
    if rng.chance(60) {
        let slot = rng.below(SLOTS);
        let start = now();
        let result = sys::rename_at(mine, &name, &view.slots, &slot_name(slot), 0);
        if ledger.must("contest", &name, &result) {
            return ledger.arrivals.push(Arrival { slot, id, start, end: now() });
        }
    } else if view.flags {
        let slot = format!("t{}", rng.below(TAKEN));
        let result = sys::rename_at(mine, &name, &view.slots, &slot, libc::RENAME_NOREPLACE);
        if ledger.count("take", &result) {
            let seen = sys::open_at(&view.slots, &slot, libc::O_RDONLY, 0);
            match seen.and_then(|fd| read_id(&File::from(fd))) {
                Ok(found) if found == Some(id) => {}
                other => ledger.violation(format!("take: {slot} is {id:x}'s, but shows {other:x?}")),
            }
            let back = sys::rename_at(&view.slots, &slot, mine, &name, 0);
            if !ledger.must("give-back", &slot, &back) {
                return;
            }
        }
    }
    let removed = sys::unlink_at(mine, &name);
    if ledger.must("slot-unlink", &name, &removed) {
        ledger.deleted.push(id);
    }
}
