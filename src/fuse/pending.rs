//! Whether a thread that waits in a request of ours has been sent a signal.
//!
//! Imports nothing of Lockwood. The kernel would tell by FUSE_INTERRUPT, which `fuser` 0.18.0 answers with ENOSYS before
//! anybody here sees it, and from then on the kernel sends none; the thread then sleeps until it is answered, and not even
//! SIGKILL ends that. So whoever lets a thread wait without a bound looks into /proc now and then.
//!
//! What is hard: an answer of EINTR is good only for a thread that really has a signal to deal with, or the kernel's own
//! number for "start over" would reach the program as an errno. So only what is certain counts: a signal to that very
//! thread, which is also what a deadly signal to its process becomes; and one to the process if the thread is its first,
//! which the kernel then has woken for it. Whatever is blocked does not count.

use std::fs;

/// Whether the thread `thread` of the process `process` has a signal to deal with, for certain. Where /proc does not show
/// it, as across namespaces of processes, it has none.
pub(super) fn is_interrupted(process: u32, thread: u32) -> bool {
    if thread == 0 {
        return false; // Not a process of this namespace.
    }
    let Ok(status) = fs::read_to_string(format!("/proc/{thread}/status")) else { return false };
    has_signal(&status, process == thread)
}

fn has_signal(status: &str, is_first: bool) -> bool {
    let set = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0)
    };
    let of_process = if is_first { set("ShdPnd") } else { 0 };
    (set("SigPnd") | of_process) & !set("SigBlk") != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_counts_if_it_is_the_threads_and_not_blocked() {
        let status = |own: u64, shared: u64, blocked: u64| {
            format!("Name:\tcat\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\n")
        };
        for (own, shared, blocked, first, expected) in [
            (0, 0, 0, true, false),
            (0x100, 0, 0, false, true),
            (0, 2, 0, true, true),
            (0, 2, 0, false, false),
            (2, 2, 2, true, false),
            (0x102, 0, 2, false, true),
        ] {
            let found = has_signal(&status(own, shared, blocked), first);
            assert_eq!(found, expected, "{own} {shared} {blocked} {first}");
        }
        assert!(!has_signal("", true));
    }

    #[test]
    fn this_very_thread_has_none() {
        let process = std::process::id();
        assert!(!is_interrupted(process, process));
        assert!(!is_interrupted(process, 0));
    }
}
