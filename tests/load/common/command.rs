//! The `lockwood` command, as a user would call it. The binary is `LOCKWOOD_BIN`, else `target/release/lockwood`.

use super::Res;
use super::json::Json;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The binary under test.
pub(crate) fn binary() -> PathBuf {
    std::env::var_os("LOCKWOOD_BIN").map_or_else(|| PathBuf::from("target/release/lockwood"), PathBuf::from)
}

/// What one run of the command gave.
pub(crate) struct Ran {
    /// The exit code; -1 if a signal ended it.
    pub(crate) code: i32,
    /// Standard output.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
}

/// Runs the command and waits for it.
pub(crate) fn run(args: &[&str]) -> Res<Ran> {
    let bin = binary();
    let out = Command::new(&bin).args(args).stdin(Stdio::null()).output();
    let out = out.map_err(|e| format!("cannot run {}: {e}; build it or set LOCKWOOD_BIN", bin.display()))?;
    Ok(Ran {
        code: out.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&out.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
    })
}

fn json(verb: &str, target: &Path) -> Res<Json> {
    let ran = run(&[verb, &target.to_string_lossy(), "--json"])?;
    if ran.code != 0 {
        return Err(format!("`lockwood {verb}` exited with {}: {}", ran.code, ran.stderr.trim()));
    }
    Json::parse(&ran.stdout).map_err(|e| format!("`lockwood {verb} --json`: {e}"))
}

/// `lockwood status TARGET --json`.
pub(crate) fn status(target: &Path) -> Res<Json> {
    json("status", target)
}

/// How many lock documents `lockwood locks TARGET --json` lists.
pub(crate) fn lock_count(target: &Path) -> Res<usize> {
    match json("locks", target)? {
        Json::List(items) => Ok(items.len()),
        _ => Err("`lockwood locks --json` printed no array".into()),
    }
}

/// `lockwood check TARGET`: an error holds what it found.
pub(crate) fn check(target: &Path) -> Res<()> {
    let ran = run(&["check", &target.to_string_lossy()])?;
    match ran.code {
        0 => Ok(()),
        code => Err(format!("`lockwood check` exited with {code}:\n{}{}", ran.stdout, ran.stderr)),
    }
}
