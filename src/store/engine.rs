//! Shared engines by the URL of a volume on them. Owns which scheme is whose, and that no password is shown.

use std::sync::Arc;
use std::time::Duration;

use super::postgres::{self, PostgresStore};
use super::{Commit, Store, StoreError, opensearch, redis};
use crate::document::{Document, Key, Volume};

/// How an engine is used.
#[derive(Clone)]
pub struct EngineOptions {
    /// The password, if the URL has none; preferred to those of an engine's own environment and files.
    pub password: Option<String>,
    /// Take a server that forgets documents at a restart.
    pub allow_volatile: bool,
    /// How long a request is tried again while the server is away, before it fails.
    pub patience: Duration,
}

/// Without the password.
impl std::fmt::Debug for EngineOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { password: _, allow_volatile, patience } = self;
        f.debug_struct("EngineOptions")
            .field("allow_volatile", allow_volatile)
            .field("patience", patience)
            .finish_non_exhaustive()
    }
}

/// Why a volume on a shared engine could not be opened or made.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No engine has this scheme.
    #[error(
        "{0}: no such kind of store; there are directories, postgres://, redis:// or valkey://, rediss://, \
         opensearch+http(s):// and elasticsearch+http(s)://"
    )]
    Scheme(String),
    /// A URL that PostgreSQL does not understand.
    #[error(transparent)]
    Postgres(#[from] postgres::UrlError),
    /// A server's.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Redis's.
    #[error(transparent)]
    Redis(#[from] redis::OpenError),
    /// OpenSearch's or Elasticsearch's.
    #[error(transparent)]
    OpenSearch(#[from] opensearch::OpenError),
}

/// Whether the text names a volume on a shared engine: a URL, and no path.
pub fn is_url(text: &str) -> bool {
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    scheme
        .is_some_and(|s| !s.is_empty() && s.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b)))
}

/// Whether the text names a volume on an engine that there is.
pub fn is_engine(text: &str) -> bool {
    scheme(text).is_ok()
}

/// The URL without the password in it, and the password.
pub fn without_password(url: &str) -> (String, Option<String>) {
    let whole = || (url.to_owned(), None);
    let Some((scheme, rest)) = url.split_once("://") else { return whole() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let Some((user, host)) = rest[..end].rsplit_once('@') else { return whole() };
    let Some((user, password)) = user.split_once(':') else { return whole() };
    let password = percent_encoding::percent_decode_str(password).decode_utf8_lossy().into_owned();
    (format!("{scheme}://{user}@{host}{}", &rest[end..]), Some(password))
}

/// Refuses a URL in which a password may stand that [`without_password`] does not find: what comes before the host ends at a
/// `/`, `?` or `#`, and some drivers look for the `@` behind it all the same. The error shows nothing of it.
///
/// # Errors
/// How it is written.
pub fn refuse_hidden_password(url: &str) -> Result<(), &'static str> {
    let Some((scheme, rest)) = url.split_once("://") else { return Ok(()) };
    let (before, behind) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (path, query) = behind.split_at(behind.find('?').unwrap_or(behind.len()));
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let is_host = before.ends_with(']')
        || before.rsplit_once(':').is_none_or(|(host, port)| !host.is_empty() && is_port(port));
    let ends_early = !before.contains('@') && (!is_host || scheme.starts_with("postgres"));
    if path.contains('@') || (ends_early && query.contains('@')) {
        return Err(
            "a URL has an @ behind its host: in user names, passwords and options write / ? # @ as %2F %3F %23 %40",
        );
    }
    Ok(())
}

/// Opens the volume at `url`.
///
/// # Errors
/// [`EngineError`] says what to do.
pub fn open(url: &str, options: EngineOptions) -> Result<(Arc<dyn Store>, Volume), EngineError> {
    match scheme(url)? {
        Engine::Postgres => {
            let store = PostgresStore::open(target(url, options)?)?;
            let volume = volume_of(&store)?;
            Ok((Arc::new(store), volume))
        }
        Engine::Redis => {
            let (store, volume) = redis::open(url, options.into())?;
            Ok((Arc::new(store), volume))
        }
        Engine::OpenSearch => Ok(opensearch::open(url, &options.into())?),
    }
}

/// Makes a volume at `url` of what `commit` puts there.
///
/// # Errors
/// [`EngineError`] says what to do.
pub fn format(url: &str, options: EngineOptions, commit: &Commit) -> Result<(), EngineError> {
    match scheme(url)? {
        Engine::Postgres => PostgresStore::format(target(url, options)?, commit)?.close(),
        Engine::Redis => drop(redis::format(url, options.into(), commit)?),
        Engine::OpenSearch => drop(opensearch::format(url, &options.into(), commit)?),
    }
    Ok(())
}

enum Engine {
    Postgres,
    Redis,
    OpenSearch,
}

fn scheme(url: &str) -> Result<Engine, EngineError> {
    match url.split_once("://").map_or("", |(scheme, _)| scheme) {
        "postgres" | "postgresql" => Ok(Engine::Postgres),
        "redis" | "rediss" | "valkey" | "valkeys" => Ok(Engine::Redis),
        "opensearch+http" | "opensearch+https" | "elasticsearch+http" | "elasticsearch+https" => {
            Ok(Engine::OpenSearch)
        }
        _ => Err(EngineError::Scheme(without_password(url).0)),
    }
}

fn target(url: &str, options: EngineOptions) -> Result<postgres::Target, EngineError> {
    Ok(postgres::Target::parse(url)?.with(options.password, options.patience))
}

fn volume_of(store: &dyn Store) -> Result<Volume, StoreError> {
    match store.get(&Key::Volume)?.as_ref().map(|stored| &*stored.document) {
        Some(Document::Volume(volume)) => Ok(volume.clone()),
        _ => Err(StoreError::Damaged { key: Key::Volume.to_string(), cause: "it is missing".to_owned() }),
    }
}

/// How long an answer of Redis is waited for at least.
const ANSWER_MIN: Duration = Duration::from_secs(2);

impl From<EngineOptions> for redis::Options {
    fn from(options: EngineOptions) -> Self {
        let EngineOptions { password, allow_volatile, patience } = options;
        let all = Self::default();
        // Who has less patience than an answer may take at most is not kept longer; but a server may be busy.
        let answer_within = all.answer_within.min(patience.max(ANSWER_MIN));
        Self { password, allow_volatile, patience, answer_within }
    }
}

impl From<EngineOptions> for opensearch::Options {
    fn from(options: EngineOptions) -> Self {
        let EngineOptions { password, allow_volatile, patience } = options;
        Self { password, allow_weak: allow_volatile, patience }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_that_cannot_be_taken_out_is_refused() {
        for url in [
            "postgres://ada:se/cret@db/files",
            "postgresql://ada:12/3@db/files",
            "redis://:pa?ss@h",
            "rediss://u:pa#ss@h:6379/0",
            "opensearch+https://u:p/w@h:9200/lockwood",
            "redis://ada:12/3@h",
            "postgres://ada:p@ss/w@db/files",
            "redis://:a,b/c@h",
        ] {
            let refused = refuse_hidden_password(url).unwrap_err();
            assert!(refused.contains("%2F") && !refused.contains(url), "{refused}");
        }
        for url in [
            "postgres://ada:s%2Fcret@db/files",
            "postgres://ada@db/files?sslrootcert=/a",
            "redis://h:6379?prefix=a@b",
            "redis://h?password-file=/etc/a@b",
            "redis://[::1]?password-file=/etc/a@b",
            "redis://[::1]:6379/0?password-file=/etc/a@b",
            "opensearch+http://a:9200,b:9200/lockwood",
        ] {
            assert_eq!(refuse_hidden_password(url), Ok(()), "{url}");
        }
    }

    #[test]
    fn a_password_is_taken_out_of_a_url() {
        for (url, shown, password) in [
            (
                "postgres://ada:se%2Fcret@db:5432/x?schema=s",
                "postgres://ada@db:5432/x?schema=s",
                Some("se/cret"),
            ),
            ("redis://:p@h/0", "redis://@h/0", Some("p")),
            ("redis://ada@h?prefix=a:b@c", "redis://ada@h?prefix=a:b@c", None),
            ("redis://a:b@c:d@h/1", "redis://a@h/1", Some("b@c:d")),
            ("/a:b@c", "/a:b@c", None),
        ] {
            assert_eq!(without_password(url), (shown.to_owned(), password.map(str::to_owned)), "{url}");
        }
    }

    #[test]
    fn a_url_is_told_from_a_path() {
        assert!(is_url("postgres://h/db") && is_url("opensearch+https://h"));
        assert!(!is_url("/a://b") && !is_url("://") && !is_url("store"));
        assert!(is_engine("rediss://h") && !is_engine("http://h") && !is_engine("postgres"));
        assert!(
            matches!(open("ftp://ada:secret@h", options()), Err(EngineError::Scheme(text)) if !text.contains("secret"))
        );
    }

    fn options() -> EngineOptions {
        EngineOptions { password: None, allow_volatile: false, patience: Duration::ZERO }
    }
}
