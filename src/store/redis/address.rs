//! The URL of a volume: `redis://[user[:password]@]host:port/db?prefix=NAME`, or `rediss://` over TLS. Pure but for the
//! password's file.

use std::fmt;

use redis::io::tcp::TcpSettings;
use redis::{ConnectionInfo, IntoConnectionInfo as _};

use super::names::Names;

const PREFIX: &str = "lockwood";
const PREFIX_LEN_MAX: usize = 64;

/// A server and a place on it. Neither `Debug` nor `Display` show the password.
#[derive(Clone, Debug)]
pub(super) struct Address {
    info: ConnectionInfo,
    shown: String,
    tls: bool,
    prefix: String,
}

/// Why a URL is none of ours.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// No URL of a Redis server.
    #[error(
        "this is no URL of a Redis server ({0}); one is redis://[user[:password]@]host[:port][/database][?prefix=NAME], \
         or rediss:// over TLS"
    )]
    Url(String),
    /// A prefix that would not be readable in keys.
    #[error("the prefix {0:?} cannot be used: take 1 to 64 letters, digits, `.`, `_` and `-`")]
    Prefix(String),
    /// Something behind the `?` that means nothing.
    #[error("the URL's option {0:?} is unknown; there are prefix and password-file")]
    Option(String),
    /// A list of servers that is none.
    #[error(
        "the list of lock servers {0}; one is redis://host[:port],host[:port],...[/database][?prefix=NAME]"
    )]
    List(String),
    /// The file with the password cannot be read.
    #[error("the password file {path}: {source}")]
    PasswordFile {
        /// Which file.
        path: String,
        /// Why not.
        source: std::io::Error,
    },
}

impl Address {
    /// Reads `url`. A password in it is preferred to one in a file, and that to `password`.
    pub(super) fn parse(url: &str, password: Option<&str>) -> Result<Self, AddressError> {
        let no_url = |why: &str| AddressError::Url(why.to_owned());
        let mut parsed = redis::parse_redis_url(url)
            .ok_or_else(|| no_url("it does not begin with redis:// or rediss://"))?;
        let tls = match parsed.scheme() {
            "redis" | "valkey" => false,
            "rediss" | "valkeys" => true,
            _ => return Err(no_url("only TCP is supported")),
        };
        if parsed.fragment().is_some() {
            return Err(no_url("nothing may follow a #"));
        }
        let mut prefix = PREFIX.to_owned();
        let mut password_file = None;
        for (option, value) in parsed.query_pairs() {
            match &*option {
                "prefix" => prefix = value.into_owned(),
                "password-file" => password_file = Some(value.into_owned()),
                _ => return Err(AddressError::Option(option.into_owned())),
            }
        }
        let readable = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if prefix.is_empty() || prefix.len() > PREFIX_LEN_MAX || !prefix.bytes().all(readable) {
            return Err(AddressError::Prefix(prefix));
        }
        let scheme = if tls { "rediss" } else { "redis" };
        let host = parsed.host_str().unwrap_or_default().to_owned();
        let port = parsed.port().unwrap_or(6379);
        parsed.set_query(None);
        let info = parsed.into_connection_info().map_err(|e| no_url(&e.to_string()))?;
        let mut redis = info.redis_settings().clone();
        let shown = format!("{scheme}://{host}:{port}/{}?prefix={prefix}", redis.db());
        if redis.password().is_none() {
            let read = |path: String| {
                std::fs::read_to_string(&path).map_err(|source| AddressError::PasswordFile { path, source })
            };
            let from_file = password_file.map(read).transpose()?;
            let found = from_file.as_deref().map(|text| text.trim_end_matches(['\r', '\n'])).or(password);
            if let Some(found) = found {
                redis = redis.set_password(found);
            }
        }
        // That is two requests more for each connection, and each waits for its answer.
        let redis = redis.set_skip_set_lib_name();
        // Without this each request would wait for the answer to the one before it.
        let tcp = TcpSettings::default().set_nodelay(true);
        let info = info.set_redis_settings(redis).set_tcp_settings(tcp);
        Ok(Self { info, shown, tls, prefix })
    }

    pub(super) fn info(&self) -> &ConnectionInfo {
        &self.info
    }

    pub(super) fn tls(&self) -> bool {
        self.tls
    }

    pub(super) fn names(&self) -> Names {
        Names::new(&self.prefix)
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The server alone: without the prefix.
    pub(super) fn server(&self) -> &str {
        self.shown.split_once('?').map_or(&self.shown, |(server, _)| server)
    }
}

/// As a URL without user and password.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let shown = |url| Address::parse(url, None).map(|address| address.to_string());
        assert_eq!(shown("redis://h").unwrap(), "redis://h:6379/0?prefix=lockwood");
        assert_eq!(shown("redis://[::1]:7/3?prefix=a.b").unwrap(), "redis://[::1]:7/3?prefix=a.b");
        assert_eq!(shown("rediss://u:p@h:1/").unwrap(), "rediss://h:1/0?prefix=lockwood");
        let bad = [
            "",
            "http://h",
            "redis://",
            "redis://h/x",
            "redis://h?prefix=",
            "redis://h?prefix=a%7D",
            "redis://h?x=1",
            "redis://h:99999",
            "rediss://h#insecure",
            "redis+unix:///a",
            "redis://h?password-file=/none/there",
        ];
        for url in bad {
            assert!(shown(url).is_err(), "{url}");
        }
    }

    #[test]
    fn the_password_is_never_shown() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("password");
        std::fs::write(&file, "s3cret\n").unwrap();
        let from_file = format!("redis://user@h?password-file={}", file.display());
        for (url, other) in
            [("redis://user:s3cret@h", None), (&from_file, Some("wrong")), ("redis://h", Some("s3cret"))]
        {
            let address = Address::parse(url, other).unwrap();
            assert_eq!(address.info().redis_settings().password(), Some("s3cret"), "{url}");
            assert!(!format!("{address} {address:?}").contains("s3cret"), "{url}");
        }
    }
}
