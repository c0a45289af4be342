//! Where a store is: a directory, or a volume on a shared engine by its URL. Owns that no password is shown.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::Failure;
use crate::store::engine::{is_engine, is_url, without_password};

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
    let (hidden, password) = without_passwords(arguments);
    let password = password?;
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return Some(error),
    };
    let (name, rest) = hidden.split_first()?;
    Some(Command::new(program).arg0(name).args(rest).env(PASSWORD, password).exec())
}

/// The arguments without the password of a volume's URL, and that password. What is behind `--` is another program's, and
/// so are URLs of other kinds.
fn without_passwords(arguments: &[OsString]) -> (Vec<OsString>, Option<String>) {
    let (mut password, mut others) = (None, false);
    let hidden = arguments.iter().map(|argument| {
        others |= argument == "--";
        match argument.to_str().filter(|text| !others && is_engine(text)).map(without_password) {
            Some((url, Some(found))) => {
                password = Some(found);
                url.into()
            }
            _ => argument.clone(),
        }
    });
    (hidden.collect(), password)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_password_of_a_volume_is_taken_out() {
        let hide = |line: &str| {
            let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let (hidden, password) = without_passwords(&arguments);
            let hidden: Vec<_> = hidden.iter().map(|argument| argument.to_string_lossy()).collect();
            (hidden.join(" "), password)
        };
        let secret = Some("s3cret".to_owned());
        assert_eq!(
            hide("lockwood mount redis://ada:s3cret@h /mnt"),
            ("lockwood mount redis://ada@h /mnt".to_owned(), secret)
        );
        for line in ["lockwood lock /mnt/a -- curl redis://u:p@h", "lockwood lock /mnt/a curl http://u:p@h"] {
            assert_eq!(hide(line), (line.to_owned(), None));
        }
    }
}
