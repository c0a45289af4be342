//! The mutation table: for every rule of the protocols, who objects when it is switched off. Owns the order of the checkers.
//!
//! A checker that has never failed proves nothing. So each rule is switched off in turn, and the checkers run until one
//! objects; a rule to which nobody objects is a failure, of a checker or of the rule. With all rules on all must be silent.

mod covered;
mod ended;
mod interleave;
mod mounts;
mod one_lock;
mod sessions;
mod sets;
mod stale;
mod states;
mod strategies;

use lockwood::rules::{self, Rule};

use crate::model::run;
use crate::work::{Workload, simulate};

/// What a checker objected to, and after how much work.
pub(crate) struct Objection {
    /// After how many cases, schedules or states.
    pub(crate) after: u64,
    /// What it saw.
    pub(crate) what: String,
}

/// What the checkers of single functions return: how many cases were sound, or the first that was not.
pub(crate) type Judged = Result<u64, Objection>;

/// Objects after so many sound cases.
pub(crate) fn objection<T>(after: u64, what: impl Into<String>) -> Result<T, Objection> {
    Err(Objection { after, what: what.into() })
}

/// A checker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checker {
    /// A scenario of the model.
    Model(&'static str),
    /// Lock sets against their definition.
    Sets,
    /// The lock sets of the other strategies against what they are for.
    Strategies,
    /// Operations and sessions that were ended from outside.
    Ended,
    /// A commit whose checks are said to be covered by locks, and are not.
    Covered,
    /// A clean-up and a recovery that read from a server that is behind.
    Stale,
    /// Two mount points on the machine's kernel.
    Mounts,
    /// The rules of one lock, as a lock document has them, against a plain re-statement.
    OneLock,
    /// Random events of the lock engine.
    LockStates,
    /// What observers, recoverers and sessions may do.
    Sessions,
    /// Operations of a namespace in the middle of each other's commits.
    Interleavings,
    /// Simulated hosts.
    Simulator(Workload),
}

/// Steps of a scenario, at most.
const STEPS_MAX: usize = 3_000_000;
/// Schedules of the simulator.
const SCHEDULES: u64 = 4_000;

impl Checker {
    /// The name, for people.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Model(scenario) => format!("model {scenario}"),
            Self::Simulator(workload) => format!("simulator {}", workload.name()),
            Self::Sets => "lock sets".to_owned(),
            Self::Strategies => "strategies".to_owned(),
            Self::Ended => "what was ended".to_owned(),
            Self::Covered => "covered checks".to_owned(),
            Self::Stale => "old reads".to_owned(),
            Self::Mounts => "two mounts".to_owned(),
            Self::OneLock => "one lock".to_owned(),
            Self::LockStates => "lock engine".to_owned(),
            Self::Sessions => "sessions".to_owned(),
            Self::Interleavings => "namespace".to_owned(),
        }
    }

    /// What it counts.
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::Model(_) => "states",
            Self::Simulator(_) => "schedules",
            Self::Interleavings => "interleavings",
            _ => "cases",
        }
    }

    /// Runs it, with the rules as they are switched.
    pub(crate) fn run(self) -> Judged {
        match self {
            Self::Model(scenario) => {
                let Some(outcome) = run::run(scenario, STEPS_MAX, 2) else { return Ok(0) };
                let states = outcome.states as u64;
                match outcome.violation {
                    Some((property, actions)) => objection(states, format!("not: {property}; {actions}")),
                    None => Ok(states),
                }
            }
            Self::Sets => sets::judge(),
            Self::Strategies => strategies::judge(),
            Self::Ended => ended::judge(),
            Self::Covered => covered::judge(),
            Self::Stale => stale::judge(),
            Self::Mounts => mounts::judge(),
            Self::OneLock => one_lock::judge(),
            Self::LockStates => states::judge(),
            Self::Sessions => sessions::judge(),
            Self::Interleavings => interleave::judge(),
            Self::Simulator(workload) => {
                for seed in 0..SCHEDULES {
                    if let Some(what) = simulate(workload, seed, false).violation {
                        return objection(seed, what);
                    }
                }
                Ok(SCHEDULES)
            }
        }
    }
}

/// The checkers in the order in which they are asked about a rule: the one whose subject it is, then all others, the cheap
/// ones first.
pub(crate) fn order(rule: Rule) -> Vec<Checker> {
    let first = match rule {
        Rule::SourceAncestorsLocked | Rule::TargetsLockedExclusive => Some("into-each-other"),
        Rule::DestinationAncestorsLocked => Some("ring"),
        Rule::RevalidatedUnderLocks => Some("moved-meanwhile"),
        Rule::DuplicateMarksIgnored => Some("intents-made-and-removed"),
        Rule::IntoItselfRefused => Some("into-each-other"),
        Rule::GlobalOrder => Some("exchanges"),
        Rule::SourceAncestorsChecked => Some("versions-under-the-exchange"),
        Rule::DestinationAncestorsChecked => Some("versions-into-each-other"),
        Rule::SourceEntryChecked => Some("versions-from-one-name"),
        Rule::TargetEntryChecked => Some("versions-onto-one-name"),
        Rule::FenceBeforeRelease => Some("fenced-into-each-other"),
        Rule::IntentsSettledBeforeLocksDropped => Some("intents-fenced-late"),
        Rule::GhostsRemoved => Some("late-into-each-other"),
        Rule::DroppedSessionLeavesQueues => Some("crashes-into-each-other"),
        _ => None,
    };
    let mut order: Vec<Checker> = first.map(Checker::Model).into_iter().collect();
    order.extend([
        Checker::Sets,
        Checker::Strategies,
        Checker::OneLock,
        Checker::LockStates,
        Checker::Sessions,
    ]);
    order.extend([Checker::Covered, Checker::Stale, Checker::Ended, Checker::Interleavings, Checker::Mounts]);
    order.extend(Workload::ALL.into_iter().map(Checker::Simulator));
    let scenarios = run::names(false).into_iter().filter(|name| Some(*name) != first);
    order.extend(scenarios.map(Checker::Model));
    order
}

/// A line of the table.
pub(crate) struct Line {
    /// Which rule was off.
    pub(crate) rule: Rule,
    /// Who objected, to what.
    pub(crate) found: Option<(Checker, Objection)>,
}

/// Switches one rule off and asks the checkers. Rules are switched in the whole process: one caller at a time.
pub(crate) fn try_rule(rule: Rule) -> Line {
    rules::only_off(&[rule]);
    let found = order(rule).into_iter().find_map(|checker| Some((checker, checker.run().err()?)));
    rules::only_off(&[]);
    Line { rule, found }
}

/// All checkers with all rules on. Returns the first objection, which is one too many.
pub(crate) fn objections_to_nothing() -> Option<(Checker, Objection)> {
    rules::only_off(&[]);
    let all = order(Rule::StrongerModeWins);
    all.into_iter().find_map(|checker| Some((checker, checker.run().err()?)))
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const WHAT_MAX: usize = 110;
        let name = self.rule.name();
        match &self.found {
            None => write!(f, "| {name} | nobody | | |"),
            Some((checker, Objection { after, what })) => {
                let what = what.lines().next().unwrap_or_default();
                let short: String = what.chars().take(WHAT_MAX).collect();
                write!(f, "| {name} | {} | {after} {} | {short} |", checker.name(), checker.unit())
            }
        }
    }
}
