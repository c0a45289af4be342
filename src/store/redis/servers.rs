//! Several servers that know nothing of each other: the same script on each of them, all at once.
//!
//! Owns which servers there are, which of them is away, and which has forgotten. What the answers mean is the caller's
//! affair (`lock::redlock`). Imports the connections of the engine beside it.
//!
//! What is hard:
//! 1. All are to be asked at the same time, and none may hold up the others: the request is sent to each, and then the
//!    answers are fetched, all within one time-out. A server that did not answer is left out for a while, as long as the
//!    others are a majority.
//! 2. A server that was started again may have forgotten what it had granted. So it counts for nothing until everything that
//!    it can have granted before has expired. Its start breaks all connections, so it cannot be missed: whoever connects
//!    asks how long the server has been up.

use std::fmt;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::Value;

use super::address::{Address, AddressError};
use super::error::{Failed, explain};
use super::link::{Held, Pool, Script};
use super::request::Arguments;
use super::{Options, ask_for};
use crate::ambient;

/// As many servers can be named.
const SERVERS_MAX: usize = 15;
/// A server that did not answer is left out for so long.
const AWAY: Duration = Duration::from_secs(1);

/// How the servers are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// How long an answer may take, of all servers together.
    pub answer_within: Duration,
    /// For how long after its start a server counts for nothing: as long as anything that it granted before can last. Zero
    /// only for a server that forgets nothing.
    pub rest_after_start: Duration,
}

/// The servers.
pub struct Servers {
    all: Vec<Server>,
    prefix: String,
    patience: Patience,
}

struct Server {
    pool: Pool,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// It is left out until then, and why.
    away: Option<(Instant, String)>,
    /// It counts for nothing until then.
    rests_until: Option<Instant>,
}

/// A server that does not count, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    /// Which: its URL, without user and password.
    pub server: String,
    /// What happened, and what to do.
    pub cause: String,
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.server, self.cause)
    }
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To be granted something: servers that may have forgotten what they granted are not asked.
    Grant,
    /// Anything else.
    Other,
}

impl Servers {
    /// The servers of a list: URLs with commas in between, in which hosts that share everything else may stand in one URL,
    /// like `redis://a,b:6380,c/0?prefix=NAME`. `password` is for those whose URL names none and no file of one.
    ///
    /// # Errors
    /// [`AddressError`]; it shows no password.
    pub fn parse(list: &str, password: Option<&str>, patience: Patience) -> Result<Self, AddressError> {
        let mut all: Vec<Server> = Vec::new();
        for url in expand(list) {
            let address = Address::parse(&url, password)?;
            if all.iter().any(|known| known.pool.address.to_string() == address.to_string()) {
                return Err(AddressError::List(format!("names {address} twice")));
            }
            if let Some(first) = all.first()
                && first.pool.address.prefix() != address.prefix()
            {
                return Err(AddressError::List(format!(
                    "has the prefix {} and the prefix {}, and it must be one",
                    first.pool.address.prefix(),
                    address.prefix()
                )));
            }
            let shown = address.to_string();
            let options = Options { answer_within: patience.answer_within, ..Options::default() };
            let pool = Pool::new(address, options).map_err(|e| AddressError::Url(format!("{shown}: {e}")))?;
            all.push(Server { pool, known: Mutex::default() });
        }
        match all.first().map(|first| first.pool.address.prefix().to_owned()) {
            Some(prefix) if all.len() <= SERVERS_MAX => Ok(Self { all, prefix, patience }),
            _ => Err(AddressError::List(format!(
                "names {} servers, and there can be 1 to {SERVERS_MAX}",
                all.len()
            ))),
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// The least number of servers of which any two sets have one in common.
    pub fn majority(&self) -> usize {
        self.all.len() / 2 + 1
    }

    /// What every key begins with. The braces keep all keys in one slot of a cluster.
    pub fn key_tag(&self) -> String {
        format!("{{{}}}:", self.prefix)
    }

    /// Runs a script on every server that is not away. The answers are in the order of the servers; each is the text that
    /// the script returned.
    pub fn run(
        &self,
        script: &Script,
        arguments: &Arguments,
        purpose: Purpose,
    ) -> Vec<Result<Vec<u8>, Absent>> {
        let now = ambient::monotonic();
        let here = self.all.iter().filter(|server| server.away(now).is_none()).count();
        let leave_out = here >= self.majority();
        let packed = script.by_hash(arguments).get_packed_command();
        let asked: Vec<Result<Held<'_>, Absent>> = self
            .all
            .iter()
            .map(|server| match server.away(now) {
                Some(cause) if leave_out => Err(server.absent(cause)),
                _ => server.ask(&packed, purpose, self.patience.rest_after_start),
            })
            .collect();
        // Behind the requests: connecting may have taken its time.
        let until = ambient::monotonic() + self.patience.answer_within;
        let answers = self.all.iter().zip(asked).map(|(server, link)| {
            let mut link = link?;
            match answer(&mut link, script, arguments, until) {
                Ok(Value::BulkString(text)) => {
                    server.known.lock().away = None;
                    Ok(text)
                }
                Ok(other) => Err(server.absent(format!("the server sent {other:?}"))),
                Err(failed) => Err(server.failed(&failed)),
            }
        });
        answers.collect()
    }
}

fn answer(
    link: &mut Held<'_>,
    script: &Script,
    arguments: &Arguments,
    until: Instant,
) -> Result<Value, Failed> {
    // What has arrived already is read even when time is up.
    let left = || until.saturating_duration_since(ambient::monotonic()).max(Duration::from_millis(1));
    match link.receive(left()) {
        Err(Failed::Refused(error)) if error.code() == Some("NOSCRIPT") => {
            link.send(&script.by_text(arguments).get_packed_command())?;
            link.receive(left())
        }
        other => other,
    }
}

impl Server {
    fn absent(&self, cause: String) -> Absent {
        Absent { server: self.pool.address.server().to_owned(), cause }
    }

    fn failed(&self, failed: &Failed) -> Absent {
        let cause = explain(failed.error(), &self.pool.address);
        if !matches!(failed, Failed::Refused(_)) {
            self.known.lock().away = Some((ambient::monotonic() + AWAY, cause.clone()));
        }
        self.absent(cause)
    }

    fn away(&self, now: Instant) -> Option<String> {
        self.known.lock().away.as_ref().filter(|(until, _)| now < *until).map(|(_, cause)| cause.clone())
    }

    /// Sends a request, over a connection that may have to be made first.
    fn ask(&self, packed: &[u8], purpose: Purpose, rest: Duration) -> Result<Held<'_>, Absent> {
        let mut link = self.pool.link();
        if !link.is_connected() {
            self.look_at_start(&mut link, rest)?;
        }
        if purpose == Purpose::Grant
            && let Some(left) = self.rests()
        {
            return Err(self.absent(format!(
                "it was started a short while ago and may have forgotten locks: it counts again in {left:.1?}"
            )));
        }
        link.send(packed).map_err(|failed| self.failed(&failed))?;
        Ok(link)
    }

    fn rests(&self) -> Option<Duration> {
        let until = self.known.lock().rests_until?;
        Some(until.saturating_duration_since(ambient::monotonic())).filter(|left| !left.is_zero())
    }

    /// Asks a server how long it has been up.
    fn look_at_start(&self, link: &mut Held<'_>, rest: Duration) -> Result<(), Absent> {
        if rest.is_zero() {
            return Ok(());
        }
        let info = link.ask(&ask_for(&["INFO", "server"])).map_err(|failed| self.failed(&failed))?;
        let text: String = redis::from_redis_value(info).unwrap_or_default();
        let up = text.lines().find_map(|line| line.strip_prefix("uptime_in_seconds:")?.trim().parse().ok());
        let up =
            up.ok_or_else(|| self.absent("INFO does not say how long the server has been up".to_owned()))?;
        // Both ends of that number are whole seconds, so it may be one too many.
        let up = Duration::from_secs(u64::saturating_sub(up, 1));
        self.known.lock().rests_until = Some(ambient::monotonic() + rest.saturating_sub(up));
        Ok(())
    }
}

/// In the order of their names: two lists that name the same servers show the same.
impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown: Vec<String> = self.all.iter().map(|server| server.pool.address.to_string()).collect();
        shown.sort_unstable();
        f.write_str(&shown.join(","))
    }
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Servers({self})")
    }
}

/// The URLs of a list, one a server.
fn expand(list: &str) -> Vec<String> {
    // A URL begins at each part that has a scheme; the parts behind it are more hosts of it.
    let mut urls: Vec<String> = Vec::new();
    for part in list.split(',') {
        match urls.last_mut() {
            Some(last) if !part.contains("://") => {
                last.push(',');
                last.push_str(part);
            }
            _ => urls.push(part.to_owned()),
        }
    }
    urls.iter().flat_map(|url| one_host_each(url)).collect()
}

fn one_host_each(url: &str) -> Vec<String> {
    let Some((scheme, rest)) = url.split_once("://") else { return vec![url.to_owned()] };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, behind) = rest.split_at(end);
    let (user, hosts) = authority.rsplit_once('@').map_or(("", authority), |(user, hosts)| (user, hosts));
    let at = if user.is_empty() { "" } else { "@" };
    hosts.split(',').map(|host| format!("{scheme}://{user}{at}{host}{behind}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience =
        Patience { answer_within: Duration::from_millis(50), rest_after_start: Duration::ZERO };

    fn shown(list: &str) -> Result<String, String> {
        Servers::parse(list, None, PATIENCE).map(|s| s.to_string()).map_err(|e| e.to_string())
    }

    #[test]
    fn a_list_names_servers() {
        assert_eq!(shown("redis://a").unwrap(), "redis://a:6379/0?prefix=lockwood");
        assert_eq!(
            shown("redis://b,a:1/2?prefix=p").unwrap(),
            "redis://a:1/2?prefix=p,redis://b:6379/2?prefix=p"
        );
        let mixed = shown("redis://ada@a,[::1]:7,rediss://c/1").unwrap();
        assert_eq!(
            mixed,
            "redis://[::1]:7/0?prefix=lockwood,redis://a:6379/0?prefix=lockwood,rediss://c:6379/1?prefix=lockwood"
        );
        for bad in ["", "a,b", "redis://a,a", "redis://a,", "redis://a?prefix=x,redis://b", "http://a,b"] {
            assert!(shown(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_majority_of_two_sets_has_one_server_in_common() {
        for (list, majority) in [("a", 1), ("a,b", 2), ("a,b,c", 2), ("a,b,c,d", 3), ("a,b,c,d,e", 3)] {
            let servers = Servers::parse(&format!("redis://{list}"), None, PATIENCE).unwrap();
            assert_eq!(servers.majority(), majority);
            assert!(2 * majority > servers.count());
        }
    }

    #[test]
    fn no_password_is_shown() {
        let servers = Servers::parse("redis://ada:s3cret@a,b", None, PATIENCE).unwrap();
        assert!(!format!("{servers} {servers:?}").contains("s3cret"));
        assert!(!shown("redis://ada:s3cret@a,a").unwrap_err().contains("s3cret"));
    }
}
