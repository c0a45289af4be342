//! The phases of the benchmark: what each prepares, what it does on the clock and what it clears away.

use crate::common::{Res, sys};
use crate::desk::Desk;
use crate::{data, mix};
use std::io;

/// What is measured.
#[derive(Clone, Copy)]
pub(crate) struct Phase {
    /// The name on the command line and in the table.
    pub(crate) name: &'static str,
    /// Whether it is measured if nothing else is asked for.
    pub(crate) is_default: bool,
    /// Makes what the phase works on.
    pub(crate) prepare: fn(&Desk) -> io::Result<()>,
    /// Whether the kernel is to forget names and inodes before it runs.
    is_cold: bool,
    /// What is on the clock; returns the number of operations.
    pub(crate) run: fn(&Desk) -> io::Result<usize>,
    /// Leaves both directories empty.
    pub(crate) clean: fn(&Desk) -> io::Result<()>,
}

const fn phase(
    name: &'static str,
    prepare: fn(&Desk) -> io::Result<()>,
    run: fn(&Desk) -> io::Result<usize>,
    clean: fn(&Desk) -> io::Result<()>,
) -> Phase {
    Phase { name, is_default: true, prepare, is_cold: false, run, clean }
}

/// One that takes long, or needs root.
const fn asked(phase: Phase) -> Phase {
    Phase { is_default: false, ..phase }
}

const fn cold(phase: Phase) -> Phase {
    Phase { is_cold: true, ..phase }
}

const PHASES: [Phase; 21] = [
    phase("create", nothing, Desk::create_all, unlink),
    phase("stat", create, Desk::stat_all, unlink),
    phase("missing", |desk| desk.miss_all().map(drop), Desk::miss_all, nothing),
    asked(cold(phase("stat-cold", create, Desk::stat_all, unlink))),
    phase("unlink", create, |desk| desk.each(&desk.names, |name| sys::unlink_at(&desk.a, name)), nothing),
    phase(
        "rename",
        create,
        |desk| desk.rename_all(&desk.a, &desk.others),
        |desk| desk.each(&desk.others, |name| sys::unlink_at(&desk.a, name)).map(drop),
    ),
    phase(
        "rename-across",
        create,
        |desk| desk.rename_all(&desk.b, &desk.names),
        |desk| desk.each(&desk.names, |name| sys::unlink_at(&desk.b, name)).map(drop),
    ),
    phase("mkdir", nothing, Desk::mkdir_all, |desk| {
        desk.each(&desk.names, |name| sys::rmdir_at(&desk.a, name)).map(drop)
    }),
    phase(
        "rename-dir",
        |desk| desk.mkdir_all().map(drop),
        |desk| desk.rename_all(&desk.a, &desk.others),
        |desk| desk.each(&desk.others, |name| sys::rmdir_at(&desk.a, name)).map(drop),
    ),
    phase("write", nothing, Desk::write_all, unlink),
    phase("read", write, Desk::read_all, unlink),
    phase("open-warm", |desk| write(desk).and_then(|()| desk.read_all().map(drop)), Desk::read_all, unlink),
    phase("readdir", create, Desk::list_with_stat, unlink),
    phase("fsync", nothing, Desk::write_and_sync_all, unlink),
    phase("remove-tree", Desk::make_tree, |desk| desk.remove_below(&desk.a), nothing),
    phase("clone", nothing, mix::clone, clear),
    phase("build", write, mix::build, clear),
    asked(phase("data-write", nothing, data::write, data::remove)),
    asked(phase("data-read", |desk| data::write(desk).map(drop), data::read, data::remove)),
    asked(phase("data-read-random", |desk| data::write(desk).map(drop), data::read_anywhere, data::remove)),
    asked(phase("data-write-random", |desk| data::write(desk).map(drop), data::write_anywhere, data::remove)),
];

fn nothing(_: &Desk) -> io::Result<()> {
    Ok(())
}

fn create(desk: &Desk) -> io::Result<()> {
    desk.create_all().map(drop)
}

fn write(desk: &Desk) -> io::Result<()> {
    desk.write_all().map(drop)
}

fn unlink(desk: &Desk) -> io::Result<()> {
    desk.each(&desk.names, |name| sys::unlink_at(&desk.a, name)).map(drop)
}

fn clear(desk: &Desk) -> io::Result<()> {
    desk.remove_below(&desk.a)?;
    desk.remove_below(&desk.b)?;
    Ok(())
}

impl Phase {
    /// Those that are measured if nothing else is asked for.
    pub(crate) fn defaults() -> Vec<Self> {
        PHASES.into_iter().filter(|phase| phase.is_default).collect()
    }

    /// The phases of that name, or whose names begin with it and a dash.
    pub(crate) fn named(name: &str) -> Res<Vec<Self>> {
        let begins = |phase: &Self| phase.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('-'));
        let exact: Vec<Self> = PHASES.into_iter().filter(|phase| phase.name == name).collect();
        let all = if exact.is_empty() { PHASES.into_iter().filter(begins).collect() } else { exact };
        if all.is_empty() { Err(format!("--phases {name}: no such phase; see --help")) } else { Ok(all) }
    }

    /// Between preparing and running, once for all threads.
    pub(crate) fn settle(&self) -> Res<()> {
        if !self.is_cold {
            return Ok(());
        }
        // 2: dentries and inodes, so that the filesystem is asked again; file pages stay.
        std::fs::write("/proc/sys/vm/drop_caches", "2")
            .map_err(|e| format!("cannot drop the kernel's caches: {e}; {} needs root", self.name))
    }
}
