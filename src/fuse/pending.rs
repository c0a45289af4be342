//! Whether a thread that waits in a request of ours has been sent a signal.
//!
//! Imports nothing of Lockwood. The kernel would tell by FUSE_INTERRUPT, which `fuser` 0.18.0 answers with ENOSYS before
//! anybody here sees it, and from then on the kernel sends none; the thread then sleeps until it is answered, and not even
//! SIGKILL ends that. So whoever lets a thread wait for others looks into /proc now and then.
//!
//! What is hard:
//! 1. An answer of EINTR is good only for a thread that really has a signal to deal with, or the kernel's own number for
//!    "start over" would reach the program as an errno. So only what is certain counts: a signal to that very thread, which
//!    is also what a deadly signal to its process becomes; and one to the process if the thread is its first, which the
//!    kernel then has woken for it. Whatever is blocked does not count.
//! 2. Linux starts a lock over that was interrupted, but no rename. So what merely stops a process (`^Z`), and lets it go
//!    on, does not end a rename, which would fail for no reason; the process stops when the rename has ended.

use std::fs;

/// How a call goes on after it was interrupted, if the signal does not end the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// Linux starts it over, unless a handler says otherwise.
    StartedOver,
    /// It fails, with EINTR.
    Failed,
}

/// Whether a thread has a signal to deal with, for certain, that ends a call like that. Where /proc does not show it, as
/// across namespaces of processes, it has none.
pub(super) fn is_interrupted(thread: u32, after: After) -> bool {
    if thread == 0 {
        return false; // Not a process of this namespace.
    }
    let Ok(status) = fs::read_to_string(format!("/proc/{thread}/status")) else { return false };
    has_signal(&status, after)
}

/// The signals that stop a process or let it go on, unless it handles them.
const STOPS: [i32; 5] = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU, libc::SIGCONT];

fn has_signal(status: &str, after: After) -> bool {
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    let set = |name: &str| field(name).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0);
    let is_first = field("Pid").is_some_and(|pid| field("Tgid") == Some(pid));
    let of_process = if is_first { set("ShdPnd") } else { 0 };
    let stops = STOPS.iter().fold(0, |stops, signal| stops | 1_u64 << (signal - 1)) & !set("SigCgt");
    let without = if after == After::Failed { stops } else { 0 };
    (set("SigPnd") | of_process) & !set("SigBlk") & !without != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(own: u64, shared: u64, blocked: u64, caught: u64, thread: u32) -> String {
        format!(
            "Name:\tcat\nTgid:\t7\nPid:\t{thread}\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\n\
             SigBlk:\t{blocked:016x}\nSigCgt:\t{caught:016x}\n"
        )
    }

    #[test]
    fn a_signal_counts_if_it_is_the_threads_and_not_blocked() {
        for (own, shared, blocked, thread, expected) in [
            (0, 0, 0, 7, false),
            (0x100, 0, 0, 8, true),
            (0, 2, 0, 7, true),
            (0, 2, 0, 8, false),
            (2, 2, 2, 7, false),
            (0x102, 0, 2, 8, true),
        ] {
            for after in [After::StartedOver, After::Failed] {
                let found = has_signal(&status(own, shared, blocked, 0, thread), after);
                assert_eq!(found, expected, "{own} {shared} {blocked} {thread}");
            }
        }
        assert!(!has_signal("", After::StartedOver));
    }

    #[test]
    fn what_stops_a_process_ends_only_what_is_started_over() {
        let stop = 1 << (libc::SIGTSTP - 1);
        assert!(has_signal(&status(0, stop, 0, 0, 7), After::StartedOver));
        assert!(!has_signal(&status(0, stop, 0, 0, 7), After::Failed));
        assert!(has_signal(&status(0, stop, 0, stop, 7), After::Failed), "it is handled");
        assert!(has_signal(&status(0, stop | 2, 0, 0, 7), After::Failed));
    }

    #[test]
    fn this_very_thread_has_none() {
        assert!(!is_interrupted(std::process::id(), After::StartedOver));
        assert!(!is_interrupted(0, After::StartedOver));
    }
}
