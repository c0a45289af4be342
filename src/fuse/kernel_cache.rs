//! What the kernel behind one mount may keep, and how it learns what was changed through the other mounts.
//!
//! A mount alone lets its kernel keep names and attributes for ever: every change goes through that kernel. With several
//! mounts each is told of the others' changes between their commit and their reply ([`Watcher`]), and only if its kernel
//! knows the directory or the inode in question: [`KernelCache::give`] and [`KernelCache::take_back`] keep account of what
//! it was given and has not forgotten. So subtrees that one mount alone uses cost nobody else anything.
//!
//! What is hard:
//! 1. A handler that waits until another mount's kernel has let go of a name may deadlock: the kernel takes the lock of
//!    the parent directory for that, which whoever waits for a handler of ours may hold. So names are not let go of one by
//!    one: FUSE_NOTIFY_INC_EPOCH (Linux 6.16) takes no lock, and makes the kernel ask again for every name that it
//!    looked up before. Where it is missing, several mounts let their kernels keep no names at all.
//! 2. A reply may be under way while a change is made, and reach the kernel after the notice. The kernel notes the epoch
//!    *before* it asks, so a name that it learns from an old answer is of an old epoch. To ask for a name it needs its
//!    directory, which it was given in an earlier reply and has not forgotten: the directory is known here before the
//!    answer is read. So either the change finds the directory known, and the epoch makes the answer old; or nobody asked
//!    yet. That holds for names that do not exist, too.
//! 3. Attributes have versions that a notice raises (no lock of the inode is taken for that). The kernel honours them in
//!    answers to GETATTR alone, and only for an inode that it has when the notice comes. So with several mounts every
//!    other answer (LOOKUP, CREATE, SETATTR, ...) has attributes that are good for one use, and READDIRPLUS, for which the
//!    kernel notes the epoch too late, is not offered.
//! 4. A kernel has one place for a directory. Where it has an old one, a rename(2) that names the directory where it is now
//!    is refused by the kernel itself (ESTALE), until a look has found it there. So the kernels that know where it
//!    was or is are told to let go of these names, by threads ([`Names`]), as by 1. a handler may not; the rename waits for
//!    that when it has given back its locks, and not for long, since two renames may wait for each other so.
//! 5. What is read may not come from pages that are older than what another mount has written, nor end where the file
//!    ended before: a size that the kernel asks for is dropped if a notice overtakes it. So with several mounts read(2)
//!    always asks the daemon (FOPEN_DIRECT_IO). Maps alone have pages. These can be dropped only when nobody waits for
//!    them to be read, so that is the work of a thread that serves no requests ([`Notices`]): a map sees what is written
//!    elsewhere soon, not at once.
//! 6. What other hosts change is told when it has happened, late, twice or never ([`Listener`]). So with other hosts nothing
//!    that the kernel is given lasts longer than the cache's time to live, and names are let go of one by one, by threads
//!    that may wait.
//!    After a gap the kernel is told of the bytes of every file that it has open.
//!    What a rename moves beside what the kernel knows is told apart by what it was told ([`Beliefs`]). Whether it has an
//!    old place for a directory (4.) is known by [`Known`]: then it lets go of what is below before it is told the new
//!    one ([`Below`]), by FUSE_NOTIFY_PRUNE (Linux 6.18), which takes no lock of a directory and leaves alone what is in
//!    use.
//! 7. A map ends where the kernel thinks that the file ends, and a fault does not ask. Who opens a file, asks for its size
//!    and maps it is to find all that was closed before. So a late notice must not overtake the answer of that size: an open
//!    notes the version that it has found ([`KernelCache::opened`]), and notices up to it are not passed on any more.

use std::io;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use fuser::{FopenFlags, InitFlags, Notifier};
use parking_lot::RwLock;

use super::beliefs::{Belief, Beliefs};
use super::below::Below;
use super::connection::Connection;
use super::convert::FOREVER;
use super::known::{Given, Known, Shard};
use super::names::Names;
use super::notices::Notices;
use super::places::{FoundIn, Places};
use crate::ambient;
use crate::document::{Ino, Key, Name, Version};
use crate::namespace::Watcher;
use crate::rules::{self, Rule};
use crate::store::{Listener, Notice, Write};

/// Who else changes the same tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// Nobody.
    Alone,
    /// Other mounts of this process.
    Several,
    /// Other hosts, whose notices come late or never: nothing is kept for longer than this.
    Hosts(Duration),
}

/// What is left of `ttl`. An answer may have been true for the last time when it was begun to be looked for, so the time
/// that this took counts, and a store that is slow to answer makes nothing older than a quick one.
fn left_of(ttl: Duration, asked: Instant) -> Duration {
    ttl.saturating_sub(ambient::monotonic().saturating_duration_since(asked))
}

/// Nobody waits longer until a kernel, another one or his own, has let go of the names of a directory that was moved.
const SETTLE_WAIT: Duration = Duration::from_millis(20);

/// The account of one kernel.
pub(super) struct KernelCache {
    sharing: Sharing,
    /// What the kernel was given and has not forgotten. Empty in a mount alone.
    known: Known,
    connection: RwLock<Option<Connection>>,
    pub(super) notices: Notices,
    names: Names,
    /// What it takes names for that other hosts may change.
    pub(super) beliefs: Beliefs,
    /// Where it has directories. Empty where no other host moves any.
    places: Places,
    /// What it is to let go of to find a directory where another host has put it.
    below: Below,
    /// Whether names of directories that were moved may still be on their way.
    unsettled: AtomicBool,
    /// How often this kernel was told of a change through another mount.
    told: AtomicU64,
}

impl KernelCache {
    /// Without a kernel yet.
    pub(super) fn new(sharing: Sharing) -> Self {
        let misled = match sharing {
            Sharing::Hosts(ttl) => Some(ttl),
            Sharing::Alone | Sharing::Several => None,
        };
        Self {
            sharing,
            known: Known::new(),
            connection: RwLock::default(),
            notices: Notices::new(),
            names: Names::new(),
            beliefs: Beliefs::new(misled),
            places: Places::default(),
            below: Below::new(misled.is_some()),
            unsettled: AtomicBool::new(false),
            told: AtomicU64::new(0),
        }
    }

    /// From here on there is a kernel to tell, through `device`.
    pub(super) fn attach(&self, notifier: Notifier, device: OwnedFd) -> io::Result<()> {
        let connection = Connection::new(notifier.clone(), device);
        if self.sharing != Sharing::Alone && !connection.has_epochs() {
            log::warn!(
                "this kernel has no FUSE_NOTIFY_INC_EPOCH (Linux 6.16): it may keep no names while several mount \
                 points are served, and asks for each every time"
            );
        }
        if self.sharing != Sharing::Alone {
            self.names.start(&notifier)?;
        }
        self.notices.start(notifier)?;
        *self.connection.write() = Some(connection);
        Ok(())
    }

    /// The mount is gone: nobody is told any more.
    pub(super) fn close(&self) {
        drop(self.connection.write().take());
        self.notices.close();
        self.names.close();
    }

    /// What to ask of the kernel beyond what every mount asks.
    pub(super) fn capabilities(&self) -> InitFlags {
        match self.sharing {
            Sharing::Alone => InitFlags::FUSE_DO_READDIRPLUS | InitFlags::FUSE_READDIRPLUS_AUTO,
            // Without the last two the kernel keeps advisory locks itself, for this mount alone.
            Sharing::Several | Sharing::Hosts(_) => {
                InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP
                    | InitFlags::FUSE_POSIX_LOCKS
                    | InitFlags::FUSE_FLOCK_LOCKS
            }
        }
    }

    /// How long the kernel may keep what it is told of a name, for which it asked at `asked`.
    pub(super) fn name_ttl(&self, asked: Instant) -> Duration {
        let has_epochs = || self.connection.read().as_ref().is_some_and(Connection::has_epochs);
        match self.sharing {
            Sharing::Alone => FOREVER,
            Sharing::Several if has_epochs() => FOREVER,
            Sharing::Several => Duration::ZERO,
            Sharing::Hosts(ttl) => left_of(ttl, asked),
        }
    }

    /// How long the kernel may keep the attributes for which it asked by GETATTR, which notices reach, at `asked`.
    pub(super) fn asked_ttl(&self, asked: Instant) -> Duration {
        match self.sharing {
            Sharing::Alone | Sharing::Several => FOREVER,
            Sharing::Hosts(ttl) => left_of(ttl, asked),
        }
    }

    /// How long the kernel may keep attributes that come with an answer to something else, for which it asked at `asked`.
    pub(super) fn attribute_ttl(&self, asked: Instant) -> Duration {
        match self.sharing {
            Sharing::Alone => FOREVER,
            Sharing::Several => Duration::ZERO,
            Sharing::Hosts(ttl) => left_of(ttl, asked),
        }
    }

    /// With what a file is opened.
    pub(super) fn open_flags(&self) -> FopenFlags {
        match self.sharing {
            Sharing::Alone => FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH,
            // A close gives up locks.
            Sharing::Several | Sharing::Hosts(_) => FopenFlags::FOPEN_DIRECT_IO,
        }
    }

    /// Whether the end of a file that the kernel knows may be an old one, when it appends.
    pub(super) fn end_may_be_old(&self) -> bool {
        self.sharing != Sharing::Alone
    }

    /// What the kernel knows of the attributes of `ino` may be old, and is needed anew.
    pub(super) fn ask_again(&self, ino: Ino) {
        if let Sharing::Hosts(_) = self.sharing
            && let Some(connection) = &*self.connection.read()
        {
            connection.attributes(ino);
        }
    }

    /// The kernel is about to be told that a file is open, which was found at this version. It asks again for what it knows
    /// of it, and hears of no change up to that version any more.
    pub(super) fn opened(&self, ino: Ino, at: Version) {
        let Sharing::Hosts(_) = self.sharing else { return };
        let connection = self.connection.read();
        let mut known = self.known.of(ino);
        if let Some(given) = known.get_mut(&ino) {
            given.opened = given.opened.max(at);
        }
        if let Some(connection) = &*connection {
            connection.attributes(ino);
        }
        drop(known);
        // What is on its way already was sent before.
        self.notices.settle(ino);
    }

    /// Whether the kernel is to be told of a change that was made at this version, if that is known: it has the inode, and
    /// no open has found the change. While what is returned is kept no open is answered that does.
    fn is_news(&self, ino: Ino, at: Option<Version>) -> Option<impl Deref<Target = Shard>> {
        let known = self.known.of(ino);
        let is_news = match known.get(&ino) {
            Some(given) => at.is_none_or(|at| at > given.opened),
            None => ino == Ino::ROOT,
        };
        is_news.then_some(known)
    }

    /// How often this kernel was told of a change through another mount.
    pub(super) fn told(&self) -> u64 {
        self.told.load(Relaxed)
    }

    /// The kernel is about to be given an inode: called before the reply is sent.
    pub(super) fn give(&self, ino: Ino, is_file: bool) {
        if self.sharing != Sharing::Alone {
            self.known.give(ino, is_file);
        }
    }

    /// The kernel is about to be told what a name leads to, if to anything; it has asked at `asked`.
    pub(super) fn learns(&self, directory: Ino, name: &[u8], told: Option<Belief>, asked: Instant) {
        if !self.beliefs.matter() {
            return;
        }
        self.beliefs.learns(directory, name, told);
        let connection = self.connection.read();
        let Some(connection) = connection.as_ref().filter(|connection| connection.has_prune()) else {
            return;
        };
        self.below.learns(directory, name, told);
        let (Some(found), Ok(name)) = (told.and_then(Belief::directory), Name::new(name)) else { return };
        let found_in = self.places.found_in(found, directory, &name, asked);
        if found_in == FoundIn::Same {
            return;
        }
        let unused = self.below.take(found);
        unused.names.into_iter().for_each(|(directory, name)| self.names.name(directory, name));
        connection.unused(&unused.inodes);
        // No notice need have come. With the name goes all that is below it, however long the kernel has had that. One that
        // it was told lately to lead elsewhere, to a file too, is right as it is.
        if let FoundIn::Another(before, name) = found_in
            && self.beliefs.of(before, &name).inode().is_none_or(|told| told == found)
        {
            self.names.name_now(before, name, SETTLE_WAIT);
        }
    }

    /// The kernel knows that a name is free, since it has freed it.
    pub(super) fn freed(&self, directory: Ino, name: &Name) {
        self.beliefs.freed(directory, name.as_bytes());
        self.below.learns(directory, name.as_bytes(), None);
    }

    /// A rename has ended, after which the kernel takes its names for these, as far as that is known.
    pub(super) fn renamed(&self, names: [(Ino, &Name); 2], now: [Option<Belief>; 2]) {
        self.beliefs.renamed(names, now);
        self.below.renamed(names, now);
        for ((directory, name), belief) in names.into_iter().zip(now) {
            if let Some(found) = belief.and_then(Belief::directory) {
                self.places.put_into(found, directory, name);
            }
        }
    }

    /// The kernel is about to be told that a file is open.
    pub(super) fn open(&self, ino: Ino) {
        if self.sharing != Sharing::Alone {
            self.known.open(ino);
        }
    }

    /// The kernel has closed an open file.
    pub(super) fn close_file(&self, ino: Ino) {
        if self.sharing != Sharing::Alone {
            self.known.close(ino);
        }
    }

    /// What the kernel takes these names for may be wrong from the reply on that is about to be sent. It is to ask for every
    /// name again, or soon for these where it can only be told of them one by one.
    pub(super) fn distrust(&self, names: [(Ino, &Name); 2]) {
        match &*self.connection.read() {
            Some(connection) if connection.has_epochs() => connection.names(),
            _ => names.iter().for_each(|(directory, name)| self.names.name(*directory, (*name).clone())),
        }
    }

    /// Whether the kernel may have a name for this inode under which there is another one by now, and finds that one if it
    /// looks again. With other mounts that is so of regular files alone.
    pub(super) fn may_misname(&self, ino: Ino) -> bool {
        self.sharing == Sharing::Alone || self.known.get(ino).is_some_and(|given| given.is_file)
    }

    /// The kernel has forgotten an inode that it was given so often.
    pub(super) fn take_back(&self, ino: Ino, times: u64) {
        if self.known.take_back(ino, times) {
            self.places.forget(ino);
        }
    }
}

impl Watcher for KernelCache {
    fn changed(&self, writes: &[Write]) {
        let guard = self.connection.read();
        let Some(connection) = &*guard else { return };
        let mut names = false;
        for write in writes {
            match write.key() {
                Key::Entry(directory, _) => names = names || self.knows(*directory),
                Key::Node(ino) if self.knows(*ino) => {
                    self.told.fetch_add(1, Relaxed);
                    if rules::holds(Rule::AttributesToldBeforeReply) {
                        connection.attributes(*ino);
                    }
                    if matches!(write, Write::Merge(_, delta) if delta.extent.is_some()) {
                        self.bytes_changed(*ino);
                    }
                }
                _ => {}
            }
        }
        if writes.iter().any(moves_directory) {
            self.unsettled.store(true, Relaxed);
            for write in writes {
                if let Key::Entry(directory, name) = write.key()
                    && self.knows(*directory)
                {
                    self.names.name(*directory, name.clone());
                }
            }
        }
        if names {
            self.told.fetch_add(1, Relaxed);
            if rules::holds(Rule::NamesToldBeforeReply) {
                connection.names();
            }
        }
    }

    fn bytes_changed(&self, ino: Ino) {
        if self.known.get(ino).is_some_and(|given| given.may_have_pages()) {
            self.notices.content(ino);
        }
    }

    fn settle(&self) {
        if self.unsettled.swap(false, Relaxed) {
            self.names.settle(SETTLE_WAIT);
        }
    }

    fn knows(&self, ino: Ino) -> bool {
        ino == Ino::ROOT || self.known.get(ino).is_some()
    }
}

impl Listener for KernelCache {
    fn notice(&self, notice: &Notice) {
        let Notice::Changed { at, keys, .. } = notice else {
            // Anything may have changed. Names and attributes end by themselves, soon; pages of maps never do.
            self.known.open_files().for_each(|ino| self.notices.content(ino));
            return;
        };
        let guard = self.connection.read();
        let Some(connection) = &*guard else { return };
        for key in keys {
            match key {
                Key::Entry(directory, name) if self.knows(*directory) => {
                    self.names.name(*directory, name.clone());
                }
                Key::Node(ino) => {
                    let Some(is_news) = self.is_news(*ino, *at) else { continue };
                    connection.attributes(*ino);
                    if is_news.get(ino).is_some_and(Given::may_have_pages) {
                        self.notices.content(*ino);
                    }
                    drop(is_news);
                }
                _ => continue,
            }
            self.told.fetch_add(1, Relaxed);
        }
    }
}

/// Whether a write gives a directory another place.
fn moves_directory(write: &Write) -> bool {
    matches!(write, Write::Merge(_, delta) if delta.reparent.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::NodeDelta;

    #[test]
    fn what_an_open_has_found_is_no_news() {
        let cache = KernelCache::new(Sharing::Hosts(Duration::from_secs(1)));
        let is_news = |at: Option<u64>| cache.is_news(Ino(7), at.map(Version)).is_some();
        assert!(!is_news(None) && cache.is_news(Ino::ROOT, None).is_some());
        cache.give(Ino(7), true);
        assert!(is_news(Some(1)));
        cache.opened(Ino(7), Version(5));
        cache.opened(Ino(7), Version(4));
        cache.give(Ino(7), true);
        assert_eq!([Some(4), Some(5), Some(6), None].map(is_news), [false, false, true, true]);
        cache.take_back(Ino(7), 2);
        cache.give(Ino(7), true);
        assert!(is_news(Some(4)), "the kernel had forgotten it");
    }

    #[test]
    fn after_a_gap_maps_are_read_again() {
        let cache = KernelCache::new(Sharing::Hosts(Duration::from_secs(1)));
        [7, 8, 9].iter().for_each(|&ino| cache.give(Ino(ino), true));
        [7, 8].iter().for_each(|&ino| cache.open(Ino(ino)));
        cache.close_file(Ino(8));
        cache.notice(&Notice::Lost);
        assert_eq!([7, 8, 9].map(|ino| cache.notices.is_queued(Ino(ino))), [true, false, false]);
    }

    #[test]
    fn what_has_no_kernel_is_told_in_vain() {
        let cache = KernelCache::new(Sharing::Several);
        let name = Name::new(b"n").unwrap();
        cache.changed(&[
            Write::Delete(Key::Entry(Ino::ROOT, name)),
            Write::Merge(Key::Node(Ino::ROOT), NodeDelta::default()),
        ]);
        let now = ambient::monotonic();
        assert_eq!(cache.name_ttl(now), Duration::ZERO);
        assert_eq!(KernelCache::new(Sharing::Alone).name_ttl(now), FOREVER);
    }

    #[test]
    fn the_time_that_an_answer_took_counts() {
        let ttl = Duration::from_secs(100);
        let cache = KernelCache::new(Sharing::Hosts(ttl));
        let ttls = |asked| [cache.name_ttl(asked), cache.asked_ttl(asked), cache.attribute_ttl(asked)];
        let now = ambient::monotonic();
        let took = Duration::from_secs(60);
        for left in ttls(now.checked_sub(took).unwrap()) {
            assert!(left <= ttl - took && left > Duration::ZERO, "{left:?}");
        }
        assert_eq!(ttls(now.checked_sub(ttl * 2).unwrap()), [Duration::ZERO; 3]);
    }
}
