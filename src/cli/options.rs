//! Mount options: from the text behind `-o` to a resolved request. Nothing else reads the text.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum as _;
use fuser::{MountOption, SessionACL};

use super::Failure;
use super::args::{LockingArgument, seconds};
use crate::document::Locking;
use crate::fuse::mount::Passing;
use crate::namespace::Settings;
use crate::store::embedded::Tuning;

/// What the options say.
#[derive(Debug)]
pub(super) struct Resolved {
    pub(super) kernel_options: Vec<MountOption>,
    pub(super) acl: SessionACL,
    pub(super) settings: Settings,
    pub(super) tuning: Tuning,
    /// As many threads serve requests, if a number was given.
    threads: Option<usize>,
    pub(super) log: Option<PathBuf>,
    /// On a store that other hosts use as well: nothing that they may have changed is remembered for longer.
    pub(super) cache_ttl: Duration,
    /// How long an operation waits for a shared engine that does not answer, before it fails.
    pub(super) patience: Duration,
    /// Whether a shared engine may be one that forgets.
    pub(super) allow_volatile: bool,
    /// The strategy that the volume must have been formatted with, if one was named.
    pub(super) locking: Option<Locking>,
    /// The URLs of the servers that keep the locks of a shared store; none if the store does.
    pub(super) locks: Vec<String>,
    passing: Passing,
    /// Whether there are extended attributes and access control lists.
    pub(super) attributes: bool,
    /// Only the kernel's options of a tree that is mounted already are to be changed.
    pub(super) remount: bool,
    /// Whether there are any of the kernel's.
    pub(super) names_kernels: bool,
    /// Those of the daemon, which stay as they are for as long as it runs.
    pub(super) of_daemon: Vec<String>,
}

/// Without meaning for a store with one owner.
const OF_SHARED: [&str; 6] = ["cache_ttl", "lease", "soft", "hard", "allow-volatile", "allow-weak"];

const KNOWN: &str = "ro, rw, dev, nodev, suid, nosuid, exec, noexec, sync, async, dirsync, atime, relatime, noatime, \
                     xattr, noxattr, allow_other, allow_root, lock_wait=SECONDS, locking=STRATEGY, threads=N, \
                     cache_size=MIB, passthrough=off|read|write, log=FILE; \
                     and of shared stores: cache_ttl=SECONDS, lease=SECONDS, soft[=SECONDS], hard, allow-volatile, \
                     allow-weak, locks=URL, write-back=SIZE";

/// Options of /etc/fstab and mount(8) that are not for a file system, and those that the kernel lists in the mount table
/// and mount(8) passes back when it remounts.
const IGNORED: [&str; 19] = [
    "user_id",
    "group_id",
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "default_permissions",
    "diratime",
    "nodiratime",
    "lazytime",
    "nolazytime",
    "strictatime",
    "nostrictatime",
];

/// What the kernel can change while the tree is mounted.
const OF_KERNEL: [&str; 14] = [
    "ro", "rw", "dev", "nodev", "suid", "nosuid", "exec", "noexec", "sync", "async", "dirsync", "atime",
    "relatime", "noatime",
];

/// What mount(8) passes back when it remounts, out of the mount table, though only a mount can change it.
const PASSED_BACK: [&str; 2] = ["allow_other", "allow_root"];

const THREADS_MAX: usize = 64;
/// On a store that many hosts share.
const THREADS_SHARED: usize = 16;

/// How long operations wait for a shared engine that is away, unless told otherwise (`soft`).
const PATIENCE_HARD: Duration = Duration::from_secs(60);
const PATIENCE_SOFT: Duration = Duration::from_secs(5);

const CACHE_TTL_MAX: Duration = Duration::from_secs(3600);
/// Less would not gather what a program writes at once; more is lost when the daemon dies.
const WRITE_BACK_MIN: u64 = 64 << 10;
const WRITE_BACK_MAX: u64 = 4 << 30;
const LEASE_MIN: Duration = Duration::from_secs(1);
const LEASE_MAX: Duration = Duration::from_secs(600);

impl Resolved {
    /// Resolves the options of one mount, later ones over earlier ones.
    pub(super) fn from_texts(texts: &[OsString], root: bool) -> Result<Self, Failure> {
        let mut resolved = Self {
            // As for any file system: root's mounts have devices and set-user-id programs unless it says otherwise.
            kernel_options: if root { vec![MountOption::Dev, MountOption::Suid] } else { Vec::new() },
            acl: if root { SessionACL::All } else { SessionACL::Owner },
            settings: Settings::default(),
            tuning: Tuning::default(),
            threads: None,
            log: None,
            cache_ttl: Duration::from_secs(1),
            patience: PATIENCE_HARD,
            allow_volatile: false,
            locking: None,
            locks: Vec::new(),
            passing: Passing::Read,
            attributes: true,
            remount: false,
            names_kernels: false,
            of_daemon: Vec::new(),
        };
        for text in texts {
            let text =
                text.to_str().ok_or_else(|| format!("the mount options {} are not UTF-8", text.display()))?;
            for option in text.split(',').filter(|o| !o.is_empty()) {
                resolved.apply(option)?;
                let name = option.split('=').next().unwrap_or_default();
                if OF_KERNEL.contains(&name) {
                    resolved.names_kernels = true;
                } else if name != "remount" && !PASSED_BACK.contains(&name) && !is_ignored(name) {
                    resolved.of_daemon.push(option.to_owned());
                }
            }
        }
        Ok(resolved)
    }

    /// How many threads serve requests.
    pub(super) fn threads(&self, shared: bool) -> usize {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        self.threads.unwrap_or(match shared {
            // Each waits for the engine most of the time.
            true => cores.max(THREADS_SHARED),
            // What waits for locks or the disk has threads of its own; more than cores only take each other's place.
            false => cores.clamp(2, 16),
        })
    }

    /// Those that say something of shared stores only, and nothing of one with one owner.
    pub(super) fn of_shared(&self) -> Vec<&str> {
        let of_shared = |option: &&str| OF_SHARED.contains(&option.split('=').next().unwrap_or_default());
        self.of_daemon.iter().map(String::as_str).filter(of_shared).collect()
    }

    /// Which backing files the kernel is to read and write itself.
    pub(super) fn passing(&self) -> Passing {
        match self.passing {
            // Each write is to be durable, and what the daemon does for that is not known to the kernel.
            Passing::Write if self.kernel_options.contains(&MountOption::Sync) => Passing::Read,
            passing => passing,
        }
    }

    fn apply(&mut self, option: &str) -> Result<(), Failure> {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        match (name, value) {
            ("ro", None) => {
                self.settings.relatime = false;
                self.kernel(MountOption::RO, &MountOption::RW);
            }
            ("rw", None) => self.kernel(MountOption::RW, &MountOption::RO),
            ("dev", None) => self.kernel(MountOption::Dev, &MountOption::NoDev),
            ("nodev", None) => self.kernel(MountOption::NoDev, &MountOption::Dev),
            ("suid", None) => self.kernel(MountOption::Suid, &MountOption::NoSuid),
            ("nosuid", None) => self.kernel(MountOption::NoSuid, &MountOption::Suid),
            ("exec", None) => self.kernel(MountOption::Exec, &MountOption::NoExec),
            ("noexec", None) => self.kernel(MountOption::NoExec, &MountOption::Exec),
            ("sync", None) => self.kernel(MountOption::Sync, &MountOption::Async),
            ("passthrough", Some("off")) => self.passing = Passing::Off,
            ("passthrough", Some("read")) => self.passing = Passing::Read,
            ("passthrough", Some("write")) => self.passing = Passing::Write,
            ("passthrough", Some(value)) => {
                return Err(format!("option passthrough={value}: off, read or write is needed").into());
            }
            ("xattr", None) => self.attributes = true,
            ("noxattr", None) => self.attributes = false,
            ("async", None) => self.kernel(MountOption::Async, &MountOption::Sync),
            ("dirsync", None) => self.kernel_options.push(MountOption::DirSync),
            ("atime" | "relatime", None) => {
                self.settings.relatime = true;
                self.kernel(MountOption::Atime, &MountOption::NoAtime);
            }
            ("noatime", None) => {
                self.settings.relatime = false;
                self.kernel(MountOption::NoAtime, &MountOption::Atime);
            }
            ("remount", None) => self.remount = true,
            ("allow_other", None) => self.acl = SessionACL::All,
            ("allow_root", None) => self.acl = SessionACL::RootAndOwner,
            ("lock_wait", Some(value)) => {
                self.settings.lock_wait =
                    seconds(value).map_err(|e| format!("option lock_wait={value}: {e}"))?;
                if self.settings.lock_wait > Duration::from_secs(86_400) {
                    return Err(format!("option lock_wait={value}: more than a day").into());
                }
            }
            ("locking", Some(value)) => {
                let named = LockingArgument::from_str(value, false).map_err(|_| {
                    format!("option locking={value}: the strategies are tree, document, global and version")
                })?;
                self.locking = Some(named.into());
            }
            ("threads", Some(value)) => self.threads = Some(number(name, value, 1, THREADS_MAX)?),
            ("cache_size", Some(value)) => {
                self.tuning.document_cache_bytes = number(name, value, 1, 1 << 20)? as u64 * (1 << 20);
            }
            ("log", Some("")) => return Err("option log=: the name of a file is needed".into()),
            ("log", Some(value)) => self.log = Some(value.into()),
            ("cache_ttl", Some(value)) => {
                self.cache_ttl = duration(name, value, Duration::ZERO, CACHE_TTL_MAX)?;
            }
            ("lease", Some(value)) => {
                self.settings.lease = duration(name, value, LEASE_MIN, LEASE_MAX)?;
            }
            ("hard", None) => self.patience = PATIENCE_HARD,
            ("soft", None) => self.patience = PATIENCE_SOFT,
            ("soft", Some(value)) => {
                self.patience = duration(name, value, Duration::from_millis(100), CACHE_TTL_MAX)?;
            }
            ("allow-volatile" | "allow-weak", None) => self.allow_volatile = true,
            ("write-back", Some(value)) => {
                self.settings.write_back_bytes =
                    size(value).map_err(|e| format!("option {name}={value}: {e}"))?;
            }
            ("locks", Some(url)) => self.locks.push(url.to_owned()),
            _ if is_ignored(name) => {}
            _ => return Err(format!("unknown mount option `{option}`; the options are {KNOWN}").into()),
        }
        Ok(())
    }

    fn kernel(&mut self, option: MountOption, opposite: &MountOption) {
        self.kernel_options.retain(|o| o != opposite && *o != option);
        self.kernel_options.push(option);
    }
}

fn is_ignored(name: &str) -> bool {
    IGNORED.contains(&name) || name.starts_with("x-") || name == "comment"
}

fn duration(name: &str, value: &str, least: Duration, most: Duration) -> Result<Duration, Failure> {
    match seconds(value) {
        Ok(length) if (least..=most).contains(&length) => Ok(length),
        _ => Err(format!("option {name}={value}: from {least:?} to {most:?} is needed, in seconds").into()),
    }
}

/// A size in bytes, or with K, M or G in units of 1024 bytes and so on.
fn size(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let size = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    size.filter(|size| *size == 0 || (WRITE_BACK_MIN..=WRITE_BACK_MAX).contains(size)).ok_or_else(|| {
        "0 (off), or from 64K to 4G is needed, in bytes or with K, M or G: so much that is written is kept back".to_owned()
    })
}

fn number(name: &str, value: &str, least: usize, most: usize) -> Result<usize, Failure> {
    match value.parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!("option {name}={value}: a number from {least} to {most} is needed").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(text: &str) -> Result<Resolved, Failure> {
        Resolved::from_texts(&[text.into()], true)
    }

    #[test]
    fn later_options_win_and_fstab_s_own_are_ignored() {
        let resolved = resolve("ro,rw,nosuid,x-systemd.automount,nofail,lock_wait=1.5,threads=3").unwrap();
        assert!(resolved.kernel_options.contains(&MountOption::RW));
        assert!(!resolved.kernel_options.contains(&MountOption::RO));
        assert!(!resolved.kernel_options.contains(&MountOption::Suid));
        assert_eq!(resolved.settings.lock_wait, Duration::from_millis(1500));
        assert_eq!((resolved.threads(false), resolved.threads(true)), (3, 3));
        assert_eq!(resolve("").unwrap().threads(true), THREADS_SHARED);
    }

    #[test]
    fn what_a_remount_cannot_change_is_told_from_what_mount_8_passes_back() {
        let passed_back =
            resolve("remount,ro,user_id=0,group_id=0,default_permissions,allow_other,x-y=1,defaults");
        assert!(passed_back.is_ok_and(|r| r.names_kernels && r.of_daemon.is_empty()));
        let given = resolve("remount,lock_wait=9,noxattr").unwrap();
        assert_eq!(
            (given.names_kernels, given.of_daemon.join(",")),
            (false, "lock_wait=9,noxattr".to_owned())
        );
    }

    #[test]
    fn what_only_shared_stores_have_is_known() {
        let resolved = resolve("lease=5,ro,soft,threads=3,cache_ttl=0,softer").map(|_| ());
        assert!(resolved.is_err());
        let resolved = resolve("lease=5,ro,soft,threads=3,cache_ttl=0").unwrap();
        assert_eq!(resolved.of_shared(), ["lease=5", "soft", "cache_ttl=0"]);
    }

    #[test]
    fn extended_attributes_are_there_unless_the_last_word_is_no() {
        let attributes = |text: &str| resolve(text).unwrap().attributes;
        assert_eq!((attributes(""), attributes("noxattr"), attributes("noxattr,xattr")), (true, false, true));
    }

    #[test]
    fn a_strategy_is_named_as_format_names_it() {
        for locking in Locking::ALL {
            assert_eq!(resolve(&format!("locking={locking}")).unwrap().locking, Some(locking));
        }
        assert_eq!(resolve("").unwrap().locking, None);
    }

    #[test]
    fn a_size_may_have_a_unit_and_nothing_is_kept_back_unless_it_is_asked_for() {
        let bytes = |text: &str| resolve(text).unwrap().settings.write_back_bytes;
        assert_eq!((bytes(""), bytes("write-back=0")), (0, 0));
        assert_eq!((bytes("write-back=65536"), bytes("write-back=64K")), (64 << 10, 64 << 10));
        assert_eq!((bytes("write-back=16m"), bytes("write-back=2G")), (16 << 20, 2 << 30));
    }

    #[test]
    fn what_is_not_known_is_named() {
        for bad in [
            "frobnicate",
            "threads=0",
            "threads=x",
            "lock_wait=-1",
            "lock_wait",
            "ro=1",
            "locking",
            "locking=none",
            "cache_ttl=-1",
            "lease=0.5",
            "soft=x",
            "locks",
            "write-back",
            "write-back=",
            "write-back=M",
            "write-back=1K",
            "write-back=5G",
            "write-back=99999999999999999999G",
            "cache_size=99999999",
        ] {
            let error = resolve(bad).unwrap_err().to_string();
            assert!(error.contains(bad.split('=').next().unwrap()), "{error}");
        }
    }
}
