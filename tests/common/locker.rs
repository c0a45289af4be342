//! A process of its own that takes and gives up locks, and writes, as it is told: the test program itself, started again to
//! run [`child_that_locks`] alone. It is told by lines on its standard input and answers by lines that begin with `> `. It
//! starts no process; where a test has many threads any of them may, and a child that runs another program closes copies of
//! all files of the test.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{AsRawFd as _, IntoRawFd as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use super::lines::Lines;
use super::{LIMIT, signal, wait};

const NAME: &str = "common::locker::child_that_locks";
const PATH: &str = "LOCKWOOD_TEST_LOCKER";
/// What a line begins with that the process writes, and not what runs it as a test.
const ANSWER: &str = "> ";

/// The process, which ends with this.
pub(crate) struct Locker {
    child: Child,
    lines: Lines,
    thread: u32,
}

impl Locker {
    /// One that has `path` open as `a`.
    pub(crate) fn at(path: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", NAME, "--nocapture"]).env(PATH, path);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("this program runs again");
        let lines = Lines::of(child.stdout.take().expect("a pipe"));
        let mut locker = Self { child, lines, thread: 0 };
        assert_eq!(locker.ask("open a"), "ok");
        locker.thread = locker.ask("thread").parse().expect("a number");
        locker
    }

    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().expect("a pipe"), "{line}").expect("the process is there");
    }

    /// Its answer, or none within that time.
    pub(crate) fn answer(&mut self, within: Duration) -> Option<String> {
        let line = self.lines.find(within, |line| line.starts_with(ANSWER))?;
        line.strip_prefix(ANSWER).map(str::to_owned)
    }

    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.answer(LIMIT).unwrap_or_else(|| panic!("no answer to {line}"))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGUSR1 to the thread that locks: one sent to the process would go to whichever thread takes it.
    pub(crate) fn interrupt(&self) {
        // SAFETY: a call with numbers alone.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, self.child.id(), self.thread, libc::SIGUSR1) };
        assert_eq!(sent, 0, "{}", io::Error::last_os_error());
    }

    /// Ends it as `kill -9` does, and waits until it is gone.
    pub(crate) fn kill(mut self) {
        signal(self.child.id(), Signal::KILL);
        assert!(wait(&mut self.child, LIMIT).is_some(), "it cannot be killed");
    }
}

impl Drop for Locker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ended = wait(&mut self.child, LIMIT);
    }
}

/// The other process: does nothing unless it is told which file to lock.
///
/// | line | what it does |
/// |---|---|
/// | `open X`, `close X` | opens the file once more, under a letter |
/// | `flock X sh\|ex\|un [wait]` | flock(2) |
/// | `fcntl X rd\|wr\|un START LEN [wait]` | fcntl(2), a lock of the process |
/// | `ofd X rd\|wr\|un START LEN [wait]` | the same of the open file |
/// | `test X rd\|wr START LEN` | F_GETLK |
/// | `read X`, `write X TEXT` | the whole file |
/// | `rename TO` | rename(2) of the file, in its directory; the open ones stay what they are |
/// | `pieces X LEN FROM TO` | writes the pieces of so many bytes with these numbers, each of [`piece`] |
/// | `size X`, `sync X` | fstat(2), fsync(2) |
/// | `handle` | from here on SIGUSR1 interrupts, and does nothing else |
/// | `thread` | the number of the thread that does all this |
#[test]
fn child_that_locks() {
    let Some(path) = std::env::var_os(PATH) else { return };
    let mut files = HashMap::new();
    for line in io::stdin().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match serve(Path::new(&path), &mut files, &words) {
            Ok(text) => text,
            Err(error) => format!("errno {}", error.raw_os_error().unwrap_or(0)),
        };
        println!("\n{ANSWER}{answer}");
        let _ = io::stdout().flush();
    }
}

fn serve(path: &Path, files: &mut HashMap<String, File>, words: &[&str]) -> io::Result<String> {
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<i64>().ok()).unwrap_or(0);
    let wait = words.last() == Some(&"wait");
    if let ["open", name] = words {
        let file = File::options().read(true).write(true).open(path)?;
        files.insert((*name).to_owned(), file);
        return Ok("ok".to_owned());
    }
    if let ["close", name] = words {
        let file = files.remove(*name).map_or(-1, File::into_raw_fd);
        // SAFETY: nobody else has the descriptor.
        return check(unsafe { libc::close(file) }).map(|()| "ok".to_owned());
    }
    if words == ["thread"] {
        // SAFETY: it only answers.
        return Ok(unsafe { libc::gettid() }.to_string());
    }
    if words == ["handle"] {
        return handle_signal().map(|()| "ok".to_owned());
    }
    if let ["rename", to] = words {
        return std::fs::rename(path, path.with_file_name(to)).map(|()| "ok".to_owned());
    }
    let mut file: &File = &files[words[1]];
    match words[0] {
        "flock" => {
            let operation = match words[2] {
                "sh" => libc::LOCK_SH,
                "ex" => libc::LOCK_EX,
                _ => libc::LOCK_UN,
            };
            let how = if wait { operation } else { operation | libc::LOCK_NB };
            // SAFETY: the descriptor is open throughout the call.
            check(unsafe { libc::flock(file.as_raw_fd(), how) })?;
        }
        "fcntl" | "ofd" => {
            let command = match (words[0], wait) {
                ("fcntl", false) => libc::F_SETLK,
                ("fcntl", true) => libc::F_SETLKW,
                (_, false) => libc::F_OFD_SETLK,
                (_, true) => libc::F_OFD_SETLKW,
            };
            range(file, command, words[2], number(3), number(4))?;
        }
        "test" => {
            let found = range(file, libc::F_GETLK, words[2], number(3), number(4))?;
            return Ok(match i32::from(found.l_type) {
                libc::F_UNLCK => "free".to_owned(),
                kind => {
                    let kind = if kind == libc::F_WRLCK { "wr" } else { "rd" };
                    format!("{kind} {} {} {}", found.l_start, found.l_len, found.l_pid)
                }
            });
        }
        "read" => {
            let mut text = String::new();
            file.rewind()?;
            file.read_to_string(&mut text)?;
            return Ok(text);
        }
        "write" => {
            file.set_len(0)?;
            file.rewind()?;
            file.write_all(words[2].as_bytes())?;
        }
        "pieces" => {
            for n in number(3)..number(4) {
                file.write_all_at(&piece(n, number(2)), (n * number(2)).cast_unsigned())?;
            }
        }
        "size" => return Ok(file.metadata()?.len().to_string()),
        "sync" => file.sync_all()?,
        other => panic!("{other}"),
    }
    Ok("ok".to_owned())
}

/// What a piece of `len` bytes has: none has what the next one has.
pub(crate) fn piece(number: i64, len: i64) -> Vec<u8> {
    vec![(number % 255) as u8 + 1; usize::try_from(len).expect("a length")]
}

fn range(file: &File, command: i32, kind: &str, start: i64, len: i64) -> io::Result<libc::flock> {
    let kind = match kind {
        "rd" => libc::F_RDLCK,
        "wr" => libc::F_WRLCK,
        _ => libc::F_UNLCK,
    };
    // SAFETY: a flock of zeros is a valid one.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_start = start;
    lock.l_len = len;
    // SAFETY: the descriptor is open and the structure lives throughout the call.
    check(unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) })?;
    Ok(lock)
}

fn handle_signal() -> io::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: an action of zeros is a valid one: no flags, so that system calls are not started over.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
    // SAFETY: the action lives throughout the call, and its function does nothing.
    check(unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()) })
}

fn check(returned: i32) -> io::Result<()> {
    if returned == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
