//! Where a store is: a directory, or a volume on a shared engine by its URL. Owns that no password is shown.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::Failure;
use crate::store::engine::{is_url, without_password};

/// Where the password of a shared engine may stand instead of in the URL.
const PASSWORD: &str = "LOCKWOOD_PASSWORD";

/// How long a command waits for a shared engine that does not answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// A place for a store. What it shows has no password.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// A directory.
    Directory(PathBuf),
    /// A volume on a shared engine.
    Engine {
        /// Without the password.
        url: String,
        /// The password, if there is one.
        password: Option<String>,
    },
}

impl Place {
    /// The place that an argument names.
    pub(super) fn parse(text: &OsStr) -> Result<Self, Failure> {
        match text.to_str() {
            Some(text) if is_url(text) => {
                let (url, password) = without_password(text);
                Ok(Self::Engine { url, password: password.or_else(|| std::env::var(PASSWORD).ok()) })
            }
            None if text.to_string_lossy().contains("://") => {
                Err(format!("{}: the URL of a store must be UTF-8", text.display()).into())
            }
            _ => Ok(Self::Directory(text.into())),
        }
    }
}

/// As it is shown, so that no password gets into a message by mistake.
impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Place({self})")
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => path.display().fmt(f),
            Self::Engine { url, .. } => f.write_str(url),
        }
    }
}

/// Runs the program again without the password that one of its arguments has, which every user of the machine can read
/// there; the environment is its user's and root's alone. Returns only if there is none, or with what went wrong.
pub(super) fn hide_passwords(arguments: &[OsString]) -> Option<std::io::Error> {
    let mut found = None;
    let hidden: Vec<OsString> = arguments
        .iter()
        .map(|argument| match argument.to_str().filter(|text| is_url(text)).map(without_password) {
            Some((url, Some(password))) => {
                found = Some(password);
                url.into()
            }
            _ => argument.clone(),
        })
        .collect();
    let password = found?;
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return Some(error),
    };
    let (name, rest) = hidden.split_first()?;
    Some(Command::new(program).arg0(name).args(rest).env(PASSWORD, password).exec())
}
