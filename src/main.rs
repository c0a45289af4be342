//! The `lockwood` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    #[cfg(feature = "proof")]
    if let Err(error) = lockwood::rules::read_environment() {
        eprintln!("lockwood: {error}");
        return ExitCode::from(2);
    }
    lockwood::cli::run(std::env::args_os())
}
