//! Opening and formatting: what a server must be like to be a store, and whether there is a volume.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use redis::{Value, pipe};

use super::address::{Address, AddressError};
use super::error::{Failed, explain};
use super::link::{Held, Patience, Pool, Script};
use super::names::Names;
use super::request::Arguments;
use super::{Options, RedisStore, ask_for};
use crate::document::{FORMAT_VERSION, Key, Kind, Volume};
use crate::shell::quoted;
use crate::store::{Commit, CommitError, Reader as _, Store as _, StoreError};

/// The first release whose scripts are refused before they write when the memory is full.
const RELEASE_MIN: (u32, u32) = (7, 0);
/// The first release that can be asked to wait for its disk.
const RELEASE_WAITS: (u32, u32) = (7, 2);

/// Why a volume could not be opened or made.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// No connection, or the server refused a request.
    #[error("{server}: {cause}")]
    Server {
        /// Which server, without the password.
        server: String,
        /// What it said and what to do.
        cause: String,
    },
    /// A server that lacks what the engine rests on.
    #[error("{server}: this server is of release {release}; 7.0 or newer is needed (or any Valkey)")]
    TooOld {
        /// Which server.
        server: String,
        /// What it is.
        release: String,
    },
    /// It forgets at a restart.
    #[error(
        "{server}: this server forgets documents when it restarts (appendonly is off): set \"appendonly yes\" \
         (CONFIG SET appendonly yes, then CONFIG REWRITE), or for tests take it \
         all the same (lockwood format --allow-volatile, lockwood mount -o allow-volatile)"
    )]
    Volatile {
        /// Which server.
        server: String,
    },
    /// It throws documents away when it is full.
    #[error(
        "{server}: this server throws documents away when it is full (maxmemory-policy {policy}): set \
         \"maxmemory-policy noeviction\", or for tests take it \
         all the same (lockwood format --allow-volatile, lockwood mount -o allow-volatile)"
    )]
    Evicts {
        /// Which server.
        server: String,
        /// What it says.
        policy: String,
    },
    /// It does not say whether it forgets.
    #[error(
        "{server}: this server forbids both CONFIG GET and INFO, so nobody knows whether it forgets documents at a \
         restart: allow one of them (ACL +config|get or +info), or for tests take it \
         all the same (lockwood format --allow-volatile, lockwood mount -o allow-volatile)"
    )]
    Silent {
        /// Which server.
        server: String,
    },
    /// Nothing there.
    #[error("{server}: there is no volume under this prefix; make one with: lockwood format {}", quoted(.server))]
    NoVolume {
        /// Which server.
        server: String,
    },
    /// Something there already.
    #[error("{server}: {what} under this prefix already: take another one (?prefix=NAME)")]
    Occupied {
        /// Which server.
        server: String,
        /// What is there.
        what: &'static str,
    },
    /// Made by a newer program.
    #[error(
        "{server}: the volume has format version {format}, newer than this program's {FORMAT_VERSION}: update lockwood"
    )]
    Newer {
        /// Which server.
        server: String,
        /// The volume's.
        format: String,
    },
    /// The volume's document.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What the server promises of a commit that has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// It is on disk.
    Always,
    /// It is on disk within a second or two.
    EverySecond {
        /// And [`sync`](crate::store::Store::sync) waits until it is.
        waits: bool,
    },
    /// It is on disk when the server's kernel likes.
    Kernel,
    /// It is written to a file; the server does not say when that is on disk.
    Unsaid,
    /// It is forgotten when the server restarts, or thrown away when it is full.
    Volatile,
}

impl Persistence {
    /// How often Linux or the server writes to the disk, with as much again for the writing; see
    /// [`Store::lost_after_sync`](crate::store::Store::lost_after_sync).
    pub(super) fn lost_after_sync(self) -> Duration {
        match self {
            Self::EverySecond { waits: false } => Duration::from_secs(4),
            Self::Kernel | Self::Unsaid => Duration::from_secs(60),
            // What is forgotten altogether brings nothing back.
            Self::Always | Self::EverySecond { waits: true } | Self::Volatile => Duration::ZERO,
        }
    }
}

impl fmt::Display for Persistence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Always => "every change is on the server's disk before it returns (appendfsync always)",
            Self::EverySecond { waits: true } => {
                "a change is on the server's disk within about a second, and fsync waits for that (appendfsync everysec)"
            }
            Self::EverySecond { waits: false } => {
                "a change survives the end of the server process; a power cut of the server loses about the last second, \
                 and fsync cannot wait for that before release 7.2 (set appendfsync always for more)"
            }
            Self::Kernel => {
                "a change survives the end of the server process; a power cut of the server loses up to half a minute, \
                 fsync or not (set appendfsync everysec or always for more)"
            }
            Self::Unsaid => {
                "the server keeps a file of all changes and forbids CONFIG GET: nobody knows how many a power cut loses"
            }
            Self::Volatile => "VOLATILE: the server forgets everything, or some of it, when it restarts or is full",
        })
    }
}

/// Opens the volume at `url`.
///
/// # Errors
/// [`OpenError`] says what to do.
pub fn open(url: &str, options: Options) -> Result<(RedisStore, Volume), OpenError> {
    let (store, server) = connect(url, options)?;
    let mut request = redis::cmd("HGET");
    store.names.add_document(&mut request, &Key::Volume);
    request.arg("format");
    let format = eagerly(&store.pool, |link| link.ask(&request))?;
    if let Ok(Some(format)) = redis::from_redis_value::<Option<String>>(format)
        && format.parse::<u32>().is_ok_and(|format| format > FORMAT_VERSION)
    {
        return Err(OpenError::Newer { server, format });
    }
    match store.get(&Key::Volume)?.as_ref().map(|stored| &*stored.document) {
        Some(crate::document::Document::Volume(volume)) => {
            log::info!("{server}: {}", store.durability);
            let volume = volume.clone();
            Ok((store, volume))
        }
        _ => Err(OpenError::NoVolume { server }),
    }
}

/// Makes a volume at `url` of what `commit` puts there.
///
/// # Errors
/// [`OpenError`] says what to do.
pub fn format(url: &str, options: Options, commit: &Commit) -> Result<RedisStore, OpenError> {
    let (store, server) = connect(url, options)?;
    let mut remains = redis::cmd("EXISTS");
    remains.arg(store.names.other("version")).arg(store.names.index(Kind::Node, None).to_string());
    let occupied = |what| OpenError::Occupied { server: server.clone(), what };
    if store.get(&Key::Volume)?.is_some() {
        return Err(occupied("there is a volume"));
    }
    if eagerly(&store.pool, |link| link.ask(&remains))? != Value::Int(0) {
        return Err(occupied("there are the remains of a volume"));
    }
    match store.commit(commit) {
        Ok(_) => Ok(store),
        Err(CommitError::Conflict(_)) => Err(occupied("there is a volume")),
        Err(CommitError::Store(error)) => Err(error.into()),
    }
}

/// A store at `url`, whether or not there is a volume, and the name of the server.
pub(super) fn connect(url: &str, options: Options) -> Result<(RedisStore, String), OpenError> {
    let address = Address::parse(url, options.password.as_deref())?;
    let server = address.to_string();
    let failed = |e: redis::RedisError| OpenError::Server { server: server.clone(), cause: e.to_string() };
    let pool = Pool::new(address, options).map_err(failed)?;
    eagerly(&pool, |link| link.ask(&ask_for(&["PING"])))?;
    let info = settings_of(&pool, &["INFO"])?;
    if let Some(release) = info.as_ref().and_then(|info| info.get("redis_version"))
        && !is_at_least(release, RELEASE_MIN)
    {
        return Err(OpenError::TooOld { server, release: release.clone() });
    }
    let config = settings_of(&pool, &["CONFIG", "GET", "append*"])?;
    let policy = settings_of(&pool, &["CONFIG", "GET", "maxmemory-policy"])?;
    let durability = judge(server.clone(), &pool.options, info.as_ref(), config.as_ref(), policy.as_ref())?;
    try_everything(&pool)?;
    Ok((RedisStore::new(pool, durability)?, server))
}

/// What the settings promise; a server that forgets is refused unless that is allowed.
fn judge(
    server: String,
    options: &Options,
    info: Option<&Settings>,
    config: Option<&Settings>,
    policy: Option<&Settings>,
) -> Result<Persistence, OpenError> {
    let get =
        |settings: Option<&Settings>, name: &str| settings.and_then(|settings| settings.get(name)).cloned();
    let appends = get(config, "appendonly").or_else(|| match &*get(info, "aof_enabled")? {
        "1" => Some("yes".to_owned()),
        _ => Some("no".to_owned()),
    });
    let policy = get(policy, "maxmemory-policy").or_else(|| get(info, "maxmemory_policy"));
    let refused = match (appends.as_deref(), policy) {
        (None, _) | (_, None) => OpenError::Silent { server },
        (_, Some(policy)) if policy != "noeviction" => OpenError::Evicts { server, policy },
        (Some("yes"), _) => {
            let release = get(info, "redis_version");
            let waits = release.is_some_and(|release| is_at_least(&release, RELEASE_WAITS));
            return Ok(match get(config, "appendfsync").as_deref() {
                Some("always") => Persistence::Always,
                Some("everysec") => Persistence::EverySecond { waits },
                Some(_) => Persistence::Kernel,
                None => Persistence::Unsaid,
            });
        }
        (Some(_), _) => OpenError::Volatile { server },
    };
    if options.allow_volatile { Ok(Persistence::Volatile) } else { Err(refused) }
}

type Settings = HashMap<String, String>;

/// What INFO or CONFIG GET say; none if the server forbids the command.
fn settings_of(pool: &Pool, words: &[&str]) -> Result<Option<Settings>, OpenError> {
    let answer = eagerly(pool, |link| match link.ask(&ask_for(words)) {
        // Some hosts of servers take the command away altogether, which is an "unknown command".
        Err(Failed::Refused(error)) if matches!(error.code(), Some("NOPERM" | "ERR")) => Ok(Value::Nil),
        other => other,
    })?;
    Ok(match answer {
        Value::Array(_) => redis::from_redis_value::<Settings>(answer).ok(),
        Value::BulkString(_) | Value::VerbatimString { .. } => {
            let text: String = redis::from_redis_value(answer).unwrap_or_default();
            let pairs = text.lines().filter_map(|line| line.split_once(':'));
            Some(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
        }
        _ => None,
    })
}

fn is_at_least(release: &str, least: (u32, u32)) -> bool {
    let mut numbers = release.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= least
}

/// Runs what commits run, so that a user without the rights is told now, and not half way through a commit.
fn try_everything(pool: &Pool) -> Result<(), OpenError> {
    let names: Names = pool.address.names();
    let probe = format!("probe:{:016x}", crate::ambient::random_u64());
    let arguments = Arguments::default()
        .key(names.other(&format!("{probe}:counter")))
        .key(names.other(&format!("{probe}:hash")))
        .key(names.other(&format!("{probe}:set")))
        .arg(names.channel());
    let script = Script::new(include_str!("probe.lua"));
    eagerly(pool, |link| link.run(&script, &arguments))?;
    let mut reads = pipe();
    reads.cmd("HGET").arg(names.other(&probe)).arg("a");
    reads.cmd("HGETALL").arg(names.other(&probe));
    eagerly(pool, |link| link.ask_all(&reads))?;
    Ok(())
}

/// Nobody waits longer for a server that is not there when a volume is opened.
const AWAY_MAX: Duration = Duration::from_secs(10);

/// Asks a server that shall be there; one that cannot be reached, or is still reading its data, is waited for.
fn eagerly<T>(
    pool: &Pool,
    mut attempt: impl FnMut(&mut Held<'_>) -> Result<T, Failed>,
) -> Result<T, OpenError> {
    let mut patience = Patience::of(pool);
    let mut while_away = Patience::at_most(pool, AWAY_MAX);
    let mut link = pool.link();
    loop {
        match attempt(&mut link) {
            Ok(done) => return Ok(done),
            Err(failed) if failed.error().code() == Some("LOADING") && patience.again() => {}
            Err(failed) if failed.is_unreached() && while_away.again() => {}
            Err(failed) => {
                let cause = explain(failed.error(), &pool.address);
                return Err(OpenError::Server { server: pool.address.to_string(), cause });
            }
        }
    }
}
