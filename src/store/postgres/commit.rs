//! Commits: sent, refused, sent again, and found out about when the answer was lost.

use std::time::{Duration, Instant};

use tokio_postgres::{Error, Row};

use super::connection::{Call, Connection, Failure, Sql};
use super::plan::{Own, Plan, Step};
use super::pool::{Pool, Use, jittered};
use super::rows::key_values;
use super::tables::{CHANGED, CLOSED, FENCED, HOLD_BACK, IS_LIVE, IS_THERE, LET_GO, MISFIT};
use super::value::Value;
use super::{error, read, whole};
use crate::ambient;
use crate::document::{Document, Key, SessionState, Version};
use crate::store::{Commit, CommitError, Durability, StoreError, Write};

const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";
const COMMIT: &str = "COMMIT";
/// The version of every document that the transaction writes. Drawn first: the statements behind it take it from there.
const DRAW_VERSION: &str = "SELECT nextval('versions')";
const DELAY: &str = "SET LOCAL synchronous_commit = off";
const SET_OUTCOME: &str = "WITH found AS (UPDATE outcome SET number = $2, version = currval('versions'), used = now() \
     WHERE connection = $1 AND NOT closed RETURNING version) \
     SELECT CAST(coalesce((SELECT CAST(version AS text) FROM found), 'lockwood: the connection was given up') AS bigint)";
const CLOSE_OUTCOME: &str =
    "UPDATE outcome SET closed = true WHERE connection = $1 RETURNING number, version";

pub(super) fn commit(pool: &Pool, commit: &Commit) -> Result<Version, CommitError> {
    let plan = Plan::of(commit).map_err(CommitError::Conflict)?;
    let deadline = pool.deadline();
    for fenced in fenced(commit) {
        of_session(pool, HOLD_BACK, fenced)?;
    }
    let done = until_made(pool, &plan, deadline, commit.answer_within());
    if let Err(CommitError::Conflict(_)) = &done {
        for spared in fenced(commit) {
            of_session(pool, LET_GO, spared)?;
        }
    }
    done
}

/// The sessions that a commit fences: their own commits are held back before it.
fn fenced(commit: &Commit) -> impl Iterator<Item = &Key> {
    commit.writes.iter().filter_map(|write| match write {
        Write::Put(key, Document::Session(session)) if session.state == SessionState::Fenced => Some(key),
        _ => None,
    })
}

/// Runs a statement about a session, and returns whether there was a row.
fn of_session(pool: &Pool, sql: &'static str, key: &Key) -> Result<bool, StoreError> {
    let calls = [Call { sql: Sql::Text(sql), params: key_values(key) }];
    let rows = pool
        .read("cannot look at a session", |connection, within| connection.run(&calls, within, &pool.trips))?;
    Ok(rows.first().is_some_and(|rows| !rows.is_empty()))
}

fn until_made(
    pool: &Pool,
    plan: &Plan,
    deadline: Instant,
    answer_within: Option<Duration>,
) -> Result<Version, CommitError> {
    let mut pause = Duration::from_millis(1);
    loop {
        match attempt(pool, plan, deadline, answer_within)? {
            Attempt::Made(version) => return Ok(version),
            Attempt::Again(error) => {
                if ambient::monotonic() >= deadline || !pool.is_waited_for() {
                    return Err(error.into());
                }
                std::thread::sleep(jittered(pause));
                pause = (pause * 2).min(Duration::from_millis(100));
            }
        }
    }
}

enum Attempt {
    Made(Version),
    /// Nothing was changed, and trying again may help; if there is no time left, this is why.
    Again(StoreError),
}

fn attempt(
    pool: &Pool,
    plan: &Plan,
    deadline: Instant,
    answer_within: Option<Duration>,
) -> Result<Attempt, CommitError> {
    // A heartbeat waits for nobody's commit. All others may: for rows, and for a standby.
    let mut pooled = match answer_within {
        Some(within) => pool.take(Use::Sessions, deadline.min(ambient::monotonic() + within))?,
        None => pool.take(Use::All, deadline)?,
    };
    pooled.number += 1;
    let own = Own { connection: pooled.id, number: pooled.number };
    let (calls, is_whole) = match plan.whole(&own) {
        Some(whole) => (vec![whole], true),
        None => (one_by_one(plan, &own), false),
    };
    let left = deadline.saturating_duration_since(ambient::monotonic()).max(Duration::from_millis(100));
    let within = answer_within.map_or(left, |within| within.min(left));
    let done = pooled.connection.run(&calls, within, &pool.trips);
    // Whose row is closed or gone cannot commit any more.
    if let Err(Failure::Refused { error, .. }) = &done
        && says(error, CLOSED)
    {
        pooled.connection.give_up();
    }
    pool.give(pooled);
    if done.is_ok() {
        pool.outages.answered();
    }
    match done {
        Ok(rows) if is_whole => Ok(Attempt::Made(version(rows.first())?)),
        Ok(rows) if plan.writes => Ok(Attempt::Made(version(rows.get(1))?)),
        Ok(_) => Ok(Attempt::Made(Version::default())),
        Err(Failure::Refused { call, error }) => {
            let step = match is_whole {
                true => step_of(plan, &error),
                false => call.checked_sub(if plan.writes { 2 } else { 1 }).and_then(|at| plan.steps.get(at)),
            };
            refused(pool, step, error)
        }
        Err(Failure::Lost(cause)) => {
            if plan.durability == Durability::Delayed {
                return Err(StoreError::Unknown(format!("{}: {cause}", pool.target)).into());
            }
            if plan.is_noted()
                && let Some(version) = outcome(pool, &own, &cause, answer_within)?
            {
                return Ok(Attempt::Made(version));
            }
            Ok(Attempt::Again(error::running(&pool.target, "cannot commit", &Failure::Lost(cause))))
        }
        Err(failure) => Err(error::running(&pool.target, "cannot commit", &failure).into()),
    }
}

/// Which step of a commit that is one statement was refused.
fn step_of<'a>(plan: &'a Plan, error: &Error) -> Option<&'a Step> {
    let error = error.as_db_error()?;
    if error.code().code() == IS_THERE {
        return plan.refused_as_there(error.table());
    }
    plan.steps.get(whole::part_of(error.message())?)
}

/// BEGIN, the version if one is needed, the steps, the outcome or that it does not wait for the disk, COMMIT.
fn one_by_one(plan: &Plan, own: &Own) -> Vec<Call> {
    let mut calls = Vec::with_capacity(plan.steps.len() + 4);
    calls.push(Call::text(BEGIN));
    if plan.writes {
        calls.push(Call::text(DRAW_VERSION));
    }
    calls.extend(plan.steps.iter().map(|step| step.call.clone()));
    if plan.is_noted() {
        let params = vec![Value::Int(own.connection), Value::Int(own.number)];
        calls.push(Call { sql: Sql::Text(SET_OUTCOME), params });
    } else if plan.durability == Durability::Delayed {
        calls.push(Call::text(DELAY));
    }
    calls.push(Call::text(COMMIT));
    calls
}

/// The last number of a row.
fn version(rows: Option<&Vec<Row>>) -> Result<Version, StoreError> {
    read::number(rows).map(Version)
}

fn says(error: &Error, text: &str) -> bool {
    error.as_db_error().is_some_and(|db| db.message().contains(text))
}

fn refused(pool: &Pool, step: Option<&Step>, error: Error) -> Result<Attempt, CommitError> {
    let code = error.code().map_or("", |code| code.code()).to_owned();
    let failed = |error| error::running(&pool.target, "cannot commit", &Failure::Refused { call: 0, error });
    if says(&error, CLOSED) || error::again(&error) {
        return Ok(Attempt::Again(failed(error)));
    }
    Err(match step {
        // Not yet: it is held back for somebody who fences the session, or was until now.
        Some(step) if says(&error, FENCED) && of_session(pool, IS_LIVE, &step.key)? => {
            return Ok(Attempt::Again(failed(error)));
        }
        Some(_) if says(&error, FENCED) => StoreError::Fenced.into(),
        Some(step) if says(&error, CHANGED) || code == IS_THERE => CommitError::Conflict(step.key.clone()),
        Some(step) if says(&error, MISFIT) => {
            let cause = MISFIT.trim_start_matches("lockwood: ").to_owned();
            StoreError::Damaged { key: step.key.to_string(), cause }.into()
        }
        // A count that leaves the numbers, or a document that no table takes.
        Some(step) if matches!(code.as_str(), "23514" | "22003" | "23502") => {
            let cause = error.as_db_error().map_or_else(String::new, |db| db.message().to_owned());
            StoreError::Damaged { key: step.key.to_string(), cause }.into()
        }
        _ => failed(error).into(),
    })
}

/// What became of a commit whose answer was lost: its version if it was made. When this has returned none, it never will be.
fn outcome(
    pool: &Pool,
    own: &Own,
    cause: &str,
    answer_within: Option<Duration>,
) -> Result<Option<Version>, StoreError> {
    let close = [Call { sql: Sql::Text(CLOSE_OUTCOME), params: vec![Value::Int(own.connection)] }];
    let unknown = |text: String| StoreError::Unknown(format!("{}: {cause}; {text}", pool.target));
    let what = "cannot find out what became of a commit";
    let ask = |connection: &mut Connection, within| connection.run(&close, within, &pool.trips);
    let rows = match answer_within {
        Some(within) => pool.read_for(Use::Sessions, what, ambient::monotonic() + within, ask),
        None => pool.read(what, ask),
    };
    let rows = rows.map_err(|error| unknown(error.to_string()))?;
    let row = rows.first().and_then(|rows| rows.first());
    let row = row.ok_or_else(|| unknown("the server does not know the connection any more".to_owned()))?;
    let column = |at| row.try_get::<_, i64>(at).map_err(|error| unknown(error.to_string()));
    let (last, version) = (column(0)?, column(1)?);
    Ok((last == own.number).then(|| Version(version.cast_unsigned())))
}
