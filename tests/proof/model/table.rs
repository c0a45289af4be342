//! The scenarios as a table. Each tree has at least six directories where three sessions move at once.

use super::scenario::Engine::{Transactional, Weak};
use super::scenario::Line;

/// Six directories in two branches.
const TWO_BRANCHES: &str = "/a /b /b/c /b/c/d /a/d /a/d/c";

const fn line(name: &'static str, tree: &'static str, operations: [&'static str; 3]) -> Line {
    let (engine, locked, impatient, faults, long) = (Transactional, true, None, [0, 0, 0], false);
    Line { name, engine, locked, tree, operations, impatient, faults, long }
}

const fn weak(line: Line) -> Line {
    Line { engine: Weak, ..line }
}

const fn unlocked(line: Line) -> Line {
    Line { locked: false, ..line }
}

const fn impatient(line: Line, session: usize) -> Line {
    Line { impatient: Some(session), ..line }
}

/// How many processes may die, live sessions be fenced, messages be late.
const fn faulty(line: Line, faults: [u8; 3]) -> Line {
    Line { faults, ..line }
}

const fn long(line: Line) -> Line {
    Line { long: true, ..line }
}

/// Each is legal alone, and two of them together would cut a loop off the root (juicedata/juicefs issue 4800).
const INTO_EACH_OTHER: [&str; 3] = ["mv /a /b/c/x", "mv /b/c /a/x", "mv /a/d /b/y"];
/// A ring of three.
const RING: [&str; 3] = ["mv /a /b/c/x", "mv /b /a/d/x", "mv /a/d /b/c/d/x"];
/// All to one name, from three directories.
const ONTO_ONE_NAME: [&str; 3] = ["mv /a/d/c /x", "mv /b/c/d /x", "mvn /a/d /x"];
/// One source, three destinations.
const FROM_ONE_NAME: [&str; 3] = ["mv /a/d /b/x", "mv /a/d /b/c/x", "mv /a/d /x"];
/// Exchanges across and into each other.
const EXCHANGES: [&str; 3] = ["xchg /a/d /b/c", "mv /a /b/c/d/x", "xchg /b/c/d /a/d/c"];
/// An exchange whose source side moves below its destination.
const UNDER_THE_EXCHANGE: [&str; 3] = ["xchg /a/d /b/c", "mv /a /b/c/x", ""];
/// A directory is removed while something is made or moved into it.
const EMPTIED: [&str; 3] = ["rmdir /b/c/d", "mkdir /b/c/d/x", "mv /a/d /b/c/d/x"];
/// The empty directory that one replaces is what another moves into.
const REPLACED: [&str; 3] = ["mv /a/d /b/c/d", "mv /a/d/c /b/c/d/x", "mkdir /b/c/d/y"];

/// While the first waits, its source's path comes to mean something else, and somebody moves what that is now.
const MOVED_MEANWHILE: [&str; 3] = ["mv /b/c/d /a/y", "mv /b/c /x", "mv /x /a/x"];
/// What is made is removed, and then a late request would make it again.
const MADE_AND_REMOVED: [&str; 3] = ["mkdir /b/c/d/x", "rmdir /b/c/d/x", ""];
/// There, and on or back.
const TWICE: [&str; 3] =
    ["mv /a /b/c/x, mv /b/c/x /a", "mv /b/c /a/x, mv /b/c/d /a/d/c", "mv /a/d /b/y, mkdir /a/d/x"];
const TWICE_EXCHANGED: [&str; 3] =
    ["xchg /a/d /b/c, mv /a /b/c/d/x", "mv /b /a/d/x, xchg /a/d/c /b/c/d", "mv /a/d/c /x, rmdir /b/c/d"];

/// Every scenario.
pub(crate) const SCENARIOS: &[Line] = &[
    line("into-each-other", TWO_BRANCHES, INTO_EACH_OTHER),
    line("ring", TWO_BRANCHES, RING),
    line("onto-one-name", TWO_BRANCHES, ONTO_ONE_NAME),
    line("from-one-name", TWO_BRANCHES, FROM_ONE_NAME),
    line("exchanges", TWO_BRANCHES, EXCHANGES),
    line("emptied", TWO_BRANCHES, EMPTIED),
    line("replaced", TWO_BRANCHES, REPLACED),
    impatient(line("impatient", TWO_BRANCHES, ["mv /a /b/x", "mv /a/d /b/c/x", "mv /b/c /a/d/y"]), 0),
    line("moved-meanwhile", TWO_BRANCHES, MOVED_MEANWHILE),
    unlocked(line("versions-into-each-other", TWO_BRANCHES, INTO_EACH_OTHER)),
    unlocked(line("versions-ring", TWO_BRANCHES, RING)),
    unlocked(line("versions-under-the-exchange", TWO_BRANCHES, UNDER_THE_EXCHANGE)),
    unlocked(line("versions-onto-one-name", TWO_BRANCHES, ONTO_ONE_NAME)),
    unlocked(line("versions-from-one-name", TWO_BRANCHES, FROM_ONE_NAME)),
    unlocked(line("versions-emptied", TWO_BRANCHES, EMPTIED)),
    faulty(line("crashes-into-each-other", TWO_BRANCHES, INTO_EACH_OTHER), [1, 0, 0]),
    faulty(line("fenced-into-each-other", TWO_BRANCHES, INTO_EACH_OTHER), [0, 1, 0]),
    faulty(line("late-into-each-other", TWO_BRANCHES, INTO_EACH_OTHER), [0, 1, 1]),
    weak(line("intents-two-into-each-other", TWO_BRANCHES, ["mv /a /b/c/x", "mv /b/c /a/x", ""])),
    weak(line("intents-two-onto-one-name", TWO_BRANCHES, ["mv /a/d/c /x", "mv /b/c/d /x", ""])),
    weak(line("intents-two-emptied", TWO_BRANCHES, ["rmdir /b/c/d", "mv /a/d /b/c/d/x", ""])),
    weak(faulty(line("intents-made-and-removed", TWO_BRANCHES, MADE_AND_REMOVED), [0, 0, 1])),
    weak(unlocked(line("intents-versions-two", TWO_BRANCHES, ["mv /a /b/c/x", "mv /b/c /a/x", ""]))),
    weak(faulty(line("intents-crash", TWO_BRANCHES, ["mv /a /b/c/x", "mv /b/c /a/x", ""]), [1, 0, 0])),
    weak(faulty(line("intents-fenced-late", TWO_BRANCHES, ["mv /a /b/c/x", "mv /b/c /a/x", ""]), [0, 1, 1])),
    long(faulty(line("long-ring", TWO_BRANCHES, RING), [1, 1, 1])),
    long(faulty(line("long-exchanges", TWO_BRANCHES, EXCHANGES), [1, 1, 1])),
    long(faulty(line("long-onto-one-name", TWO_BRANCHES, ONTO_ONE_NAME), [1, 1, 1])),
    long(faulty(line("long-replaced", TWO_BRANCHES, REPLACED), [1, 1, 1])),
    long(faulty(line("long-into-each-other", TWO_BRANCHES, INTO_EACH_OTHER), [2, 1, 1])),
    long(weak(line("long-intents-into-each-other", TWO_BRANCHES, INTO_EACH_OTHER))),
    long(weak(line("long-intents-emptied", TWO_BRANCHES, EMPTIED))),
    long(weak(unlocked(line("long-intents-versions-ring", TWO_BRANCHES, RING)))),
    long(weak(faulty(line("long-intents-ring", TWO_BRANCHES, RING), [1, 0, 0]))),
    long(weak(faulty(
        line("long-intents-late", TWO_BRANCHES, ["mv /a /b/c/x", "mv /b/c /a/x", ""]),
        [1, 1, 2],
    ))),
    long(faulty(line("long-twice", TWO_BRANCHES, TWICE), [1, 1, 1])),
    long(faulty(line("long-twice-exchanged", TWO_BRANCHES, TWICE_EXCHANGED), [1, 1, 1])),
    long(unlocked(faulty(line("long-versions-twice", TWO_BRANCHES, TWICE), [1, 1, 1]))),
    long(weak(line("long-intents-twice", TWO_BRANCHES, TWICE))),
    long(weak(faulty(line("long-intents-ring-late", TWO_BRANCHES, RING), [0, 1, 1]))),
    long(weak(faulty(line("long-intents-exchanges", TWO_BRANCHES, EXCHANGES), [1, 1, 0]))),
    long(weak(unlocked(faulty(
        line("long-intents-versions-late", TWO_BRANCHES, INTO_EACH_OTHER),
        [1, 0, 1],
    )))),
    long(weak(faulty(line("long-intents-replaced", TWO_BRANCHES, REPLACED), [1, 0, 0]))),
];
