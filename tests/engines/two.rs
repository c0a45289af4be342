//! Two mounts of one volume on a real server, each a daemon of its own as on two hosts.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::PathBuf;

use rustix::mount::{UnmountFlags, unmount};
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{Ran, can_mount, kill_daemons, lockwood, mount_entry, umount};
use crate::postgres::server::PostgresServer;
use crate::redis_server::RedisServer;

/// A volume that two daemons have mounted.
pub(crate) struct Two {
    pub(crate) url: String,
    dir: TempDir,
    /// With which each is mounted.
    options: [&'static str; 2],
    pub(crate) daemons: Vec<u32>,
}

impl Two {
    pub(crate) fn mounted(url: String) -> Option<Self> {
        Self::mounted_with(url, ["rw"; 2])
    }

    pub(crate) fn mounted_with(url: String, options: [&'static str; 2]) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        lockwood(["format", &url]).ok();
        let mut two = Self { url, dir: tempfile::tempdir().unwrap(), options, daemons: Vec::new() };
        for at in 0..2 {
            fs::create_dir(two.point(at)).unwrap();
            two.mount(at);
        }
        File::create_new(two.file(0)).unwrap();
        Some(two)
    }

    pub(crate) fn point(&self, at: usize) -> PathBuf {
        self.dir.path().join(format!("mnt{at}"))
    }

    pub(crate) fn file(&self, at: usize) -> PathBuf {
        self.point(at).join("f")
    }

    pub(crate) fn status(&self, at: usize) -> Value {
        serde_json::from_str(&fs::read_to_string(self.point(at).join(".lockwood/status")).unwrap()).unwrap()
    }

    pub(crate) fn mount(&mut self, at: usize) {
        let point = self.point(at);
        let options =
            format!("log={},{}", self.dir.path().join(format!("log{at}")).display(), self.options[at]);
        let words = ["mount", &self.url].map(OsStr::new);
        lockwood([&words[..], &[point.as_os_str(), OsStr::new("-o"), OsStr::new(&options)]].concat()).ok();
        self.daemons.push(self.status(at)["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).unwrap());
    }

    pub(crate) fn clean(&self) {
        let words = lockwood(["check", &self.url]).ok();
        assert!(words.contains("clean"), "{words}");
    }

    pub(crate) fn get(&self, document: &str) -> Ran {
        lockwood(["get", &self.url, document])
    }

    pub(crate) fn finish(self) {
        self.clean();
        for at in 0..2 {
            umount(&self.point(at));
        }
        self.clean();
    }
}

impl Drop for Two {
    fn drop(&mut self) {
        // What waits for a daemon ends with an error.
        let flags = UnmountFlags::FORCE | UnmountFlags::DETACH;
        for at in 0..2 {
            let point = self.point(at);
            while mount_entry(&point).is_some() && unmount(&point, flags).is_ok() {}
        }
        kill_daemons(&self.daemons);
    }
}

pub(crate) fn over_postgres(test: impl FnOnce(Two, &dyn Fn(&str) -> String)) {
    let Some(server) = PostgresServer::start() else { return };
    if let Some(two) = Two::mounted(server.url("volume")) {
        test(two, &|sql| server.psql("lockwood", sql));
    }
}

pub(crate) fn over_redis(test: impl FnOnce(Two)) {
    let Some(server) = RedisServer::start() else { return };
    if let Some(two) = Two::mounted(server.url("volume")) {
        test(two);
    }
}
