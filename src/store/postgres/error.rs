//! What the server's refusals mean, and what to do about them.

use tokio_postgres::Error;

use super::connection::{ConnectError, Failure};
use super::url::{Target, chain};
use crate::store::StoreError;

/// What to do next, by SQLSTATE.
fn hint(error: &Error) -> Option<&'static str> {
    Some(match error.code()?.code() {
        "28P01" | "28000" => {
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
    let hint = hint.map_or_else(String::new, |hint| format!(" ({hint})"));
    StoreError::Engine { what: format!("{target}: {what}{hint}"), source: cause.into() }
}

/// A connection that did not come about, and whether to try again.
pub(super) fn connecting(target: &Target, error: &ConnectError) -> (StoreError, bool) {
    let what = "cannot connect";
    match error {
        ConnectError::Server(error) => {
            let text = chain(error);
            let hint = hint(error).or_else(|| {
                text.contains("password").then_some("give it in LOCKWOOD_PASSWORD or in passfile=FILE")
            });
            let hint = hint
                .or_else(|| error.code().is_none().then_some("does it run, and may this machine reach it?"));
            (failed(target, what, text.clone(), hint), passes(error))
        }
        ConnectError::Other(text) => (failed(target, what, text.clone(), None), text == "no answer in time"),
    }
}

/// A run that failed.
pub(super) fn running(target: &Target, what: &str, failure: &Failure) -> StoreError {
    match failure {
        Failure::Refused { error, .. } | Failure::Unsendable(error) => {
            match error.code().map(|code| code.code()) {
                Some("53100") => StoreError::NoSpace,
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
