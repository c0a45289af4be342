//! Volumes whose contents are in an object store: real mounts over a Redis server, with the objects in a directory, and on
//! an S3 server. Needs root and /dev/fuse, and says so where they are missing.

mod crashes;
mod directory;
mod s3;
mod s3_server;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{BINARY, Ran, can_mount, program, run, until};
use crate::redis_server::RedisServer;

/// A chunk of the format.
const CHUNK: usize = 128 << 10;

const LEASE_S: u64 = 2;

/// A volume, and places to mount it.
struct Volume {
    url: String,
    points: [PathBuf; 2],
    /// What each command has in its environment.
    environment: Vec<(String, String)>,
    dir: TempDir,
    _server: RedisServer,
}

impl Volume {
    /// Formatted with its contents at a place that may depend on the directory of the test.
    fn format(content: impl FnOnce(&Path) -> String, environment: &[(&str, &str)]) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let server = RedisServer::start()?;
        let dir = tempfile::Builder::new().prefix("lockwood-contents-").tempdir().unwrap();
        let points = ["one", "other"].map(|name| dir.path().join(name));
        points.iter().for_each(|point| fs::create_dir(point).unwrap());
        let environment =
            environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let volume = Self { url: server.url("t"), points, environment, dir, _server: server };
        let content = content(volume.dir.path());
        volume.lockwood(&["format", &volume.url, "--content", &content]).ok();
        Some(volume)
    }

    /// In a directory.
    fn in_directory() -> Option<Self> {
        Self::format(|dir| format!("file://{}/objects", dir.display()), &[])
    }

    fn lockwood(&self, arguments: &[&str]) -> Ran {
        run(Command::new(BINARY).args(arguments).envs(self.environment.iter().cloned()))
    }

    fn try_mount(&self, at: usize, options: &str) -> Ran {
        let log = self.log(at);
        let options = format!("lease={LEASE_S},log={}{options}", log.display());
        self.lockwood(&["mount", &self.url, self.points[at].to_str().unwrap(), "-o", &options])
    }

    fn mount(&self, at: usize) {
        self.try_mount(at, "").ok();
    }

    fn umount(&self, at: usize) {
        crate::common::umount(&self.points[at]);
    }

    fn log(&self, at: usize) -> PathBuf {
        self.dir.path().join(format!("log{at}"))
    }

    fn at(&self, mount: usize, path: &str) -> PathBuf {
        self.points[mount].join(path)
    }

    fn status(&self, at: usize) -> Value {
        let point = self.points[at].to_str().unwrap();
        serde_json::from_str(&self.lockwood(&["status", point, "--json"]).ok()).unwrap()
    }

    /// How often something was asked of the object store.
    fn requests(&self, at: usize, what: &str) -> u64 {
        self.status(at)["objects"]["requests"][what].as_u64().unwrap()
    }

    /// The whole report of `lockwood check`, by the volume's URL.
    fn check(&self, more: &[&str]) -> Value {
        let ran = self.lockwood(&[&["check", &self.url, "--json"], more].concat());
        serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
    }

    /// There is nothing wrong, and soon an object for each chunk and no other.
    fn assert_clean(&self) {
        until("an object for each chunk", || {
            let report = self.check(&[]);
            assert_eq!(report["counts"]["violations"], 0, "{report}");
            report["counts"]["chunks"] == report["counts"]["objects"]
        });
    }

    /// The objects, where they are in a directory.
    fn objects(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut directories = vec![self.dir.path().join("objects")];
        while let Some(directory) = directories.pop() {
            for item in fs::read_dir(&directory).unwrap().map(Result::unwrap) {
                match item.file_type().unwrap().is_dir() {
                    true => directories.push(item.path()),
                    false => found.push(item.path()),
                }
            }
        }
        found.retain(|path| !path.ends_with("volume.json"));
        found
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // A test may have put the objects on a disk of their own.
        for point in self.points.iter().chain([&self.dir.path().join("objects")]) {
            program("umount", &["-l".as_ref(), point.as_os_str()]);
        }
    }
}

/// Writes a file as requests that end where chunks do. Larger ones the kernel would cut elsewhere.
fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = File::create(path)?;
    write_over(&file, bytes)
}

fn write_over(file: &File, bytes: &[u8]) -> io::Result<()> {
    const AT_ONCE: usize = 4 * CHUNK;
    (0..).step_by(AT_ONCE).zip(bytes.chunks(AT_ONCE)).try_for_each(|(at, part)| file.write_all_at(part, at))
}

/// Bytes that differ from one chunk to the next.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 1000 + at / CHUNK) as u8).collect()
}
