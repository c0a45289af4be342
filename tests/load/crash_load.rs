//! Changes a mounted tree by every kind of operation until its daemon is killed, and judges after a remount what is
//! left. `scripts/crash-test` kills, remounts and repeats.
//!
//! What is hard:
//!
//! 1. To know what was promised: [`ledger`] has a line before each operation and one after it was acknowledged. A thread
//!    has one operation in flight and a directory of its own, so that at most one per directory is in doubt.
//! 2. To know every byte: [`model`] computes the tree, and [`op`] each byte from file, write and offset.
//! 3. To trust the judge: [`selftest`] alters the tree and requires an objection.

#![allow(clippy::disallowed_methods)] // A program outside of the library: it may have a clock of its own.

#[path = "crash/choose.rs"]
mod choose;
mod common;
#[path = "crash/judge.rs"]
mod judge;
#[path = "crash/ledger.rs"]
mod ledger;
#[path = "crash/load.rs"]
mod load;
#[path = "crash/model.rs"]
mod model;
#[path = "crash/op.rs"]
mod op;
#[path = "crash/options.rs"]
mod options;
#[path = "crash/scan.rs"]
mod scan;
#[path = "crash/selftest.rs"]
mod selftest;

use common::{Res, sys};
use options::{Mode, Options};
use std::process::ExitCode;

/// How a mode ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Passed,
    Failed,
}

fn main() -> ExitCode {
    sys::set_up_process();
    // SAFETY: umask cannot fail and no other thread runs yet; the model knows the modes that this one gives.
    unsafe { libc::umask(0o022) };
    match run() {
        Ok(Verdict::Passed) => ExitCode::SUCCESS,
        Ok(Verdict::Failed) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("crash-load: {message}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Res<Verdict> {
    let Some(options) = Options::from_env()? else { return Ok(Verdict::Passed) };
    match options.mode {
        Mode::Load => load::run(&options),
        Mode::Judge => judge::run(&options),
        Mode::SelfTest => selftest::run(&options),
    }
}
