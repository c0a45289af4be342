//! The `lockwood` command with rules that can be switched off, under a name of its own: so the command that people use is
//! never this one, wherever it was built.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    lockwood::cli::run(std::env::args_os())
}
