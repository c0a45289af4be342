//! The command line: arguments, one resolved configuration for each verb, output. Imports everything.
//!
//! Exit codes: 0 done; 1 not done, or violations found; 2 wrong usage, or a check could not run. `lockwood lock` passes
//! on its command's code; see there.

mod args;
mod commands;
mod daemon;
mod keeper;
mod lock_servers;
mod options;
mod output;
mod place;
mod target;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser as _;

use args::{Arguments, Verb};

/// What a verb that failed prints: an error with everything that a person needs to go on.
type Failure = Box<dyn std::error::Error>;

/// Runs the command with the arguments of the process.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    #[cfg(feature = "proof")]
    if let Err(error) = crate::rules::read_environment() {
        eprintln!("lockwood: {error}");
        return ExitCode::from(2);
    }
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if let Some(failed) = place::hide_passwords(&arguments) {
        eprintln!("lockwood: the password in the URL could not be hidden from other users: {failed}");
        return ExitCode::FAILURE;
    }
    let arguments = Arguments::parse_from(args::with_verb(arguments));
    let outcome = match &arguments.verb {
        Verb::Format(format) => commands::format::run(format),
        Verb::Mount(mount) => commands::mount::run(mount),
        Verb::Umount(umount) => commands::umount::run(umount),
        Verb::Keep(keep) => keeper::run(keep),
        Verb::Locks(locks) => commands::locks::run(locks),
        Verb::Lock(lock) => commands::lock::run(lock),
        Verb::Break(arguments) => commands::breaking::run(arguments),
        Verb::Recover(recover) => commands::recover::run(recover),
        Verb::Sessions(sessions) => commands::sessions::run(sessions),
        Verb::Get(get) => commands::get::run(get),
        Verb::Check(check) => commands::check::run(check),
        Verb::Status(status) => commands::status::run(status),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("lockwood: {error}");
        match arguments.verb {
            Verb::Check(_) => ExitCode::from(commands::check::EXIT_NOT_JUDGED),
            Verb::Lock(_) => ExitCode::from(commands::lock::EXIT_UNAVAILABLE),
            _ => ExitCode::FAILURE,
        }
    })
}
