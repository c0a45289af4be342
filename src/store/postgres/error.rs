//! What the server's refusals mean, and what to do about them.

use tokio_postgres::Error;

use super::connection::{ConnectError, Failure};
use super::url::{Target, chain};
use crate::store::{StoreError, full};

const UNREACHED: &str = "does it run, and may this machine reach it?";

/// What to do next, by SQLSTATE.
fn hint(error: &Error) -> Option<&'static str> {
    Some(match error.code()?.code() {
        "28000" => {
            "the server does not let this user in from here: see its pg_hba.conf (hostssl lines are for encrypted \
             connections only), and whether the role may log in"
        }
        "28P01" => {
            "check user and password: they come from the URL, from LOCKWOOD_PASSWORD or PGPASSWORD, or from the \
             password file (passfile=FILE)"
        }
        "3D000" => "make the database: createdb NAME",
        "3F000" | "42P01" => "there is no volume in this schema; make one with: lockwood format URL",
        "25006" => {
            "this server is a read-only replica; name the primary, or several hosts and target_session_attrs=read-write"
        }
        "42501" => "grant the user what docs/postgresql.md lists",
        "53300" => "raise max_connections of the server, or lower pool_size",
        "53100" => "the server's disk is full",
        "57P03" => "the server is starting up",
        _ => return None,
    })
}

/// Whether it may be otherwise in a moment: the server starts, stops, or changes its role.
fn passes(error: &Error) -> bool {
    match error.code() {
        Some(code) => {
            matches!(code.code(), "57P01" | "57P02" | "57P03" | "53300" | "25006")
                || code.code().starts_with("08")
        }
        None => !chain(error).contains("password") && !chain(error).contains("certificate"),
    }
}

fn failed(target: &Target, what: &str, cause: String, hint: Option<&str>) -> StoreError {
    StoreError::Engine { what: format!("{target}: {what}{}", in_parentheses(hint)), source: cause.into() }
}

fn in_parentheses(hint: Option<&str>) -> String {
    hint.map_or_else(String::new, |hint| format!(" ({hint})"))
}

/// A connection that did not come about, and whether to try again.
pub(super) fn connecting(target: &Target, error: &ConnectError) -> (StoreError, bool) {
    let (cause, hint, passes) = refused(error);
    (failed(target, "cannot connect", cause, hint), passes)
}

/// Why somebody was not let in, what to do, and whether to try again.
fn refused(error: &ConnectError) -> (String, Option<&'static str>, bool) {
    match error {
        ConnectError::Server(error) => {
            let text = chain(error);
            let hint = hint(error)
                .or_else(|| {
                    text.contains("password").then_some("give it in LOCKWOOD_PASSWORD or in passfile=FILE")
                })
                .or_else(|| error.code().is_none().then_some(UNREACHED));
            (text, hint, passes(error))
        }
        ConnectError::Silent => ("no answer in time".to_owned(), Some(UNREACHED), true),
        ConnectError::Other(text) => (text.clone(), None, false),
        // One that may let us in in a moment is enough.
        ConnectError::Hosts(all) => {
            let each = all.iter().map(|(name, error)| {
                let (cause, hint, _) = refused(error);
                format!("{name}: {cause}{}", in_parentheses(hint))
            });
            (each.collect::<Vec<_>>().join("; "), None, all.iter().any(|(_, error)| refused(error).2))
        }
    }
}

/// A run that failed.
pub(super) fn running(target: &Target, what: &str, failure: &Failure) -> StoreError {
    match failure {
        Failure::Refused { error, .. } | Failure::Unsendable(error) => {
            match error.code().map(|code| code.code()) {
                Some("53100") => {
                    full::no_space(&format!("{target}: {}; make room on the server's disk", chain(error)))
                }
                _ => failed(target, what, chain(error), hint(error)),
            }
        }
        Failure::Lost(cause) => failed(target, what, cause.clone(), Some("the connection was lost")),
    }
}

/// A refusal that says nothing about the change itself: a deadlock, a serialisation failure, a server that changes its role.
pub(super) fn again(error: &Error) -> bool {
    error
        .code()
        .is_some_and(|code| matches!(code.code(), "40P01" | "40001" | "26000" | "0A000" | "25006" | "57P01"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::postgres::connection::Connection;

    #[test]
    fn of_several_hosts_each_is_told_with_what_is_wrong_there() {
        // Nobody listens on these ports, or may.
        let target = Target::parse("postgres://ada@127.0.0.1:1,127.0.0.1:2/trees").unwrap();
        let error = Connection::open(&target, Duration::from_secs(5)).err().unwrap();
        let (told, again) = connecting(&target, &error);
        let text = chain(&told);
        assert!(again && text.contains("127.0.0.1:1: ") && text.contains("127.0.0.1:2: "), "{text}");
        assert_eq!(text.matches(UNREACHED).count(), 2, "{text}");
    }
}
