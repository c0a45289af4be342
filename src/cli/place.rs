//! Where a store is: a directory, or a volume on a shared engine by its URL. Owns that no password is shown.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::{Failure, lock_servers};
use crate::store::engine::{is_engine, is_url, refuse_hidden_password, without_password};

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
            Some("") => Err("the name of a store is empty: a directory or a URL is needed".into()),
            Some(text) if is_url(text) => {
                refuse_hidden_password(text)?;
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

/// Runs the program again without the passwords that its arguments have, which every user of the machine can read there; the
/// environment is its user's and root's alone. Returns only if there is none, or with what went wrong.
pub(super) fn hide_passwords(arguments: &[OsString]) -> Option<std::io::Error> {
    let Hidden { arguments, of_store, mut of_locks } = without_passwords(arguments);
    if of_locks.len() > 1 {
        return Some(std::io::Error::other(
            "the lock servers have several passwords: put each into a file of its own (?password-file=)",
        ));
    }
    if of_store.is_none() && of_locks.is_empty() {
        return None;
    }
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return Some(error),
    };
    let (name, rest) = arguments.split_first()?;
    let mut command = Command::new(program);
    command.arg0(name).args(rest);
    command.envs(of_store.map(|password| (PASSWORD, password)));
    command.envs(of_locks.pop().map(|password| (lock_servers::PASSWORD, password)));
    Some(command.exec())
}

/// Arguments without passwords, and these.
#[derive(Debug, PartialEq, Eq)]
struct Hidden {
    arguments: Vec<OsString>,
    of_store: Option<String>,
    /// Each once.
    of_locks: Vec<String>,
}

/// Takes the passwords of a volume's URL and of its lock servers out. What is behind `--` is another program's, and so are
/// URLs of other kinds.
fn without_passwords(arguments: &[OsString]) -> Hidden {
    let mut found =
        Hidden { arguments: Vec::with_capacity(arguments.len()), of_store: None, of_locks: Vec::new() };
    let (mut before, mut others) = (None, false);
    for argument in arguments {
        others |= argument == "--";
        let text = argument.to_str().filter(|_| !others);
        let shown = match text {
            Some(text) if lock_servers::are_named(before, text) => {
                let (shown, passwords) = lock_servers::without_passwords(text);
                found.of_locks.extend(passwords);
                shown.into()
            }
            Some(text) if is_engine(text) => {
                let (url, password) = without_password(text);
                found.of_store = password.or(found.of_store);
                url.into()
            }
            _ => argument.clone(),
        };
        found.arguments.push(shown);
        before = text;
    }
    found.of_locks.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_no_place() {
        assert!(Place::parse("".as_ref()).is_err());
        assert!(Place::parse("store".as_ref()).is_ok());
    }

    #[test]
    fn only_the_passwords_of_a_volume_are_taken_out() {
        let hide = |line: &str| {
            let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let Hidden { arguments, of_store, of_locks } = without_passwords(&arguments);
            let hidden: Vec<_> = arguments.iter().map(|argument| argument.to_string_lossy()).collect();
            (hidden.join(" "), of_store, of_locks)
        };
        let secret = Some("s3cret".to_owned());
        assert_eq!(
            hide("lockwood mount redis://ada:s3cret@h /mnt"),
            ("lockwood mount redis://ada@h /mnt".to_owned(), secret.clone(), Vec::new())
        );
        assert_eq!(
            hide(
                "lockwood mount redis://:s3cret@h /mnt --locks redis://:l0cks@a,b -o ro,locks=redis://:l0cks@c"
            ),
            (
                "lockwood mount redis://@h /mnt --locks redis://@a,b -o ro,locks=redis://@c".to_owned(),
                secret,
                vec!["l0cks".to_owned()]
            )
        );
        for line in [
            "lockwood lock /mnt/a -- curl redis://u:p@h",
            "lockwood lock /mnt/a curl http://u:p@h",
            "lockwood lock /mnt/a -- x --locks redis://u:p@h",
        ] {
            assert_eq!(hide(line), (line.to_owned(), None, Vec::new()));
        }
    }
}
