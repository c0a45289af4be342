//! An OpenSearch server of a test's own, of one node: `scripts/engines` fetches and starts it. Used by path from wherever a
//! test needs one; names nothing of Lockwood.

use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A server of a test's own, gone with it when it is dropped.
pub(crate) struct OpenSearchServer {
    dir: TempDir,
    /// Up to the prefix.
    url: String,
}

impl OpenSearchServer {
    /// None, and a loud line, if there can be none on this host.
    pub(crate) fn start() -> Option<Self> {
        let dir = tempfile::Builder::new().prefix("lockwood-opensearch-").tempdir().unwrap();
        let started = script(dir.path(), "start").stderr(Stdio::inherit()).output().unwrap();
        if !started.status.success() {
            eprintln!(
                "\n*** SKIPPED: no OpenSearch can be started here (see above); nothing was tested ***\n"
            );
            assert!(
                std::env::var_os("LOCKWOOD_REQUIRE_ENGINES").is_none(),
                "OpenSearch is required and missing"
            );
            return None;
        }
        let url = String::from_utf8(started.stdout).unwrap();
        let (url, _) = url.trim_end().rsplit_once('/').unwrap();
        Some(Self { dir, url: url.to_owned() })
    }

    pub(crate) fn url(&self, prefix: &str) -> String {
        format!("{}/{prefix}", self.url)
    }
}

fn script(dir: &Path, action: &str) -> Command {
    let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/engines"));
    command.args(["opensearch", action]).arg(dir);
    command
}

impl Drop for OpenSearchServer {
    fn drop(&mut self) {
        let _ = script(self.dir.path(), "crash").status(); // It has died before: as well.
    }
}
