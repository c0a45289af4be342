//! Opening and formatting: what a cluster must be like to be a store, and whether there is a volume.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde_json::Value;

use super::address::{Address, AddressError, Flavour};
use super::link::{Link, Request, engine};
use super::reply::explain;
use super::{OpenSearchCells, ids, mappings};
use crate::ambient::SystemClock;
use crate::document::{Document, FORMAT_VERSION, Key, Stored, Version, Volume};
use crate::shell::quoted;
use crate::store::cells::{CasError, Cell, CellKey, Cells, MarkedDocument};
use crate::store::intents::shared::SharedIntents;
use crate::store::{Commit, Store, StoreError, Write};

/// The first releases that are tested.
const OPENSEARCH_MIN: u64 = 2;
const ELASTICSEARCH_MIN: u64 = 8;

/// When an acknowledged change is on disk.
const DURABILITY: &str = "index.translog.durability";
/// How the copies of a shard get what was changed.
const REPLICATION: &str = "index.replication.type";

/// How a cluster is used.
#[derive(Clone)]
pub struct Options {
    /// The password, if the URL and its files have none.
    pub password: Option<String>,
    /// Take a cluster that forgets what it has acknowledged.
    pub allow_weak: bool,
    /// How long a request is tried again while the cluster is away, before it fails.
    pub patience: Duration,
}

/// Why a volume could not be opened or made.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Another kind of server, or one that is too old.
    #[error("{server}: this is {found}, and the URL asks for {wanted}, release {release} or newer")]
    Server {
        /// Which server.
        server: String,
        /// What it says that it is.
        found: String,
        /// What the URL says.
        wanted: &'static str,
        /// The oldest release that will do.
        release: u64,
    },
    /// It acknowledges what it may forget.
    #[error(
        "{server}: index {index} may forget, or not show yet, what it has acknowledged ({setting} is {found:?}): set it to \
         {wanted:?}, or mount with -o allow-weak"
    )]
    Weak {
        /// Which server.
        server: String,
        /// Which index.
        index: String,
        /// Which setting.
        setting: &'static str,
        /// What it is.
        found: String,
        /// What it must be.
        wanted: &'static str,
    },
    /// An index is not as it was made.
    #[error(
        "{server}: index {index} is not as lockwood has made it: {what}; restore the indices of the volume together, from a \
         snapshot"
    )]
    Changed {
        /// Which server.
        server: String,
        /// Which index.
        index: String,
        /// How it is now.
        what: String,
    },
    /// Nothing there.
    #[error("{server}: there is no volume under this prefix; make one with: lockwood format {}", quoted(.server))]
    NoVolume {
        /// Which server.
        server: String,
    },
    /// Something there already.
    #[error(
        "{server}: there is a volume under this prefix already: take another one (the last part of the URL)"
    )]
    Occupied {
        /// Which server.
        server: String,
    },
    /// Made by a newer program.
    #[error(
        "{server}: the volume has format version {format}, newer than this program's {FORMAT_VERSION}: update lockwood"
    )]
    Newer {
        /// Which server.
        server: String,
        /// The volume's.
        format: u32,
    },
    /// The servers, or the volume's document.
    #[error("{server}: {source}")]
    Store {
        /// Which server.
        server: String,
        /// What is wrong.
        source: StoreError,
    },
}

/// Opens the volume at `url`.
///
/// # Errors
/// [`OpenError`] says what to do.
pub fn open(url: &str, options: &Options) -> Result<(Arc<dyn Store>, Volume), OpenError> {
    let cells = connect(url, options)?;
    let server = cells.link.address.to_string();
    let of_store = |source| OpenError::Store { server: server.clone(), source };
    if !has_index(&cells, "volume").map_err(of_store)? {
        return Err(OpenError::NoVolume { server });
    }
    let found = cells.read(&CellKey::Document(Key::Volume)).map_err(of_store)?;
    let volume = match found.as_ref().map(|stored| &*stored.cell) {
        Some(Cell::Document(MarkedDocument { before: Some(stored), .. })) => match &*stored.document {
            Document::Volume(volume) => volume.clone(),
            _ => return Err(of_store(damaged())),
        },
        Some(_) => return Err(of_store(damaged())),
        None => return Err(OpenError::NoVolume { server }),
    };
    if volume.format > FORMAT_VERSION {
        return Err(OpenError::Newer { server, format: volume.format });
    }
    check_indices(&cells, options.allow_weak)?;
    Ok((store_over(cells), volume))
}

fn store_over(cells: OpenSearchCells) -> Arc<dyn Store> {
    Arc::new(SharedIntents::new(Arc::new(cells), Arc::new(SystemClock::new())))
}

fn damaged() -> StoreError {
    StoreError::Damaged { key: Key::Volume.to_string(), cause: "it is no volume".to_owned() }
}

/// Makes a volume at `url` of what `commit` puts there. The volume's document is made last: before it there is none, and a
/// formatting that was cut short can be made again.
///
/// # Errors
/// [`OpenError`] says what to do.
pub fn format(url: &str, options: &Options, commit: &Commit) -> Result<Arc<dyn Store>, OpenError> {
    let cells = connect(url, options)?;
    let server = cells.link.address.to_string();
    let of_store = |source| OpenError::Store { server: server.clone(), source };
    for kind in ids::indices() {
        make_index(&cells, kind).map_err(of_store)?;
    }
    let mut puts: Vec<_> = commit
        .writes
        .iter()
        .filter_map(|write| match write {
            Write::Put(key, document) => Some((key, document)),
            Write::Delete(_) | Write::Merge(..) => None,
        })
        .collect();
    puts.sort_by_key(|(key, _)| **key == Key::Volume);
    for (key, document) in puts {
        let stored = Stored { version: Version(1), document: document.clone().into() };
        let cell = Cell::Document(MarkedDocument { before: Some(stored), mark: None });
        let at = CellKey::Document(key.clone());
        // What a formatting that was cut short has left. Read before it is seen that no volume is there: so what is written
        // over has been changed by nobody who has mounted one.
        let left = if *key == Key::Volume { None } else { cells.read(&at).map_err(of_store)? };
        if cells.read(&CellKey::Document(Key::Volume)).map_err(of_store)?.is_some() {
            return Err(OpenError::Occupied { server });
        }
        match cells.cas(&at, left.map(|left| left.version), Some(cell)) {
            Ok(_) => {}
            Err(CasError::Conflict) => return Err(OpenError::Occupied { server }),
            Err(CasError::Unknown(cause)) => return Err(of_store(StoreError::Unknown(cause))),
            Err(CasError::Store(error)) => return Err(of_store(error)),
        }
    }
    Ok(store_over(cells))
}

/// A cluster of the right kind.
fn connect(url: &str, options: &Options) -> Result<OpenSearchCells, OpenError> {
    let address = Address::parse(url, options.password.as_deref())?;
    let server = address.to_string();
    let of_store = |source| OpenError::Store { server: server.clone(), source };
    let (wanted, release) = match address.flavour {
        Flavour::OpenSearch => (Flavour::OpenSearch, OPENSEARCH_MIN),
        Flavour::Elasticsearch => (Flavour::Elasticsearch, ELASTICSEARCH_MIN),
    };
    let link = Link::new(address, options.patience).map_err(of_store)?;
    let (distribution, number) = server_of(&link).map_err(of_store)?;
    let major = number.split('.').next().and_then(|major| major.parse::<u64>().ok()).unwrap_or_default();
    if distribution != wanted.name() || major < release {
        let found = format!("{distribution} {number}");
        return Err(OpenError::Server { server, found, wanted: wanted.name(), release });
    }
    Ok(OpenSearchCells { link, has_met_others: AtomicBool::new(false) })
}

/// What kind of server this is, and its release. The distribution of Elasticsearch that is published for tests has no page
/// `/`; what it says of its nodes has the release as well.
fn server_of(link: &Link) -> Result<(String, String), StoreError> {
    const ELASTICSEARCH: &str = "elasticsearch";
    let reply = link.ask(&Request::get("/"))?;
    let said = |pointer: &str| reply.body().pointer(pointer).and_then(Value::as_str);
    if let Some(number) = said("/version/number") {
        return Ok((said("/version/distribution").unwrap_or(ELASTICSEARCH).to_owned(), number.to_owned()));
    }
    if reply.status == 405 {
        let nodes = link.ask(&Request::get("/_nodes/_local?filter_path=nodes.*.version"))?;
        let mut nodes = nodes.body().pointer("/nodes").and_then(Value::as_object).into_iter().flatten();
        if let Some(number) = nodes.find_map(|(_, node)| node.get("version")?.as_str()) {
            return Ok((ELASTICSEARCH.to_owned(), number.to_owned()));
        }
    }
    Err(engine("asking which server this is", explain(&reply)))
}

fn has_index(cells: &OpenSearchCells, kind: &str) -> Result<bool, StoreError> {
    let index = cells.link.address.index(kind);
    let reply = cells.link.ask(&Request::get(format!("/{index}")))?;
    match reply.status {
        200 => Ok(true),
        404 => Ok(false),
        _ => Err(engine(format!("looking for the index {index}"), explain(&reply))),
    }
}

/// Makes an index, unless it is there.
fn make_index(cells: &OpenSearchCells, kind: &str) -> Result<(), StoreError> {
    let index = cells.link.address.index(kind);
    let body = mappings::index(kind, cells.link.address.flavour);
    let path = format!("/{index}?wait_for_active_shards=1");
    let reply = cells.link.tell(&Request::put(&path, &body)).map_err(StoreError::from)?;
    let exists = Some("resource_already_exists_exception");
    match reply.status {
        200 => Ok(()),
        400 if reply.body().pointer("/error/type").and_then(Value::as_str) == exists => Ok(()),
        _ => Err(engine(format!("making the index {index}"), explain(&reply))),
    }
}

/// Whether the indices are as [`make_index`] makes them, as far as anything rests on it.
fn check_indices(cells: &OpenSearchCells, allow_weak: bool) -> Result<(), OpenError> {
    let server = || cells.link.address.to_string();
    let of_store = |source| OpenError::Store { server: server(), source };
    let changed =
        |index: &str, what: String| OpenError::Changed { server: server(), index: index.into(), what };
    let names: Vec<_> = ids::indices().map(|kind| cells.link.address.index(kind)).collect();
    let path = format!("/{}?include_defaults=true&flat_settings=true", names.join(","));
    let reply = cells.link.ask(&Request::get(&path)).map_err(of_store)?;
    if let (404, Some(index)) = (reply.status, reply.body().pointer("/error/index").and_then(Value::as_str)) {
        return Err(changed(index, "it is missing".to_owned()));
    }
    let Some(indices) = reply.body().as_object().filter(|_| reply.status == 200) else {
        return Err(of_store(engine("asking for the settings of the indices", explain(&reply))));
    };
    for (index, of) in indices {
        let found = |setting: &str| {
            let set = |part: &str| of.get(part).and_then(|part| part.get(setting)).and_then(Value::as_str);
            set("settings").or_else(|| set("defaults")).unwrap_or("unknown")
        };
        let shards = found("index.number_of_shards");
        if shards != "1" {
            return Err(changed(index, format!("its number_of_shards is {shards}, and must be 1")));
        }
        let key = of.pointer("/mappings/properties/key/type").and_then(Value::as_str);
        if key != Some("keyword") {
            let key = key.unwrap_or("nothing");
            return Err(changed(index, format!("its field key is mapped as {key}, and must be a keyword")));
        }
        let weak = |setting: &'static str| OpenError::Weak {
            server: server(),
            index: index.clone(),
            setting,
            found: found(setting).to_owned(),
            wanted: if setting == DURABILITY { "request" } else { "DOCUMENT" },
        };
        if !allow_weak && !found(DURABILITY).eq_ignore_ascii_case("request") {
            return Err(weak(DURABILITY));
        }
        if !allow_weak && found(REPLICATION).eq_ignore_ascii_case("segment") {
            return Err(weak(REPLICATION));
        }
    }
    Ok(())
}
