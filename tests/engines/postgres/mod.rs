//! The engine over PostgreSQL.

mod delayed;
mod fence;
mod lost;
mod operation;
#[path = "../../common/postgres.rs"]
pub(crate) mod server;
mod silent;
mod whole;

use std::sync::atomic::{AtomicU32, Ordering};

use lockwood::document::{Locking, Timestamp, Volume};
use lockwood::store::postgres::{PostgresStore, Target};
use lockwood::store::{Commit, Store, conformance};

use server::PostgresServer;

pub(crate) fn format(url: &str) -> PostgresStore {
    let volume = Volume::empty("0".repeat(32), Locking::Tree, 4096, Timestamp::default());
    PostgresStore::format(Target::parse(url).unwrap(), &Commit::format(volume, 0, 0)).unwrap()
}

pub(crate) fn open(url: &str) -> PostgresStore {
    PostgresStore::open(Target::parse(url).unwrap()).unwrap()
}

/// A store without any document.
pub(crate) fn empty(url: &str) -> PostgresStore {
    PostgresStore::format(Target::parse(url).unwrap(), &Commit::new()).unwrap()
}

#[test]
fn conforms() {
    let Some(server) = PostgresServer::start() else { return };
    let schemas = AtomicU32::new(0);
    conformance::run(&|| {
        let schema = format!("volume_{}", schemas.fetch_add(1, Ordering::Relaxed));
        Box::new(empty(&server.url(&schema))) as Box<dyn Store>
    });
}
