//! The `lockwood` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    lockwood::cli::run(std::env::args_os())
}
