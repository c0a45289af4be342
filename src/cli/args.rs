//! The arguments as they are written.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};

use crate::document::{Locking, SessionId};

/// A filesystem whose tree is stored as documents, in which every rename takes tree locks that anyone can read.
#[derive(Debug, Parser)]
#[command(name = "lockwood", version, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = "\
Examples:
  lockwood format /var/lib/tree            make a store
  lockwood mount /var/lib/tree /mnt/tree   mount it
  lockwood locks /mnt/tree                 who holds what, since when, and why
  lockwood break /mnt/tree /projects       what to do when that does not end
  lockwood recover redis://db/0            clean up after hosts that died, with no mount there
  lockwood umount /mnt/tree

As mount(8) calls it: lockwood STORE MOUNTPOINT -o OPTIONS
In /etc/fstab:        /var/lib/tree  /mnt/tree  fuse.lockwood  defaults  0  0")]
pub(super) struct Arguments {
    #[command(subcommand)]
    pub(super) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    Format(Format),
    Mount(Mount),
    Umount(Umount),
    #[command(hide = true)]
    Keep(Keep),
    Locks(Locks),
    Lock(Lock),
    Break(Break),
    Recover(Recover),
    Sessions(Sessions),
    Get(Get),
    Check(Check),
    Status(Status),
}

/// Make a store with an empty tree.
#[derive(Debug, Args)]
#[command(after_help = "\
Locking is chosen here for good. `tree` is right unless you are comparing: the others cost more, or let renames fail.

Examples:
  lockwood format /var/lib/tree
  lockwood format /var/lib/tree --locking global
  lockwood format 'postgres://lockwood@db.example/lockwood?schema=tree'
  lockwood format redis://db.example/0 --content s3://bucket/trees

A password is better not in the URL but in the environment (LOCKWOOD_PASSWORD) or a file; see the docs
of each engine. It is taken out of the arguments at once.")]
pub(super) struct Format {
    /// A directory that does not exist yet or is empty; or the URL of a volume on a server that many
    /// hosts share: postgres://, redis:// or rediss://, opensearch+http(s):// or
    /// elasticsearch+http(s):// (docs/postgresql.md, docs/redis.md, docs/opensearch.md)
    pub(super) store: OsString,
    /// How renames lock; recorded in the volume
    #[arg(long, value_enum, default_value = "tree")]
    pub(super) locking: LockingArgument,
    /// Where the bytes of large files go instead of into the server's documents: an object store, or a directory that all
    /// hosts see; recorded in the volume (docs/contents.md)
    #[arg(long, value_name = "s3://BUCKET/PREFIX|file:///DIR")]
    pub(super) content: Option<String>,
    /// Take a server that forgets the volume when it restarts
    #[arg(long)]
    pub(super) allow_volatile: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum LockingArgument {
    /// Shared locks on the ancestors of both paths, exclusive ones on both targets
    Tree,
    /// An exclusive lock on every path of what moves; costs as much as the subtree is large
    Document,
    /// One exclusive lock for the whole volume: one rename at a time
    Global,
    /// No locks: versions alone, and retries; a rename that keeps losing fails with EBUSY
    Version,
}

impl From<LockingArgument> for Locking {
    fn from(argument: LockingArgument) -> Self {
        match argument {
            LockingArgument::Tree => Self::Tree,
            LockingArgument::Document => Self::Document,
            LockingArgument::Global => Self::Global,
            LockingArgument::Version => Self::Version,
        }
    }
}

/// Mount a store, at one place or several; returns when the tree is there.
///
/// With several mount points one process serves them all, each as a file system of its own to the kernel: renames between
/// directories run one at a time within each and at once across them. What is changed through one is seen through the
/// others at once. `lockwood umount` takes away one; the store is closed after the last.
#[derive(Debug, Args)]
#[command(after_help = "\
Options (-o, as in mount(8)):
  ro, rw, dev, nodev, suid, nosuid, exec, noexec, sync, async, dirsync
  relatime, noatime      keep access times as relatime does (default; also
                         atime), or not at all
  allow_other            let other users in (default for root); allow_root:
                         root only
  lock_wait=SECONDS      how long a rename waits for locks before EBUSY
                         (default 30, at most 86400)
  threads=N              threads that serve requests at most, 1 to 64 (default
                         by the number of cores; on a shared store at least
                         16)
  locking=STRATEGY       refuse a store that was formatted with another one:
                         tree, document, global, version
  cache_size=MIB         memory for documents (default 64)
  passthrough=WHAT       which large files the kernel reads and writes itself,
                         at the speed of the disk: those that are open to be
                         read (read, the default), all (write; see
                         docs/semantics.md for what that costs), or none (off).
                         Where it cannot (Linux before 6.9, not root, several
                         mount points, a shared store) `lockwood status` says
                         so
  xattr, noxattr         have extended attributes and access control lists
                         (default), or none: then `ls -l` of many files takes
                         half as long and less (docs/semantics.md)
  log=FILE               where the daemon logs to (default: the file `log` in
                         the store; of a shared store mnt-tree.log for
                         /mnt/tree, and mnt-my%-tree.log for /mnt/my-tree, in
                         /var/log/lockwood, or if not root in
                         $XDG_STATE_HOME/lockwood)
Of volumes that many hosts share:
  cache_ttl=SECONDS      nothing that others may have changed is remembered for
                         longer (default 1, at most 3600)
  lease=SECONDS          without a sign of life others take this mount for dead
                         (default 10, 1 to 600); with --locks one for all
  hard, soft[=SECONDS]   how long each request of an operation waits for a
                         server that is away before it fails (hard, the
                         default: 60; soft: 5, or 0.1 to 3600); to mount waits
                         as long, for PostgreSQL and Redis 10 s at most
  allow-volatile         take a server that may forget what it has
                         acknowledged: the volume when it restarts (Redis), or
                         changes that are not on disk yet (OpenSearch);
                         allow-weak is the same
  locks=URL              a lock server, as in --locks; once for each server
  write-back=SIZE        keep up to SIZE written bytes back (64K to 4G) and
                         commit them together: at fsync and close, and after 5
                         s. The death of the daemon loses them (default 0: off,
                         each write is a commit); docs/contents.md
Options of /etc/fstab that are not for the file system (noauto, nofail, x-...)
are ignored.

Examples:
  lockwood mount /var/lib/tree /mnt/tree
  lockwood mount /var/lib/tree /mnt/tree -o ro,lock_wait=5
  lockwood mount /var/lib/tree /mnt/one /mnt/two
  lockwood mount postgres://ada@db/trees /mnt/tree --locks redis://a,b,c
  lockwood mount /var/lib/tree /mnt/tree --foreground")]
pub(super) struct Mount {
    /// The store: a directory, or the URL of a volume that many hosts share
    pub(super) store: OsString,
    /// Directories, none of them within another
    #[arg(required = true, value_name = "MOUNT_POINT")]
    pub(super) mount_points: Vec<PathBuf>,
    /// Mount options, separated by commas
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub(super) options: Vec<OsString>,
    /// Keep the locks of a shared volume on these Redis servers, by the Redlock algorithm: one, three or five that know
    /// nothing of each other (docs/redlock.md). All mounts of the volume must name the same
    #[arg(long, value_name = "redis://A,B,C")]
    pub(super) locks: Vec<String>,
    /// Stay in the foreground and log to standard error
    #[arg(long, short = 'f')]
    pub(super) foreground: bool,
    /// Serve in the background; what `mount` starts itself with
    #[arg(long, hide = true)]
    pub(super) daemon: bool,
    /// Read-only, as mount(8) passes it on
    #[arg(short = 'r', hide = true)]
    pub(super) read_only: bool,
    /// Passed on by mount(8), without effect
    #[arg(short = 'n', hide = true)]
    pub(super) no_mtab: bool,
    /// Passed on by mount(8), without effect
    #[arg(short = 's', hide = true)]
    pub(super) sloppy: bool,
    /// Passed on by mount(8), without effect
    #[arg(short = 'v', hide = true)]
    pub(super) verbose: bool,
}

/// Unmount, and wait until the mount's session has ended; after the last mount, until the store is closed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockwood umount /mnt/tree
  lockwood umount --force /mnt/tree        its daemon stands still, and programs wait for it")]
pub(super) struct Umount {
    /// The mount point
    pub(super) mount_point: PathBuf,
    /// Take the tree away now; programs that use it go on until they close their files
    #[arg(long)]
    pub(super) lazy: bool,
    /// Take the tree away now, and end with an error what programs ask for and wait for there; also where else the
    /// same mount is seen, by mount --bind
    #[arg(long, conflicts_with = "lazy")]
    pub(super) force: bool,
}

/// Stand by a daemon; what `mount` starts beside itself.
#[derive(Debug, Args)]
pub(super) struct Keep {
    /// The process that serves the mount
    pub(super) daemon: i32,
    /// The mount point
    pub(super) mount_point: PathBuf,
    /// Where to say that it has died; else on standard error
    #[arg(long)]
    pub(super) log: Option<PathBuf>,
}

/// List the locks that are held, by whom, since when and why.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockwood locks /mnt/tree
  lockwood locks /mnt/tree --tree --watch
  lockwood locks /mnt/tree --watch=0.5 > locks.log
  lockwood locks redis://db.example/0 --advisory
  lockwood locks /mnt/tree --json | jq '.[] | select(.waiters != [])'")]
pub(super) struct Locks {
    /// A mount point, a store, or the URL of a volume on a shared engine
    pub(super) target: PathBuf,
    /// Draw the part of the tree that is locked
    #[arg(long)]
    pub(super) tree: bool,
    /// Go on until ^C, and look again every so many seconds. A terminal is redrawn; else each look is appended
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    #[arg(value_parser = interval)]
    pub(super) watch: Option<std::time::Duration>,
    /// Show the locks that programs hold on files too (flock, fcntl), where many mounts share them; a file by its inode,
    /// which `find DIR -inum INODE` finds. In JSON each element then has a type, `tree` or `advisory`
    #[arg(long)]
    pub(super) advisory: bool,
    /// Print the lock documents as a JSON array; with --watch, one line a look
    #[arg(long)]
    pub(super) json: bool,
}

/// List the sessions: who has the volume mounted, where, since when, and what they hold and wait for.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  lockwood sessions /mnt/tree\n  lockwood sessions /var/lib/tree --json")]
pub(super) struct Sessions {
    /// A mount point, a store, or the URL of a volume on a shared engine
    pub(super) target: PathBuf,
    /// Print the sessions as a JSON array
    #[arg(long)]
    pub(super) json: bool,
}

/// Break a lock, or fence a session: for whoever must go on while a holder does not.
///
/// The operations that hold the lock are fenced first and their locks released then, so nothing of them takes effect
/// afterwards; what they had done before stays, and the output says which it was. A session that is fenced changes nothing
/// any more; its mount can be read, and is to be unmounted and mounted again. Through a mount only root and the user who
/// mounted may do this. On a volume that many hosts share it needs no mount: whoever can open the URL may break. Locks are
/// broken there by fencing the sessions that hold them (--session). Exits with 1, and changes nothing, if there is no such
/// lock or session, or if it is live and --force is missing.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockwood break /mnt/tree /clinton/projects            says who holds the lock, and what --force would do
  lockwood break /mnt/tree %2Fclinton%2Fprojects --force
  lockwood break /mnt/tree /clinton --session --force   fences the sessions that hold it
  lockwood break /mnt/tree b5320b61504c29ad --force     fences this session
  lockwood break redis://db/0 b5320b61504c29ad --force  the same, from any host")]
pub(super) struct Break {
    /// A mount point, or the URL of a volume on a shared engine
    pub(super) target: PathBuf,
    /// A path in the volume, the id of its lock, or the id of a session
    #[arg(value_name = "LOCK-OR-SESSION")]
    pub(super) what: OsString,
    /// Break what is held by a session that is at work, too
    #[arg(long)]
    pub(super) force: bool,
    /// Of a lock: fence the whole sessions that hold it
    #[arg(long)]
    pub(super) session: bool,
    /// Print what was broken as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Recover what dead sessions left, where no mount does it.
///
/// The mounts of a volume that many hosts share do this for each other; this is for when none is left, from any host. It
/// watches the heartbeats of all sessions. One whose heartbeat stands still for a whole lease, or whose process was of this
/// host and is gone, is declared dead and cleaned up after: its locks are released, also those of programs (flock, fcntl),
/// and what it had open without a name is removed. A session that shows that it lives is left alone. Without SESSION,
/// commits that name no session and were cut short are settled, too. Whoever can open the URL may do this; a password as
/// for `mount`. A store in a directory that nobody has mounted is recovered as the next mount would do it. Exits with 0 if
/// nothing dead is left; with 1 if SESSION lives or is not there, or if something failed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockwood recover 'postgres://lockwood@db.example/lockwood'
  lockwood recover redis://db.example/0 b5320b61504c29ad    this session alone
  lockwood recover /mnt/tree                                the volume that is mounted there
  lockwood recover /var/lib/tree                            a store that nobody has mounted
  lockwood recover redis://db.example/0 --json | jq '.recovered[].session.host'")]
pub(super) struct Recover {
    /// The URL of a volume on a shared engine, a mount point, or a store
    pub(super) target: PathBuf,
    /// Only this session
    pub(super) session: Option<SessionId>,
    /// Print what was done as JSON: `recovered`, `live`, `of_no_session` and `crashed`
    #[arg(long)]
    pub(super) json: bool,
}

/// Hold a lock on a mounted path while a command runs.
///
/// Shared: the path is not renamed, and neither is a directory above it. Exclusive: nothing below it is renamed either.
/// A volume formatted with --locking version has no locks to hold.
/// Exits with the command's code, or with 128 and the number of the signal that ended it; with 75 if the lock was not free
/// in time, or somebody broke it before; with 69 if it could not be asked for; with 76 if it was lost while the
/// command ran, which goes on then, with a warning; with 127 if there is no such command, and 126 if it cannot be run.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockwood lock /mnt/tree/projects -- tar -cf projects.tar -C /mnt/tree projects
  lockwood lock --mode shared --wait 5 /mnt/tree/a -- sleep 60")]
pub(super) struct Lock {
    /// What to lock
    pub(super) path: PathBuf,
    /// How to lock it
    #[arg(long, value_enum, default_value = "exclusive")]
    pub(super) mode: ModeArgument,
    /// How many seconds to wait for it
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub(super) wait: std::time::Duration,
    /// The command, after `--`
    #[arg(last = true, required = true)]
    pub(super) command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum ModeArgument {
    /// The path stays where it is
    Shared,
    /// Nothing at or below the path is renamed
    Exclusive,
}

/// Print a document as JSON.
#[derive(Debug, Args)]
#[command(after_help = "\
Documents: volume, node:INODE, entry:PARENT:NAME, content:INODE,
chunk:INODE:INDEX, xattr:INODE:NAME, orphan:INODE, session:ID, lock:ID,
advisory:INODE. Names and lock ids are URL-encoded.

Examples:
  lockwood get /mnt/tree node:1
  lockwood get /mnt/tree entry:1:read%20me.txt
  lockwood get /mnt/tree lock:%2Fprojects")]
pub(super) struct Get {
    /// A mount point, a store, or the URL of a volume on a shared engine
    pub(super) target: PathBuf,
    /// Which document
    pub(super) document: String,
}

/// Check every invariant of a volume.
///
/// Exits with 0 if all hold, with 1 if not (each violation is named), with 2 if the check could not run.
///
/// A volume may be in use meanwhile. On engines without snapshots (Redis, OpenSearch) what seems wrong is looked at again,
/// up to five times; if it was being changed each time, that is said, and the exit code is 2 if nothing else is wrong.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  lockwood check /mnt/tree\n  lockwood check /var/lib/tree --json")]
pub(super) struct Check {
    /// A mount point, a store, or the URL of a volume on a shared engine
    pub(super) target: PathBuf,
    /// Print the whole report as JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Remove the chunks of files that are gone, and the objects that nothing names, of a volume that is named by its URL
    #[arg(long)]
    pub(super) collect: bool,
}

/// Say what a mount or a store is, and what it has done.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  lockwood status /mnt/tree --json")]
pub(super) struct Status {
    /// A mount point, a store, or the URL of a volume on a shared engine
    pub(super) target: PathBuf,
    /// Print as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// A number of seconds, fractions allowed.
pub(super) fn seconds(text: &str) -> Result<std::time::Duration, String> {
    let number: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    std::time::Duration::try_from_secs_f64(number).map_err(|_| "not a time to wait".to_owned())
}

/// A time between two looks.
fn interval(text: &str) -> Result<std::time::Duration, String> {
    const SHORTEST: std::time::Duration = std::time::Duration::from_millis(50);
    match seconds(text)? {
        interval if interval < SHORTEST => Err("the shortest is 0.05".to_owned()),
        interval => Ok(interval),
    }
}

/// mount(8) calls `lockwood STORE MOUNTPOINT -o OPTIONS`: without a verb, and then the verb is `mount`. A word that can be
/// no store is a verb that somebody has mistyped.
pub(super) fn with_verb(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let is_verb = |text: &str| text == "help" || Arguments::command().find_subcommand(text).is_some();
    let may_be_store = |word: &OsString| word.as_encoded_bytes().contains(&b'/') || Path::new(word).exists();
    let store_first = arguments.len() > 2
        && !arguments[1].as_encoded_bytes().starts_with(b"-")
        && !arguments[1].to_str().is_some_and(is_verb)
        && may_be_store(&arguments[1]);
    if store_first {
        arguments.insert(1, "mount".into());
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_calling_form_of_mount_8() {
        let call = |words: &[&str]| with_verb(words.iter().map(OsString::from));
        assert_eq!(call(&["lockwood", "/s", "/m", "-o", "rw"])[1], "mount");
        assert_eq!(call(&["lockwood", "check", "/m"])[1], "check");
        assert_eq!(call(&["lockwood", "--help", "x"])[1], "--help");
        let mistyped = Arguments::try_parse_from(call(&["lockwood", "unmount", "/m"])).unwrap_err();
        assert!(mistyped.to_string().contains("'umount'"), "{mistyped}");
        assert!(Arguments::try_parse_from(call(&["lockwood", "/s", "/m", "-o", "rw,nofail", "-n"])).is_ok());
        for watch in ["--watch", "--watch=0.5"] {
            assert!(Arguments::try_parse_from(call(&["lockwood", "locks", watch, "/m"])).is_ok());
        }
        assert!(Arguments::try_parse_from(call(&["lockwood", "locks", "--watch=0", "/m"])).is_err());
        assert!(
            Arguments::try_parse_from(call(&["lockwood", "mount", "/s", "/m", "/n", "-o", "rw"])).is_ok()
        );
        assert!(Arguments::try_parse_from(call(&["lockwood", "mount", "/s"])).is_err());
    }
}
