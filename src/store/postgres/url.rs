//! The URL of a volume: `postgres://USER@HOST[:PORT][,HOST...]/DATABASE[?OPTION=VALUE&...]`.
//!
//! What is not an option of ours goes to the driver as it is. A password is looked for in the URL, in `PGPASSWORD`, and in
//! the password file, in this order; it is kept inside the driver's configuration, which does not print it.

use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, LoadBalanceHosts, SslMode, TargetSessionAttrs};

use crate::document::text;

/// For how long a request is tried again unless [`Target::with`] says otherwise.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(30);
/// Options that the driver does not know, or not in the way that we do.
const OWN: [&str; 5] = ["schema", "sslmode", "sslrootcert", "passfile", "pool_size"];
const SCHEMA_MAX: usize = 48;
/// For how long a host may not answer when it is called. One packet may be lost, and the next host of several has its turn
/// well within a lease.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// A link is down when nothing that was sent has arrived for so long. Only the network is judged by it: a machine that is
/// there says so for each packet, however long the server takes to answer.
const LINK_DOWN_AFTER: Duration = Duration::from_secs(3);
/// Who waits for an answer, or for notices, has nothing under way that could fail to arrive; so the link is asked.
const ASK_IDLE_LINK_AFTER: Duration = Duration::from_secs(2);
const ASK_IDLE_LINK_EVERY: Duration = Duration::from_secs(1);

/// Where a volume is, and how to get there.
#[derive(Clone)]
pub struct Target {
    /// How each of the hosts is reached; as one if the driver is to choose among them.
    hosts: Vec<Config>,
    /// Which of them has answered last.
    last: Arc<AtomicUsize>,
    pub(super) schema: String,
    /// Certificates to trust; none for no encryption.
    pub(super) tls: Option<Trust>,
    pub(super) pool_size: usize,
    pub(super) commit_timeout: Duration,
    server: String,
}

/// Whose certificates are believed.
#[derive(Clone, Debug)]
pub(super) enum Trust {
    /// Those of the machine.
    System,
    /// Those in a PEM file.
    File(PathBuf),
}

/// As it is told to people: without the password and the options.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgreSQL at {}", self.server)
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({self}, schema {})", self.schema)
    }
}

/// What is wrong with a URL. Never has the URL in it, which may have a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not the URL of a PostgreSQL volume: {0}; the form is postgres://USER@HOST:PORT/DATABASE?schema=NAME"
)]
pub struct UrlError(String);

impl Target {
    /// The same, with this password if there is one, and asked for as long while the server is away.
    #[must_use]
    pub fn with(mut self, password: Option<String>, patience: Duration) -> Self {
        if let Some(password) = password {
            for host in &mut self.hosts {
                host.password(password.as_str());
            }
        }
        self.commit_timeout = patience;
        self
    }

    /// Reads a URL, the environment, and the password file.
    ///
    /// # Errors
    /// [`UrlError`] says what is wrong.
    pub fn parse(url: &str) -> Result<Self, UrlError> {
        let wrong = |what: &str| UrlError(what.to_owned());
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(wrong("it does not begin with postgres://"));
        }
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let pairs = || query.split('&').filter(|pair| !pair.is_empty());
        let name = |pair: &str| pair.split('=').next().unwrap_or_default().to_owned();
        let others: Vec<&str> = pairs().filter(|pair| !OWN.contains(&name(pair).as_str())).collect();
        let own = |wanted: &str| {
            pairs()
                .filter_map(|pair| pair.split_once('='))
                .find(|(name, _)| *name == wanted)
                .map(|(_, value)| String::from_utf8_lossy(&text::decode(value)).into_owned())
        };
        let parsed = |base: &str| -> Result<Config, UrlError> {
            let parsed = format!("{base}?{}", others.join("&")).parse();
            parsed.map_err(|error: tokio_postgres::Error| UrlError(chain(&error)))
        };
        let config = parsed(base)?;
        let schema = own("schema").unwrap_or_else(|| "lockwood".to_owned());
        check_schema(&schema)?;
        let number = |option: &str, default: u64| match own(option) {
            None => Ok(default),
            Some(value) => match value.parse() {
                Ok(number) if number > 0 => Ok(number),
                _ => Err(UrlError(format!("{option} is no number above 0"))),
            },
        };
        let pool_size = usize::try_from(number("pool_size", 16)?).unwrap_or(usize::MAX);
        let (Some(user), Some(database)) = (config.get_user(), config.get_dbname()) else {
            return Err(wrong("it names no user or no database"));
        };
        let (user, database) = (user.to_owned(), database.to_owned());
        let places = places(&config);
        let Some((host, port)) = places.first().cloned() else { return Err(wrong("it names no host")) };
        let local = config.get_hosts().iter().all(is_local);
        let trust = own("sslrootcert").map_or(Trust::System, |file| Trust::File(file.into()));
        let tls = match own("sslmode").as_deref() {
            None if local => None,
            Some("disable") => None,
            None | Some("require" | "verify-full") => Some(trust),
            Some(_) => return Err(wrong("sslmode is disable, require or verify-full")),
        };
        let password = match config.get_password() {
            Some(_) => None,
            None => password(own("passfile"), &[&host, &port.to_string(), &database, &user])?,
        };
        let server = places.iter().map(|(host, port)| format!("{host}:{port}")).collect::<Vec<_>>().join(",");
        let server = format!("{server}/{database} as {user}");
        let mut hosts = each_host(base).iter().map(|base| parsed(base)).collect::<Result<Vec<_>, _>>()?;
        let apart = hosts.iter().all(|host| self::places(host).len() == 1) && hosts.len() == places.len();
        if !apart || config.get_load_balance_hosts() != LoadBalanceHosts::Disable {
            hosts = vec![config];
        }
        for host in &mut hosts {
            host.ssl_mode(if tls.is_some() { SslMode::Require } else { SslMode::Disable });
            set_limits(host);
            if let Some(password) = &password {
                host.password(password.as_str());
            }
        }
        let last = Arc::default();
        Ok(Self { hosts, last, schema, tls, pool_size, commit_timeout: COMMIT_TIMEOUT, server })
    }

    /// The channel of the volume's notices.
    pub(super) fn channel(&self) -> String {
        format!("lockwood_{}", self.schema)
    }

    /// The hosts in the order in which they are to be tried.
    pub(super) fn hosts(&self) -> impl ExactSizeIterator<Item = (usize, &Config)> {
        let first = self.last.load(Ordering::Relaxed);
        (0..self.hosts.len()).map(move |n| (first + n) % self.hosts.len()).map(|at| (at, &self.hosts[at]))
    }

    /// A host as people know it.
    pub(super) fn host_name(&self, host: usize) -> String {
        let places = places(&self.hosts[host]).into_iter().map(|(name, port)| format!("{name}:{port}"));
        places.collect::<Vec<_>>().join(",")
    }

    /// This host has let us in. If it did so because it is the primary, it is tried first from now on, so that a dead host
    /// before it in the URL is not waited for each time. A replica is given up for another host, and so must not come first.
    pub(super) fn entered(&self, host: usize) {
        if self.hosts[host].get_target_session_attrs() == TargetSessionAttrs::ReadWrite {
            self.last.store(host, Ordering::Relaxed);
        }
    }
}

/// The URL up to its options, once for each host that it names before them. Its parts end where they do for the driver.
fn each_host(base: &str) -> Vec<String> {
    let (scheme, rest) = base.split_once("://").unwrap_or((base, ""));
    let (user, rest) =
        rest.split_once('@').map_or((String::new(), rest), |(u, rest)| (format!("{u}@"), rest));
    let (hosts, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    hosts.split(',').map(|host| format!("{scheme}://{user}{host}{path}")).collect()
}

/// Gives an option of the driver our default where the URL does not set it.
fn set_limits(config: &mut Config) {
    config.application_name("lockwood");
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_WITHIN);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(LINK_DOWN_AFTER);
    }
    if config.get_keepalives_idle() == Config::new().get_keepalives_idle() {
        config.keepalives_idle(ASK_IDLE_LINK_AFTER);
    }
    if config.get_keepalives_interval().is_none() {
        config.keepalives_interval(ASK_IDLE_LINK_EVERY);
    }
}

/// A name that needs no quotes, and leaves room for the prefix of the channel.
fn check_schema(schema: &str) -> Result<(), UrlError> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let begins = schema.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
    if !begins || schema.len() > SCHEMA_MAX || !schema.bytes().all(plain) || schema.starts_with("pg_") {
        return Err(UrlError(format!("a schema has at most {SCHEMA_MAX} of a to z, 0 to 9 and _")));
    }
    Ok(())
}

fn places(config: &Config) -> Vec<(String, u16)> {
    let ports = config.get_ports();
    let port = |i: usize| ports.get(i).or(ports.first()).copied().unwrap_or(5432);
    let host = |host: &Host| match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(path) => path.display().to_string(),
    };
    config.get_hosts().iter().enumerate().map(|(i, h)| (host(h), port(i))).collect()
}

fn is_local(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => matches!(name.as_str(), "localhost" | "127.0.0.1" | "::1" | "[::1]"),
        Host::Unix(_) => true,
    }
}

/// An error with all its causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}

fn password(file: Option<String>, wanted: &[&str; 4]) -> Result<Option<String>, UrlError> {
    if let Ok(password) = std::env::var("PGPASSWORD") {
        return Ok(Some(password));
    }
    let named = file.or_else(|| std::env::var("PGPASSFILE").ok());
    let must_exist = named.is_some();
    let path = match named {
        Some(path) => PathBuf::from(path),
        None => match std::env::var_os("HOME") {
            Some(home) => Path::new(&home).join(".pgpass"),
            None => return Ok(None),
        },
    };
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if must_exist => return Err(UrlError(format!("{}: {error}", path.display()))),
        Err(_) => return Ok(None),
    };
    let mode = fs::metadata(&path).map_or(0, |metadata| metadata.permissions().mode());
    if mode & 0o077 != 0 {
        return Err(UrlError(format!("others may read {0}: chmod 600 {0}", path.display())));
    }
    Ok(text.lines().find_map(|line| password_in(line, wanted)))
}

/// The password of a line `host:port:database:user:password`, if the line is for this server. `*` is anything, and a
/// backslash takes the meaning of what follows.
fn password_in(line: &str, wanted: &[&str; 4]) -> Option<String> {
    let mut fields = vec![String::new()];
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            ':' if fields.len() < 5 => fields.push(String::new()),
            '\\' => fields.last_mut()?.extend(chars.next()),
            c => fields.last_mut()?.push(c),
        }
    }
    let password = (fields.len() == 5).then(|| fields.pop()).flatten()?;
    fields.iter().zip(wanted).all(|(field, wanted)| field == "*" || field == wanted).then_some(password)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where() {
        let target =
            Target::parse("postgres://me:secret@db.example:5433/files?schema=second&pool_size=3").unwrap();
        assert_eq!((target.schema.as_str(), target.pool_size), ("second", 3));
        assert!(target.tls.is_some(), "other machines are spoken to with encryption");
        let told = format!("{target} {target:?} {:?}", target.hosts);
        assert!(told.contains("db.example:5433/files as me") && !told.contains("secret"), "{told}");
        let local = Target::parse("postgres://me@localhost/files").unwrap();
        assert!(local.tls.is_none() && local.schema == "lockwood");
    }

    #[test]
    fn each_host_is_tried_and_the_primary_first() {
        let url = "postgres://me:a@b:5433,c,[::1]:1/files?keepalives_idle=7&target_session_attrs=";
        let order =
            |target: &Target| target.hosts().map(|(_, host)| places(host)).collect::<Vec<_>>().concat();
        for (attributes, first) in [("any", "b"), ("read-write", "c")] {
            let target = Target::parse(&format!("{url}{attributes}"))
                .unwrap()
                .with(Some("p".to_owned()), COMMIT_TIMEOUT);
            assert_eq!(
                order(&target),
                [("b", 5433), ("c", 5432), ("::1", 1)].map(|(h, p)| (h.to_owned(), p))
            );
            target.entered(1);
            assert_eq!((order(&target).len(), order(&target)[0].0.as_str()), (3, first));
            for (_, host) in target.hosts() {
                assert_eq!((host.get_password(), host.get_user()), (Some(&b"p"[..]), Some("me")));
                assert_eq!(host.get_keepalives_idle(), Duration::from_secs(7), "what the URL sets is kept");
                assert_eq!(host.get_tcp_user_timeout(), Some(&LINK_DOWN_AFTER));
            }
        }
        let chosen = Target::parse("postgres://me@b,c/files?load_balance_hosts=random").unwrap();
        assert_eq!((chosen.hosts.len(), order(&chosen).len()), (1, 2));
    }

    #[test]
    fn what_is_wrong_is_said_without_the_password() {
        for url in [
            "mysql://a@b/c",
            "postgres://me:secret@h",
            "postgres://me:secret@h/d?schema=A",
            "postgres://me:secret@h/d?schema=pg_x",
            "postgres://me:secret@h/d?sslmode=maybe",
            "postgres://me:secret@h/d?pool_size=0",
            "postgres://me:secret@h/d?no_such=1",
            "postgres://me:secret@h:port/d",
        ] {
            let told = Target::parse(url).err().map(|error| error.to_string());
            assert!(told.as_ref().is_some_and(|told| !told.contains("secret")), "{url}: {told:?}");
        }
    }

    #[test]
    fn lines_of_a_password_file() {
        let wanted = ["h", "5432", "d", "me"];
        assert_eq!(password_in("h:5432:d:me:a:b", &wanted), Some("a:b".to_owned()));
        assert_eq!(password_in("*:*:*:*:x\\\\y", &wanted), Some("x\\y".to_owned()));
        for other in ["i:5432:d:me:a", "h:5432:d:me", "", "#"] {
            assert_eq!(password_in(other, &wanted), None, "{other}");
        }
    }
}
