//! `lockwood check`: the judgement, in words or as JSON.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::Value;

use crate::check::{CHUNKS, Inputs, Judgement, Mode, OBJECT, Phase, Report, judge_in_use, run as judge};
use crate::cli::Failure;
use crate::cli::args::Check;
use crate::cli::output::{print, print_json, spinner};
use crate::cli::place::PATIENCE;
use crate::cli::target::{SharedVolume, Target, no_control, read_control};
use crate::content::{BackingFiles, Chunks, Contents};
use crate::shell::quoted;
use crate::store::StoreError;
use crate::store::embedded::Tuning;
use crate::store::embedded::open::OpenVolume;

/// A check could not run, or not judge everything.
pub(in crate::cli) const EXIT_NOT_JUDGED: u8 = 2;

/// A check opens few files at once.
const BACKING_FILES_OPEN: usize = 64;

pub(in crate::cli) fn run(arguments: &Check) -> Result<ExitCode, Failure> {
    let target = Target::find(&arguments.target)?;
    let volume = target.shared()?;
    let report = match (&target, &volume) {
        (Target::Mount(mount_point), _) if !arguments.collect => online(mount_point)?,
        (Target::Store(store), _) if !arguments.collect => offline(store)?,
        (_, Some(volume)) => shared(volume, arguments.collect)?,
        (_, None) => {
            return Err(format!(
                "--collect: {} is a store in a directory, which collects by itself; leave the option out",
                arguments.target.display()
            )
            .into());
        }
    };
    let count = |name: &str| report["counts"][name].as_u64().unwrap_or_default();
    let code = match (count("violations"), count("changing")) {
        (0, 0) => ExitCode::SUCCESS,
        (0, _) => ExitCode::from(EXIT_NOT_JUDGED),
        _ => ExitCode::FAILURE,
    };
    if arguments.json {
        print_json(&report)?;
    } else {
        print(&words(&report, volume.filter(|_| !arguments.collect).as_ref()))?;
    }
    Ok(code)
}

/// The daemon judges, since it alone has the store open.
fn online(mount_point: &Path) -> Result<Value, Failure> {
    let waiting = spinner("checking".to_owned());
    let text = read_control(mount_point, "check")?.ok_or_else(|| no_control(mount_point, "check"))?;
    waiting.finish_and_clear();
    Ok(serde_json::from_str(&text)?)
}

fn offline(store: &Path) -> Result<Value, Failure> {
    let volume = OpenVolume::open(store, &[], Tuning::default())?;
    let backing = BackingFiles::open(&volume.layout.content(), BACKING_FILES_OPEN)?;
    let inputs =
        Inputs { documents: &*volume.store, live: None, backing: Some(&backing), mode: Mode::Offline };
    let report = judged(judge, &inputs);
    volume.close()?;
    Ok(serde_json::to_value(report?)?)
}

/// Beside whoever else has the volume mounted.
fn shared(volume: &SharedVolume, collect: bool) -> Result<Value, Failure> {
    let (store, volume) = volume.open()?;
    let contents = Contents::shared(Arc::clone(&store), &volume, PATIENCE)?;
    let look = || {
        let snapshot = store.snapshot();
        let inputs = Inputs {
            documents: &*snapshot,
            live: Some(&*store),
            backing: Some(&contents),
            mode: Mode::Shared { sessions: &[] },
        };
        judged(judge_in_use(&*store), &inputs)
    };
    let mut report = look()?;
    if let (true, Contents::Chunks(chunks)) = (collect, &contents) {
        let mut more = true;
        while more && collect_garbage(chunks, &report)? {
            // A report names so much and no more.
            more = report.counts.garbage > report.garbage.len() as u64;
            report = look()?;
        }
    }
    Ok(serde_json::to_value(report)?)
}

/// Removes the chunks and objects among the garbage. Whether there were any.
fn collect_garbage(chunks: &Chunks, report: &Report) -> Result<bool, Failure> {
    let named = |prefix| {
        let documents = report.garbage.iter().map(|garbage| garbage.document.as_str());
        documents.filter_map(|document| document.strip_prefix(prefix)).collect::<Vec<_>>()
    };
    let (files, objects) = (named(CHUNKS), named(OBJECT));
    if !files.is_empty() || !objects.is_empty() {
        // What speaks of none of it now is not to be undone when it is gone.
        chunks.settle()?;
    }
    let mut removed = 0;
    for ino in files.iter().filter_map(|ino| ino.parse().ok()) {
        removed += u64::from(chunks.collect_stray(ino)?);
    }
    if removed > 0 {
        eprintln!("lockwood: removed the chunks of {removed} files that are gone");
    }
    let gone = chunks.collect_objects(objects.into_iter().map(ToOwned::to_owned).collect())?;
    if gone > 0 {
        eprintln!("lockwood: removed {gone} objects that nothing names");
    }
    Ok(removed + gone > 0)
}

fn judged(judge: Judgement, inputs: &Inputs<'_>) -> Result<Report, StoreError> {
    let waiting = spinner("checking".to_owned());
    let report = judge(inputs, &mut |progress| {
        waiting.set_message(match progress.phase {
            Phase::Documents(kind) => format!("reading {}:", kind.name()),
            Phase::Nodes => "judging nodes:".to_owned(),
            Phase::Tree => "following directories:".to_owned(),
            Phase::Backing => "looking at files:".to_owned(),
        });
        waiting.set_position(progress.done);
    });
    waiting.finish_and_clear();
    report
}

/// `volume`: one that many hosts share, of which garbage may have to be collected.
fn words(report: &Value, volume: Option<&SharedVolume>) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut lines = String::new();
    for violation in report["violations"].as_array().into_iter().flatten() {
        let [rule, document, detail] = ["rule", "document", "detail"].map(|field| text(&violation[field]));
        lines.push_str(&format!("{document}: {rule}: {detail}"));
        if let Some(advice) = violation["advice"].as_str() {
            lines.push_str(&format!(" ({advice})"));
        }
        lines.push('\n');
    }
    let count = |name: &str| report["counts"][name].as_u64().unwrap_or_default();
    let shown = report["violations"].as_array().map_or(0, Vec::len) as u64;
    if count("violations") > shown {
        lines.push_str(&format!("and {} more\n", count("violations") - shown));
    }
    lines.push_str(&format!(
        "{} nodes ({} directories), {} entries, {} backing files: {}\n",
        count("nodes"),
        count("directories"),
        count("entries"),
        count("backing_files"),
        match count("violations") {
            0 if count("changing") > 0 => "nothing wrong was found".to_owned(),
            0 => "clean".to_owned(),
            1 => "1 violation".to_owned(),
            many => format!("{many} violations"),
        }
    ));
    if count("changing") > 0 {
        lines.push_str(&format!(
            "{} documents could not be judged: they were being changed at each of several looks; check again when less is \
             going on\n",
            count("changing")
        ));
    }
    if count("garbage") > 0 {
        lines.push_str(&format!(
            "{} leftovers of a crash ({} bytes) are removed in time",
            count("garbage"),
            count("garbage_bytes")
        ));
        if let Some(volume) = volume {
            let url = quoted(&volume.to_string());
            lines.push_str(&format!(
                "; chunks and objects that stay are removed by: lockwood check {url} --collect"
            ));
        }
        lines.push('\n');
    }
    lines
}
