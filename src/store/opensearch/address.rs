//! The URL of a volume: `opensearch+http://[user[:password]@]host[:port][,host[:port]...]/prefix`, with `https` for TLS and
//! `elasticsearch` for the other server. Pure but for the files with secrets.

use std::fmt;
use std::path::Path;

use reqwest::Url;

const PORT: u16 = 9200;
const PREFIX: &str = "lockwood";
const PREFIX_LEN_MAX: usize = 64;

/// Which of the two servers: their protocols have parted, and a URL says which one is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flavour {
    OpenSearch,
    Elasticsearch,
}

impl Flavour {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::OpenSearch => "opensearch",
            Self::Elasticsearch => "elasticsearch",
        }
    }
}

/// Who asks.
#[derive(Clone)]
pub(super) enum Credentials {
    None,
    Basic { user: String, password: Option<String> },
    ApiKey(String),
}

/// Servers of one cluster, and a place there. Neither `Debug` nor `Display` show secrets.
#[derive(Clone)]
pub(super) struct Address {
    pub(super) flavour: Flavour,
    pub(super) credentials: Credentials,
    /// The certificate of the authority that the servers' are judged by, beside those of this host.
    pub(super) authority: Option<Vec<u8>>,
    tls: bool,
    /// Where to send requests: one a server, at least one.
    pub(super) servers: Vec<Url>,
    /// The same as people write them.
    hosts: Vec<String>,
    prefix: String,
}

/// Why a URL is none of ours.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// No URL of such servers.
    #[error(
        "this is no URL of OpenSearch or Elasticsearch ({0}); one is \
         opensearch+http://[user[:password]@]host[:port][,host[:port]...][/prefix], or opensearch+https:// over TLS"
    )]
    Url(String),
    /// A prefix that cannot begin the name of an index.
    #[error(
        "the prefix {0:?} cannot be used: take 1 to 64 lower-case letters, digits, `.`, `_` and `-`, a letter or digit first"
    )]
    Prefix(String),
    /// Something behind the `?` that means nothing.
    #[error("the URL's option {0:?} is unknown; there are password-file, api-key-file and ca-file")]
    Option(String),
    /// A file that the URL names cannot be read.
    #[error("the file {path}, which the URL names: {source}")]
    File {
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
        let (scheme, rest) = url.split_once("://").ok_or_else(|| no_url("it has no ://"))?;
        let (flavour, tls) = match scheme {
            "opensearch+http" => (Flavour::OpenSearch, false),
            "opensearch+https" => (Flavour::OpenSearch, true),
            "elasticsearch+http" => (Flavour::Elasticsearch, false),
            "elasticsearch+https" => (Flavour::Elasticsearch, true),
            _ => return Err(no_url("it does not begin with opensearch+http:// or the like")),
        };
        if rest.contains('#') {
            return Err(no_url("nothing may follow a #"));
        }
        let (rest, query) = rest.split_once('?').map_or((rest, ""), |(rest, query)| (rest, query));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, authority),
        };
        let hosts = hosts.split(',').map(host).collect::<Option<Vec<_>>>();
        let hosts = hosts.ok_or_else(|| no_url("a host is missing, or its port is none"))?;
        let (mut from_file, mut api_key, mut ca) = (None, None, None);
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            match name {
                "password-file" => from_file = Some(secret(&decoded(value))?),
                "api-key-file" => api_key = Some(secret(&decoded(value))?),
                "ca-file" => ca = Some(file(&decoded(value))?),
                _ => return Err(AddressError::Option(name.to_owned())),
            }
        }
        let credentials = match (api_key, user) {
            (Some(key), _) => Credentials::ApiKey(key),
            (None, None) => Credentials::None,
            (None, Some(user)) => {
                let (user, in_url) = match user.split_once(':') {
                    Some((user, password)) => (user, Some(decoded(password))),
                    None => (user, None),
                };
                let password = in_url.or(from_file).or_else(|| password.map(str::to_owned));
                Credentials::Basic { user: decoded(user), password }
            }
        };
        let prefix = path.trim_end_matches('/');
        let prefix = if prefix.is_empty() { PREFIX } else { prefix };
        let readable =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
        let begins = prefix.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
        if prefix.len() > PREFIX_LEN_MAX || !begins || !prefix.bytes().all(readable) {
            return Err(AddressError::Prefix(prefix.to_owned()));
        }
        let scheme = if tls { "https" } else { "http" };
        let server = |host: &String| {
            let parsed = Url::parse(&format!("{scheme}://{host}"));
            parsed.map_err(|error| AddressError::Url(format!("the host {host} is none: {error}")))
        };
        let servers = hosts.iter().map(server).collect::<Result<_, _>>()?;
        Ok(Self { flavour, credentials, authority: ca, tls, servers, hosts, prefix: prefix.to_owned() })
    }

    /// The name of an index.
    pub(super) fn index(&self, kind: &str) -> String {
        format!("{}-{kind}", self.prefix)
    }
}

/// A host with its port.
fn host(text: &str) -> Option<String> {
    let bare = |text: &str| !text.is_empty() && !text.contains(['[', ']', ' ', '\\', '%']);
    let (name, port) = match text.strip_prefix('[') {
        // An address of IPv6.
        Some(rest) => {
            let (name, port) = rest.split_once(']')?;
            bare(name).then_some((format!("[{name}]"), port))?
        }
        None => {
            let end = text.find(':').unwrap_or(text.len());
            bare(&text[..end]).then_some((text[..end].to_owned(), &text[end..]))?
        }
    };
    let port = match port.strip_prefix(':') {
        Some(port) => port.parse().ok().filter(|port| *port != 0)?,
        None if port.is_empty() => PORT,
        None => return None,
    };
    Some(format!("{name}:{port}"))
}

fn decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

fn file(path: &str) -> Result<Vec<u8>, AddressError> {
    std::fs::read(Path::new(path)).map_err(|source| AddressError::File { path: path.to_owned(), source })
}

fn secret(path: &str) -> Result<String, AddressError> {
    let text = String::from_utf8_lossy(&file(path)?).into_owned();
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// As a URL without user and secrets.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tls = if self.tls { "s" } else { "" };
        write!(f, "{}+http{tls}://{}/{}", self.flavour.name(), self.hosts.join(","), self.prefix)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let shown = |url| Address::parse(url, None).map(|address| address.to_string());
        for (url, is) in [
            ("opensearch+http://h", "opensearch+http://h:9200/lockwood"),
            ("opensearch+https://u:p@h:1,g/a.b/", "opensearch+https://h:1,g:9200/a.b"),
            ("elasticsearch+http://[::1]:7/x", "elasticsearch+http://[::1]:7/x"),
        ] {
            assert_eq!(shown(url).unwrap(), is, "{url}");
        }
        for url in [
            "",
            "opensearch://h",
            "opensearch+http://",
            "opensearch+http://h,/x",
            "opensearch+http://h:0",
            "opensearch+http://h:99999",
            "opensearch+http://[::1",
            "opensearch+http://::1/",
            "opensearch+http://[::zz]",
            "opensearch+http://h,1.2.3.400",
            "opensearch+http://h/A",
            "opensearch+http://h/_a",
            "opensearch+http://h/a/b",
            "opensearch+http://h/a?x=1",
            "opensearch+http://h/a#b",
            "opensearch+http://h/a?ca-file=/none/there",
        ] {
            assert!(shown(url).is_err(), "{url}");
        }
    }

    #[test]
    fn secrets_are_found_and_never_shown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        std::fs::write(&path, "s3cret\n").unwrap();
        let path = path.display();
        for (url, other) in [
            ("opensearch+http://u:s3cret@h".to_owned(), None),
            (format!("opensearch+http://u@h?password-file={path}"), Some("wrong")),
            ("opensearch+http://u@h".to_owned(), Some("s3cret")),
            (format!("elasticsearch+http://h/x?api-key-file={path}"), None),
        ] {
            let address = Address::parse(&url, other).unwrap();
            let found = match &address.credentials {
                Credentials::Basic { user, password } if user == "u" => password.clone(),
                Credentials::ApiKey(key) => Some(key.clone()),
                _ => None,
            };
            assert_eq!(found.as_deref(), Some("s3cret"), "{url}");
            assert!(!format!("{address} {address:?}").contains("s3cret"), "{url}");
        }
    }
}
