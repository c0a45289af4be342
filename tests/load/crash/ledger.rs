//! The ledger: outside of the mount, one line before each operation and one after it was acknowledged, so that what was
//! promised is known though the daemon dies at any moment. The load and the machine live on, so that it needs no fsync.
//!
//! ```text
//! <thread> <number> I <operation>          about to be done
//! <thread> <number> A                      acknowledged
//! <thread> <number> R 0|1                  judged: not there, there
//! <thread> <number> T <pages> <size>       judged: a write, there in part
//! ```

use crate::common::Res;
use crate::model::{Model, Torn};
use crate::op::Op;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::Path;

/// Appends lines; `write(2)` with `O_APPEND` keeps the lines of several threads whole.
pub(crate) struct Ledger {
    file: File,
}

impl Ledger {
    /// Opens or makes the ledger.
    pub(crate) fn open(path: &Path) -> Res<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        Ok(Self { file: file.map_err(|e| format!("ledger {}: {e}", path.display()))? })
    }

    fn line(&self, text: &str) -> Res<()> {
        (&self.file).write_all(text.as_bytes()).map_err(|e| format!("cannot write the ledger: {e}"))
    }

    /// Before an operation.
    pub(crate) fn intend(&self, thread: usize, number: u64, op: &Op) -> Res<()> {
        self.line(&format!("{thread} {number} I {}\n", op.to_text()))
    }

    /// After it has succeeded.
    pub(crate) fn acknowledge(&self, thread: usize, number: u64) -> Res<()> {
        self.line(&format!("{thread} {number} A\n"))
    }

    /// What the judge found of an operation that nobody acknowledged.
    pub(crate) fn resolve(&self, thread: usize, number: u64, outcome: Outcome) -> Res<()> {
        self.line(&match outcome {
            Outcome::Undone => format!("{thread} {number} R 0\n"),
            Outcome::Done => format!("{thread} {number} R 1\n"),
            Outcome::Torn(torn) => format!("{thread} {number} T {} {}\n", torn.pages, torn.size),
        })
    }
}

/// What became of an operation in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Undone,
    Done,
    Torn(Torn),
}

/// What one thread has done, by the ledger.
pub(crate) struct History {
    /// The tree after all that was acknowledged or found.
    pub(crate) model: Model,
    /// The last operation, if nobody knows yet whether it happened.
    pub(crate) in_flight: Option<(u64, Op)>,
    /// The highest number.
    pub(crate) last: u64,
    /// Operations acknowledged.
    pub(crate) acknowledged: u64,
}

/// Every thread's history; a ledger that is not there is empty.
pub(crate) fn replay(path: &Path) -> Res<BTreeMap<usize, History>> {
    let mut threads = BTreeMap::new();
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(threads),
        Err(e) => return Err(format!("ledger {}: {e}", path.display())),
    };
    for (index, line) in BufReader::new(file).lines().enumerate() {
        let line = line.map_err(|e| format!("ledger {}: {e}", path.display()))?;
        if replay_line(&mut threads, &line).is_none() {
            let at = index + 1;
            return Err(format!("ledger {} line {at} is not understood: {line}", path.display()));
        }
    }
    Ok(threads)
}

fn replay_line(threads: &mut BTreeMap<usize, History>, line: &str) -> Option<()> {
    let words: Vec<&str> = line.split(' ').collect();
    let (thread, number): (usize, u64) = (words.first()?.parse().ok()?, words.get(1)?.parse().ok()?);
    let history = threads.entry(thread).or_insert_with(|| History {
        model: Model::new(thread),
        in_flight: None,
        last: 0,
        acknowledged: 0,
    });
    let kind = *words.get(2)?;
    if kind == "I" {
        // A second intent without an answer to the first: the ledger was not judged in between.
        if history.in_flight.is_some() || number <= history.last {
            return None;
        }
        history.in_flight = Some((number, Op::from_words(&words[3..])?));
        history.last = number;
        return Some(());
    }
    let (_, op) = history.in_flight.take().filter(|(n, _)| *n == number)?;
    match kind {
        "A" => {
            history.acknowledged += 1;
            history.model.apply(number, &op, None);
        }
        "R" if *words.get(3)? == "1" => history.model.apply(number, &op, None),
        "R" => {}
        "T" => {
            let torn = Torn { pages: words.get(3)?.parse().ok()?, size: words.get(4)?.parse().ok()? };
            history.model.apply(number, &op, Some(torn));
        }
        _ => return None,
    }
    Some(())
}
