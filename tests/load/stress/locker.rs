//! Holds exclusive locks for short times through the command, as a user would, so that renames really wait: Linux lets
//! one mount have only one cross-directory rename in flight, so that renames alone may never meet.

use crate::common::command;
use crate::common::rng::Rng;
use crate::common::sys;
use crate::ledger::Ledger;
use crate::world::{View, World};
use std::time::Duration;

/// What became of the locks that were asked for.
#[derive(Default)]
pub(crate) struct Held {
    /// Granted, held and released.
    pub(crate) granted: u64,
    /// Refused, most often since the path had moved away.
    pub(crate) refused: u64,
    /// What the command last said when it refused.
    pub(crate) last_refusal: String,
}

/// Locks one path after the other until the end.
pub(crate) fn run(world: &World, view: &View, rng: &mut Rng, ledger: &mut Ledger) -> Held {
    let mut held = Held::default();
    while !world.stopped() {
        let path = match rng.below(10) {
            0..6 => {
                let names = sys::read_dir(&view.pool[0]).unwrap_or_default();
                let directories: Vec<_> = names.iter().filter(|(_, kind)| *kind == libc::DT_DIR).collect();
                let Some((name, _)) = rng.pick(&directories) else { continue };
                view.home.join("pool").join(name)
            }
            6..8 => view.home.join("pool"),
            8 => view.home.join("empty"),
            _ => view.home.join("loops"),
        };
        let path = path.to_string_lossy();
        let hold = ["0.005", "0.02", "0.05"][rng.below(3)];
        match command::run(&["lock", &path, "--mode", "exclusive", "--wait", "5", "--", "sleep", hold]) {
            Ok(ran) if ran.code == 0 => held.granted += 1,
            Ok(ran) => {
                held.refused += 1;
                held.last_refusal = format!("exit code {}: {}", ran.code, ran.stderr.trim());
            }
            Err(e) => {
                ledger.violation(e);
                return held;
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    held
}
