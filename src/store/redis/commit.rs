//! Commits, and what became of those whose answer was lost.
//!
//! A commit is one request, numbered within the lane of its connection; the script notes the number with the outcome. If the
//! answer is lost, `settle.lua` finds the outcome, or writes down that the number is void: the request, should it still be
//! under way, will then be turned away. So before anything else is done a lost commit has been made or can never be made,
//! and one that is void is made anew under the next number.

use redis::Value;

use super::error::Failed;
use super::link::{Held, Patience, Pool, Script};
use super::losses::{JUMPS_KEPT_BYTES, Losses, Server};
use super::names::Names;
use super::request::{self, Arguments, OUTCOMES_KEPT_S};
use crate::ambient;
use crate::document::Version;
use crate::store::{Commit, CommitError, StoreError};

const TEXT: &str = include_str!("commit.lua");
/// The first line of the script for commits that the server must take when its memory is full: who removes something, beats
/// or lets go of a lock must be able to.
const FIRST_LINE_WHEN_FULL: &str = "#!lua flags=allow-oom";

/// More commits than a server loses when it starts again, or when a replica takes over, and few enough for the counter of
/// versions to last for some millions of such times.
const VERSIONS_LOST_MAX: u64 = 1_000_000_000;

pub(super) struct Committer {
    names: Names,
    arrive: Script,
    losses: Losses,
    /// Where the server keeps what became of this client's commits.
    outcomes: String,
    growing: Script,
    other: Script,
    settle: Script,
}

/// What the script says of a commit.
enum Outcome {
    Done(Version),
    /// A check, a merge, the session: nothing was changed.
    Not(CommitError),
    /// It was given up before it arrived.
    Void,
}

impl Committer {
    pub(super) fn new(names: Names) -> Self {
        Self {
            outcomes: names.other(&format!("outcomes:{:016x}", ambient::random_u64())),
            growing: Script::new(TEXT),
            arrive: Script::new(include_str!("arrive.lua")),
            losses: Losses::default(),
            other: Script::new(TEXT.replacen("#!lua", FIRST_LINE_WHEN_FULL, 1)),
            settle: Script::new(include_str!("settle.lua")),
            names,
        }
    }

    /// Each time another jump: a server that loses it, too, must not give the same versions once more.
    fn arrival(&self) -> Arguments {
        let jump = VERSIONS_LOST_MAX + ambient::random_u64() % VERSIONS_LOST_MAX;
        Arguments::default()
            .key(self.names.other("version"))
            .key(self.names.other("server"))
            .key(self.names.other("jumps"))
            .arg(jump)
            .arg(JUMPS_KEPT_BYTES)
    }

    /// Which server the link leads to.
    pub(super) fn arrive(&self, link: &mut Held<'_>) -> Result<Server, Failed> {
        link.arrive(&self.arrive, || self.arrival(), &self.losses)
    }

    /// What was acknowledged and is gone.
    pub(super) fn losses(&self) -> &Losses {
        &self.losses
    }

    /// `tells`: whether the script publishes what it has changed.
    pub(super) fn commit(&self, pool: &Pool, commit: &Commit, tells: bool) -> Result<Version, CommitError> {
        const WHAT: &str = "a commit";
        let script = if commit.grows() { &self.growing } else { &self.other };
        let mut request = request::commit(&self.names, &self.outcomes, commit, tells);
        let mut link = pool.link_within(commit.answer_within());
        let mut patience = Patience::of(pool);
        loop {
            link.number += 1;
            request.number(link.lane, link.number);
            let asked = self.arrive(&mut link).and_then(|server| Ok((link.run(script, &request)?, server)));
            let failed = match asked {
                Ok((answer, server)) => match outcome(commit, &answer)? {
                    Outcome::Done(version) => {
                        self.losses.made(commit, version, &server);
                        return Ok(version);
                    }
                    Outcome::Not(error) => return Err(error),
                    // Only who settles makes a number void, and takes the next one.
                    Outcome::Void => return Err(unknown(pool, "its number was used twice")),
                },
                Err(failed @ Failed::Lost(_)) => match self.settle(pool, &mut link)? {
                    (Some(version), server) => {
                        self.losses.made(commit, version, &server);
                        return Ok(version);
                    }
                    (None, _) => failed,
                },
                Err(failed) => failed,
            };
            if !failed.passes() || !patience.again() {
                return Err(failed.for_caller(&pool.address, WHAT).into());
            }
        }
    }

    /// What became of the last commit of the link's lane: its version, or nothing, for ever. And who says so.
    fn settle(&self, pool: &Pool, link: &mut Held<'_>) -> Result<(Option<Version>, Server), CommitError> {
        let mut request = Arguments::default().key(&self.outcomes).arg(OUTCOMES_KEPT_S);
        request.number(link.lane, link.number);
        let mut patience = Patience::of(pool);
        loop {
            let asked = self.arrive(link).and_then(|server| Ok((link.run(&self.settle, &request)?, server)));
            match asked {
                Ok((answer, server)) => {
                    let seen = seen(&answer).ok_or_else(|| unknown(pool, &format!("{answer:?}")))?;
                    return Ok((seen, server));
                }
                Err(failed) if patience.again() => drop(failed),
                Err(failed) => return Err(unknown(pool, &failed.error().to_string())),
            }
        }
    }
}

fn unknown(pool: &Pool, cause: &str) -> CommitError {
    StoreError::Unknown(format!("{}: {cause}", pool.address)).into()
}

/// What an answer of words says.
fn words(answer: &Value) -> Option<Vec<String>> {
    redis::from_redis_value_ref(answer).ok()
}

/// The outcome that was noted: a version, or none if it is void.
fn seen(answer: &Value) -> Option<Option<Version>> {
    let words = words(answer)?;
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["seen", "void"] => Some(None),
        ["seen", version] => Some(Some(Version(version.parse().ok()?))),
        _ => None,
    }
}

fn outcome(commit: &Commit, answer: &Value) -> Result<Outcome, StoreError> {
    let strange =
        || StoreError::Unknown(format!("the server's answer to a commit makes no sense: {answer:?}"));
    let said = words(answer).ok_or_else(strange)?;
    // Checks come before writes, and are counted from one.
    let keys = || commit.checks.iter().map(|c| c.key()).chain(commit.writes.iter().map(|w| w.key()));
    let key = |n: &str| n.parse::<usize>().ok().and_then(|n| keys().nth(n.checked_sub(1)?));
    Ok(match said.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["done", version] => Outcome::Done(Version(version.parse().map_err(|_| strange())?)),
        ["conflict", n] => Outcome::Not(CommitError::Conflict(key(n).ok_or_else(strange)?.clone())),
        ["misfit", n, what] => {
            let key = key(n).ok_or_else(strange)?.to_string();
            let cause = format!("the change does not fit the node: {what}");
            Outcome::Not(StoreError::Damaged { key, cause }.into())
        }
        ["fenced"] => Outcome::Not(StoreError::Fenced.into()),
        ["late"] => Outcome::Void,
        ["seen", _] => seen(answer).flatten().map_or(Outcome::Void, Outcome::Done),
        _ => return Err(strange()),
    })
}
