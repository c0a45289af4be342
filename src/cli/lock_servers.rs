//! Lock servers as arguments name them: `--locks URL,...` and `-o locks=URL`. Owns that no password is shown.

use std::sync::Arc;

use super::Failure;
use crate::lock::redlock::Settings;
use crate::namespace::DEFAULT_LEASE;
use crate::store::engine::{refuse_hidden_password, without_password};
use crate::store::redis::servers::Servers;

/// Where the password of the lock servers may stand; the store's is another one.
pub(super) const PASSWORD: &str = "LOCKWOOD_LOCKS_PASSWORD";

/// The lock servers of a list, for locks that last as long as a lease.
pub(super) fn parse(list: &str, lease: std::time::Duration) -> Result<Arc<Servers>, Failure> {
    list.split(',').try_for_each(refuse_hidden_password)?;
    if list.matches("://").count() == 1 {
        // A comma in a password ends a server's URL as well.
        refuse_hidden_password(list)?;
    }
    let password = std::env::var(PASSWORD).ok();
    let patience = Settings::of_lease(lease).patience();
    let servers = Servers::parse(list, password.as_deref(), patience)
        .map_err(|error| format!("--locks {}: {error}", without_passwords(list).0))?;
    if servers.count().is_multiple_of(2) {
        eprintln!("lockwood: {} lock servers are no safer than {}", servers.count(), servers.count() - 1);
    }
    Ok(Arc::new(servers))
}

/// The same for who only looks at the locks that a session has written down.
pub(super) fn parse_to_look(list: &str) -> Result<Arc<Servers>, Failure> {
    parse(list, DEFAULT_LEASE)
}

/// Whether an argument names lock servers: it follows `--locks`, or has them behind a `=`.
pub(super) fn are_named(before: Option<&str>, argument: &str) -> bool {
    before == Some("--locks") || argument.contains("locks=")
}

/// An argument that names lock servers, without the passwords in it, and these. A comma in a password is written `%2C`.
pub(super) fn without_passwords(argument: &str) -> (String, Vec<String>) {
    let mut passwords = Vec::new();
    let hide = |part: &str| {
        // What stands before the URL, as in `ro,locks=URL`.
        let at = part.find("locks=").map_or(0, |at| at + "locks=".len());
        let (before, url) = part.split_at(at);
        let (shown, password) = without_password(url);
        passwords.extend(password);
        format!("{before}{shown}")
    };
    let parts: Vec<String> = argument.split(',').map(hide).collect();
    passwords.dedup();
    (parts.join(","), passwords)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_taken_out_of_every_form() {
        for (argument, shown) in [
            ("redis://ada:s3cret@a,b:7,redis://:s3cret@c/1", "redis://ada@a,b:7,redis://@c/1"),
            ("--locks=redis://:s3cret@a,b", "--locks=redis://@a,b"),
            (
                "ro,locks=redis://:s3cret@a,locks=rediss://x:s3cret@b?prefix=p",
                "ro,locks=redis://@a,locks=rediss://x@b?prefix=p",
            ),
        ] {
            assert_eq!(
                without_passwords(argument),
                (shown.to_owned(), vec!["s3cret".to_owned()]),
                "{argument}"
            );
        }
        assert_eq!(without_passwords("ro,lock_wait=5"), ("ro,lock_wait=5".to_owned(), Vec::new()));
        assert!(are_named(Some("--locks"), "redis://a") && are_named(None, "--locks=redis://a"));
        assert!(!are_named(Some("-o"), "ro,lock_wait=5"));
    }

    #[test]
    fn an_error_shows_no_password() {
        let error = parse("redis://:s3cret@a,a", DEFAULT_LEASE).unwrap_err().to_string();
        assert!(error.contains("twice") && !error.contains("s3cret"), "{error}");
    }
}
