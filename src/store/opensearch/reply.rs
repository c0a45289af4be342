//! Answers of a server: what is in them, and what it means when they are refusals.

use std::cell::{OnceCell, RefCell};

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::link::engine;
use crate::store::{StoreError, full};

/// An answer. Its body is read when that is asked for first, and one way only: the text, of tens of megabytes perhaps, is
/// not kept beside what was read.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    bytes: RefCell<Bytes>,
    body: OnceCell<Value>,
}

impl Reply {
    pub(super) fn new(status: u16, bytes: Bytes) -> Self {
        Self { status, bytes: RefCell::new(bytes), body: OnceCell::new() }
    }

    #[cfg(test)]
    pub(super) fn of(status: u16, body: &Value) -> Self {
        Self::new(status, body.to_string().into())
    }

    /// All of its body.
    pub(super) fn body(&self) -> &Value {
        self.body.get_or_init(|| {
            let bytes = self.bytes.take();
            match serde_json::from_slice(&bytes) {
                Ok(body) => body,
                Err(_) if bytes.is_empty() => Value::Null,
                // Something between here and the server, in most cases.
                Err(_) => Value::String(String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).into_owned()),
            }
        })
    }

    /// What of the body is of use. Other answers than the one that was hoped for have other bodies: then what they say.
    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<T, String> {
        if self.status != 200 {
            return Err(explain(self));
        }
        let bytes = self.bytes.take();
        serde_json::from_slice(&bytes).map_err(|error| {
            self.bytes.replace(bytes);
            format!("{}: {error}", explain(self))
        })
    }
}

pub(super) const TOO_MANY: u16 = 429;

/// Whether to ask again may help.
pub(super) fn is_busy(status: u16) -> bool {
    matches!(status, TOO_MANY | 502..=504)
}

/// What no repetition helps against, whatever was asked.
pub(super) fn refused(reply: &Reply) -> Option<StoreError> {
    let kind = || reply.body().pointer("/error/type").and_then(Value::as_str);
    match reply.status {
        401 => Some(engine("logging in", "the server refuses the user or the password".to_owned())),
        403 | TOO_MANY if kind() == Some(BLOCKED) => {
            Some(blocked("asking the server", reply.status, reply.body()))
        }
        403 => Some(engine("asking the server", explain(reply))),
        _ => None,
    }
}

/// The type of the error where an index, or the cluster, is blocked.
pub(super) const BLOCKED: &str = "cluster_block_exception";

/// Why a server with such a block refuses. When its disk is nearly full it lets nothing be changed; all other blocks are
/// set by people, who are to read which one it is.
pub(super) fn blocked(what: impl Into<String>, status: u16, body: &Value) -> StoreError {
    let reason = body.pointer("/error/reason").and_then(Value::as_str).unwrap_or_default();
    // It sets the same block that people set as `read_only_allow_delete`.
    if ["disk usage", "read-only-allow-delete", "read-only / allow delete"]
        .iter()
        .any(|said| reason.contains(said))
    {
        return full::no_space(&format!("{reason}; make room on the disks of the OpenSearch nodes"));
    }
    engine(what, said(status, body))
}

/// What the server says of an error.
pub(super) fn explain(reply: &Reply) -> String {
    said(reply.status, reply.body())
}

/// The same of an error that is part of an answer.
pub(super) fn said(status: u16, body: &Value) -> String {
    let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str);
    match (text("/error/type"), text("/error/reason")) {
        (Some(kind), Some(reason)) => format!("{kind}: {reason} (HTTP status {status})"),
        _ => match body.as_str() {
            Some(said) if !said.is_empty() => format!("HTTP status {status}: {said}"),
            _ => format!("HTTP status {status}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn errors_say_what_the_server_says() {
        let body = json!({ "error": { "type": "t", "reason": "r" } });
        assert_eq!(explain(&Reply::of(400, &body)), "t: r (HTTP status 400)");
        assert_eq!(explain(&Reply::of(502, &"no gateway".into())), "HTTP status 502: no gateway");
        assert_eq!(explain(&Reply::of(500, &Value::Null)), "HTTP status 500");
    }

    #[test]
    fn a_full_disk_is_no_space_and_an_index_that_someone_has_blocked_is_not() {
        let blocked = |status, block: &str| {
            let reason = format!("index [lockwood-entry] blocked by: [{block}];");
            let body = json!({ "error": { "type": BLOCKED, "reason": reason } });
            refused(&Reply::of(status, &body))
        };
        for (status, block) in [
            (
                429,
                "TOO_MANY_REQUESTS/12/disk usage exceeded flood-stage watermark, index has read-only-allow-delete block",
            ),
            (403, "FORBIDDEN/12/index read-only / allow delete (api)"),
        ] {
            assert!(matches!(blocked(status, block), Some(StoreError::NoSpace)), "{block}");
        }
        for block in ["FORBIDDEN/8/index write (api)", "FORBIDDEN/5/index read-only (api)"] {
            let refused = blocked(403, block);
            assert!(matches!(&refused, Some(StoreError::Engine { .. })), "{refused:?}");
            assert!(refused.is_some_and(|refused| refused.to_string().contains(block)), "{block}");
        }
        assert!(refused(&Reply::of(429, &Value::Null)).is_none());
        assert!(matches!(refused(&Reply::of(401, &Value::Null)), Some(StoreError::Engine { .. })));
    }
}
