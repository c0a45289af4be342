//! What went wrong with a request, and what to do about it. Pure.
//!
//! One question decides everything else: can the request have been carried out? Not if it was never sent, nor if the server
//! answered with an error (scripts check before they write). Otherwise nobody knows.

use redis::{ErrorKind, RedisError};

use super::address::Address;
use crate::store::{StoreError, full};

/// A request that did not succeed.
#[derive(Debug)]
pub(super) enum Failed {
    /// There was no connection to send it on. It has changed nothing.
    NotSent(RedisError),
    /// The server refused it. It has changed nothing.
    Refused(RedisError),
    /// It was sent, perhaps, and no answer came. It may change something now, later or never.
    Lost(RedisError),
}

/// Refusals that pass by themselves: the server starts, fails over, or is busy.
const PASSING: [&str; 7] =
    ["LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "READONLY", "NOREPLICAS"];

/// The same in words: the server gives them no code, or the library has taken it away.
const PASSING_WORDS: [&str; 2] = ["max number of clients reached", "busy running a script"];

pub(super) fn passes_by_its_words(error: &RedisError) -> bool {
    let text = error.to_string();
    PASSING_WORDS.iter().any(|words| text.contains(words))
}

impl Failed {
    pub(super) fn error(&self) -> &RedisError {
        match self {
            Self::NotSent(error) | Self::Refused(error) | Self::Lost(error) => error,
        }
    }

    /// Whether the same request may succeed in a moment.
    pub(super) fn passes(&self) -> bool {
        match self {
            Self::Refused(error) => {
                error.code().is_some_and(|code| PASSING.contains(&code)) || passes_by_its_words(error)
            }
            Self::Lost(_) => true,
            // What is wrong with a password or a certificate stays wrong.
            Self::NotSent(error) if passes_by_its_words(error) => true,
            Self::NotSent(error) => match error.code() {
                Some(code) => PASSING.contains(&code),
                None => error.kind() == ErrorKind::Io && !is_tls(error),
            },
        }
    }

    /// Whether nobody was there. Who closes the connection or says nothing is, and expects something else.
    pub(super) fn is_unreached(&self) -> bool {
        let Self::NotSent(error) = self else { return false };
        let is_somebody = error.code().is_some() || error.is_timeout() || error.is_connection_dropped();
        self.passes() && (error.is_connection_refusal() || !is_somebody)
    }

    /// The error for the caller. `what` was to be done.
    pub(super) fn for_caller(&self, address: &Address, what: &str) -> StoreError {
        if matches!(self, Self::Refused(error) if error.code() == Some("OOM")) {
            return full::no_space(&format!("{address}: {}", explain(self.error(), address)));
        }
        StoreError::Engine {
            what: format!("{address}: {what}"),
            source: explain(self.error(), address).into(),
        }
    }
}

/// Whether it is about the encryption of the connection. That somebody on the way has closed it is said in words of TLS, and
/// is not.
pub(super) fn is_tls(error: &RedisError) -> bool {
    let text = error.to_string().to_lowercase();
    let is_closed = text.contains("close_notify");
    !is_closed
        && ["certificate", "corrupt message", "handshake", "tls", "invalidcontenttype"]
            .iter()
            .any(|word| text.contains(word))
}

/// The server's words and the next step. The password is in neither.
pub(super) fn explain(error: &RedisError, address: &Address) -> String {
    let step = match (error.code().unwrap_or_default(), error.kind()) {
        ("NOAUTH" | "WRONGPASS", _) | (_, ErrorKind::AuthenticationFailed) => {
            "the server does not take this user and password: give the user in the URL, the password there, in \
             LOCKWOOD_PASSWORD (of lock servers in LOCKWOOD_LOCKS_PASSWORD) or in a file (?password-file=)"
        }
        // Within a script it has no code of its own.
        (code, _) if code == "NOPERM" || error.to_string().contains("user executing the script can't") => {
            "the server forbids this user a command or a key: docs/redis.md (of lock servers docs/redlock.md) has the \
             rules (ACL) that it needs"
        }
        _ if error.to_string().contains(PASSING_WORDS[0]) => {
            "the server has as many connections as its maxclients allows: see CLIENT LIST, or allow more"
        }
        ("OOM", _) => "the server is at its maxmemory: remove files, or give it more",
        ("READONLY", _) => "the server is a replica and takes no changes: name the primary",
        ("LOADING", _) => {
            "the server is still reading its data from disk: try again when it is ready (INFO persistence)"
        }
        ("MASTERDOWN", _) => "the server is a replica without its primary: name the primary",
        ("MISCONF", _) => {
            "the server cannot write its data to disk and takes no changes until it can: see its log, and whether its \
             disk is full"
        }
        ("NOREPLICAS", _) => "fewer replicas are connected than min-replicas-to-write demands: start them",
        ("BUSY", _) => {
            "a script of somebody's keeps the server busy: see SLOWLOG GET, or end it with SCRIPT KILL"
        }
        ("MOVED" | "ASK" | "CLUSTERDOWN" | "CROSSSLOT", _) => {
            "this is a cluster: name the node that has the volume's slot (CLUSTER KEYSLOT '{lockwood}'), with database 0"
        }
        ("WRONGTYPE", _) => {
            "somebody else writes under this prefix: give each program a prefix of its own (?prefix=)"
        }
        _ if error.is_connection_refusal() => {
            "nothing listens there: start the server, or correct host and port"
        }
        // A server that does not expect encryption waits for the rest of what it takes for a command.
        _ if address.tls() && (is_tls(error) || error.is_timeout() || error.is_connection_dropped()) => {
            "no encrypted connection could be made: is this the server's TLS port, and its certificate one that this host \
             trusts (SSL_CERT_FILE)? Without TLS the URL begins with redis://"
        }
        _ if error.is_timeout() => "no answer in time: see whether the server is up and can be reached",
        _ if error.is_connection_dropped() => {
            "the server closed the connection: if this is a TLS port, the URL begins with rediss://; else see its log"
        }
        _ => "see the server's log",
    };
    format!("{error}; {step}")
}
