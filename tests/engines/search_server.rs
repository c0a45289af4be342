//! An OpenSearch or Elasticsearch server of a test's own, of one node: `scripts/engines` fetches and starts it. Used by path
//! from wherever a test needs one; names nothing of Lockwood.

use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A server of a test's own, gone with it when it is dropped.
pub(crate) struct SearchServer {
    product: &'static str,
    dir: TempDir,
    /// Up to the prefix.
    url: String,
}

impl SearchServer {
    /// `product`: `opensearch` or `elasticsearch`. None, and a loud line, if there can be none on this host.
    pub(crate) fn start(product: &'static str) -> Option<Self> {
        let dir = tempfile::Builder::new().prefix(&format!("lockwood-{product}-")).tempdir().unwrap();
        let started = script(product, dir.path(), "start").stderr(Stdio::inherit()).output().unwrap();
        if !started.status.success() {
            eprintln!(
                "\n*** SKIPPED: no {product} can be started here (see above); nothing was tested ***\n"
            );
            assert!(
                std::env::var_os("LOCKWOOD_REQUIRE_ENGINES").is_none(),
                "{product} is required and missing"
            );
            return None;
        }
        let url = String::from_utf8(started.stdout).unwrap();
        let (url, _) = url.trim_end().rsplit_once('/').unwrap();
        Some(Self { product, dir, url: url.to_owned() })
    }

    pub(crate) fn url(&self, prefix: &str) -> String {
        format!("{}/{prefix}", self.url)
    }
}

fn script(product: &str, dir: &Path, action: &str) -> Command {
    let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/engines"));
    command.args([product, action]).arg(dir);
    command
}

impl Drop for SearchServer {
    fn drop(&mut self) {
        let _ = script(self.product, self.dir.path(), "crash").status(); // It has died before: as well.
    }
}
