//! The load: threads that change the tree and write down each operation before and after it, until the daemon dies.

use crate::choose::choose;
use crate::common::rng::Rng;
use crate::common::sys::{self, errno_name};
use crate::common::{self, Res, now};
use crate::ledger::{self, Ledger};
use crate::model::{Body, Model};
use crate::options::{Options, TREE, thread_dir};
use crate::{Verdict, scan};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// What one thread has done.
struct Done {
    acknowledged: u64,
    /// The operation that was in flight when the daemon died, if one was.
    in_flight: Option<String>,
    wrong: Option<String>,
}

/// How an operation ended.
enum End {
    Acknowledged,
    /// The daemon is gone: nobody knows whether it happened.
    Cut,
    Refused(io::Error),
}

/// Errors that say that the filesystem, not the operation, is at an end.
fn is_cut(error: &io::Error) -> bool {
    let cut = [libc::EIO, libc::ENOTCONN, libc::ECONNABORTED, libc::ENODEV, libc::EINTR];
    error.raw_os_error().is_some_and(|errno| cut.contains(&errno))
}

/// Runs until the daemon dies or the time is over.
pub(crate) fn run(options: &Options) -> Res<Verdict> {
    let histories = ledger::replay(&options.ledger)?;
    if let Some((thread, _)) = histories.iter().find(|(_, h)| h.in_flight.is_some()) {
        return Err(format!("thread {thread} has an operation that was not judged yet: run `judge` first"));
    }
    let ledger = Ledger::open(&options.ledger)?;
    let mut starts = Vec::new();
    for thread in 0..options.threads {
        let (model, last) = match histories.get(&thread) {
            Some(history) => (history.model.clone(), history.last),
            None => (Model::new(thread), 0),
        };
        match directory(options, thread) {
            Ok(dir) => starts.push((thread, dir, model, last)),
            Err(e) if is_cut(&e) => {
                println!("acked=0 in-flight=0 ended=cut");
                return Ok(Verdict::Passed);
            }
            Err(e) => return Err(format!("{}: {e}; is it mounted?", options.mount.display())),
        }
    }
    // Whoever kills the daemon waits for this line: replaying a long ledger takes a moment.
    println!("loading");
    let cut = AtomicBool::new(false);
    let done = common::in_parallel("load", starts, |(thread, dir, model, last)| {
        work(options, &ledger, &cut, Worker { thread, dir, model, number: last })
    })?;
    let acknowledged: u64 = done.iter().map(|d| d.acknowledged).sum();
    let in_flight: Vec<&String> = done.iter().filter_map(|d| d.in_flight.as_ref()).collect();
    let ended = if cut.load(Ordering::SeqCst) { "cut" } else { "time" };
    println!("acked={acknowledged} in-flight={} ended={ended}", in_flight.len());
    for wrong in done.iter().filter_map(|d| d.wrong.as_ref()) {
        eprintln!("crash-load: WRONG: {wrong}");
    }
    Ok(if done.iter().any(|d| d.wrong.is_some()) { Verdict::Failed } else { Verdict::Passed })
}

fn directory(options: &Options, thread: usize) -> io::Result<OwnedFd> {
    let path = options.mount.join(TREE).join(thread_dir(thread));
    std::fs::create_dir_all(&path)?;
    sys::open_dir(&path)
}

struct Worker {
    thread: usize,
    dir: OwnedFd,
    model: Model,
    number: u64,
}

fn work(options: &Options, ledger: &Ledger, cut: &AtomicBool, mut worker: Worker) -> Res<Done> {
    // The number goes into the stream, so that each run of one seed does something else.
    let mut rng = Rng::new(options.seed, worker.thread as u64 + worker.number * 64);
    let deadline = now() + options.duration;
    let mut done = Done { acknowledged: 0, in_flight: None, wrong: None };
    while now() < deadline && !cut.load(Ordering::SeqCst) {
        worker.number += 1;
        let (thread, number) = (worker.thread, worker.number);
        let op = choose(&worker.model, number, !options.no_flags, &mut rng);
        ledger.intend(thread, number, &op)?;
        let end = match op.perform(&worker.dir, thread, number) {
            Ok(()) => End::Acknowledged,
            Err(e) if is_cut(&e) => End::Cut,
            Err(e) => End::Refused(e),
        };
        match end {
            End::Acknowledged => {
                ledger.acknowledge(thread, number)?;
                worker.model.apply(number, &op, None);
                done.acknowledged += 1;
            }
            End::Cut => {
                done.in_flight = Some(op.to_text());
                cut.store(true, Ordering::SeqCst);
                break;
            }
            End::Refused(e) => {
                let errno = errno_name(e.raw_os_error().unwrap_or_default());
                done.wrong =
                    Some(format!("thread {thread}: {}: {errno}, though it must succeed", op.to_text()));
                break;
            }
        }
        if rng.chance(3)
            && let Some(wrong) = look(&worker, &mut rng)
        {
            done.wrong = Some(wrong);
            break;
        }
    }
    Ok(done)
}

/// Reads one file back while the load is on.
fn look(worker: &Worker, rng: &mut Rng) -> Option<String> {
    let paths: Vec<&String> = worker.model.paths.keys().collect();
    let path = rng.pick(&paths)?;
    let Some(Body::File(expected)) = worker.model.at(path).map(|o| &o.body) else { return None };
    match scan::read(&worker.dir, path) {
        Ok(bytes) if bytes == **expected => None,
        Ok(bytes) => {
            let difference = scan::first_difference(expected, &bytes);
            Some(format!("thread {}: {path} while mounted: {difference}", worker.thread))
        }
        Err(e) if is_cut(&e) => None,
        Err(e) => Some(format!("thread {}: {path} cannot be read: {e}", worker.thread)),
    }
}
