//! How many files this process may have open at once, and what share of them each part of it may keep.

use rustix::process::{Resource, getrlimit};

/// As many as the process may have in all are shared out to these, and the rest is for connections, directories and moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shares {
    /// Tables of the database.
    pub(super) tables: usize,
    /// Backing files that were used lately.
    pub(super) backing: usize,
    /// Backing files that the kernel reads and writes itself. Whoever opens one more has it from the daemon.
    pub(super) passed: usize,
}

/// More tables and backing files than these are not worth keeping open.
const TABLES_MAX: usize = 900;
const BACKING_MAX: usize = 512;

impl Shares {
    /// Those of this process, whose limit must not become lower.
    pub(super) fn own() -> Self {
        Self::of(
            getrlimit(Resource::Nofile)
                .current
                .map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX)),
        )
    }

    fn of(most: usize) -> Self {
        let (tables, backing) = ((most / 4).min(TABLES_MAX), (most / 4).min(BACKING_MAX));
        // A quarter is left, as long as that is not much.
        Self { tables, backing, passed: most - tables - backing - (most / 4).min(BACKING_MAX) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_limit_is_shared_out_whole() {
        assert_eq!(Shares::of(1024), Shares { tables: 256, backing: 256, passed: 256 });
        for most in [0, 64, 4096, 1 << 20, usize::MAX] {
            let Shares { tables, backing, passed } = Shares::of(most);
            assert!(tables + backing + passed <= most - (most / 4).min(BACKING_MAX));
        }
    }
}
