//! The directory of an embedded store, and what says that it is one.
//!
//! ```text
//! STORE/LOCKWOOD   a line of JSON: this is a volume, and of which format
//! STORE/owner      who has the store open; see `owner`
//! STORE/db/        the documents
//! STORE/content/   the bytes of large files
//! ```

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{EmbeddedStore, Tuning};
use crate::document::{Document, FORMAT_VERSION, Key, Volume};
use crate::shell::quoted;
use crate::store::{Commit, CommitError, Reader, Store, StoreError};

const MARKER: &str = "LOCKWOOD";
/// See [`Layout::ballast`].
pub const BALLAST: &str = "ballast";

/// The paths of an embedded store.
#[derive(Clone, Debug)]
pub struct Layout {
    root: PathBuf,
}

/// Why a directory cannot be used as a store.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// There is nothing.
    #[error("{0}: no such store; make one with: lockwood format {command}", command = quoted(.0))]
    Missing(PathBuf),
    /// There is something else.
    #[error("{path} is not a Lockwood store: {cause}")]
    NotAStore {
        /// The path that was given.
        path: PathBuf,
        /// What is there instead.
        cause: String,
    },
    /// Another Lockwood made it.
    #[error("{path} has format {found}, and this program reads up to {FORMAT_VERSION}; use a newer lockwood")]
    Newer {
        /// The path that was given.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// `format` found that there is something already.
    #[error("{path} cannot be formatted: {cause}")]
    Occupied {
        /// The path that was given.
        path: PathBuf,
        /// What is there.
        cause: String,
    },
    /// The operating system refused.
    #[error("{path}: {source}")]
    Io {
        /// What was touched.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The documents cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

#[derive(Serialize, Deserialize)]
struct Marker {
    lockwood: String,
    format: u32,
}

impl Layout {
    /// The layout of the store at `root`, which must be one.
    ///
    /// # Errors
    /// [`LayoutError`] says what is there instead.
    pub fn existing(root: &Path) -> Result<Self, LayoutError> {
        let layout = Self { root: root.to_owned() };
        match fs::metadata(root) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return Err(layout.not_a_store("it is not a directory")),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(LayoutError::Missing(root.to_owned()));
            }
            Err(source) => return Err(LayoutError::Io { path: root.to_owned(), source }),
        }
        let path = root.join(MARKER);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(layout.not_a_store("there is no file LOCKWOOD in it"));
            }
            Err(source) => return Err(LayoutError::Io { path, source }),
        };
        let marker: Marker = serde_json::from_slice(&text)
            .map_err(|e| layout.not_a_store(format!("its file LOCKWOOD is damaged ({e})")))?;
        if marker.format > FORMAT_VERSION {
            return Err(LayoutError::Newer { path: root.to_owned(), found: marker.format });
        }
        Ok(layout)
    }

    fn not_a_store(&self, cause: impl Into<String>) -> LayoutError {
        LayoutError::NotAStore { path: self.root.clone(), cause: cause.into() }
    }

    /// Makes a store at `root`, which must be absent or an empty directory, with the given documents in it.
    ///
    /// # Errors
    /// [`LayoutError::Occupied`] if something is there.
    pub fn format(root: &Path, commit: &Commit) -> Result<Self, LayoutError> {
        let layout = Self { root: root.to_owned() };
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| LayoutError::Io { path, source }
        };
        let occupied = |cause: &str| LayoutError::Occupied { path: root.to_owned(), cause: cause.to_owned() };
        match fs::read_dir(root) {
            Ok(mut found) => {
                if root.join(MARKER).exists() {
                    return Err(occupied("it is a Lockwood store already; remove it first to start anew"));
                }
                if found.next().is_some() {
                    return Err(occupied("the directory is not empty"));
                }
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => fs::create_dir_all(root).map_err(io(root))?,
            Err(e) if e.kind() == io::ErrorKind::NotADirectory => {
                return Err(occupied("it is not a directory"));
            }
            Err(source) => return Err(LayoutError::Io { path: root.to_owned(), source }),
        }
        for dir in [layout.db(), layout.content()] {
            fs::create_dir(&dir).map_err(io(&dir))?;
        }
        // Only root or its owner may look into the store: it bypasses the permissions of the files in it.
        restrict(root).map_err(io(root))?;
        let store = EmbeddedStore::open(&layout.db(), Tuning::default())?;
        store.commit(commit).map_err(|e| match e {
            CommitError::Store(e) => LayoutError::Store(e),
            CommitError::Conflict(key) => occupied(&format!("document {key} is there already")),
        })?;
        store.close()?;
        layout.write_marker().map_err(io(&root.join(MARKER)))?;
        Ok(layout)
    }

    /// The marker comes last and durably: a store that was formatted half is none.
    fn write_marker(&self) -> io::Result<()> {
        let marker = Marker { lockwood: "volume".to_owned(), format: FORMAT_VERSION };
        let mut file = fs::File::create_new(self.root.join(MARKER))?;
        file.write_all(serde_json::to_string(&marker)?.as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        fs::File::open(&self.root)?.sync_all()
    }

    /// Where the documents are.
    pub fn db(&self) -> PathBuf {
        self.root.join("db")
    }

    /// Where the bytes of large files are.
    pub fn content(&self) -> PathBuf {
        self.root.join("content")
    }

    /// Where a process that lets others write to the disk keeps room by taking it.
    pub fn ballast(&self) -> PathBuf {
        self.content().join(BALLAST)
    }

    /// The file that says who has the store open.
    pub fn owner(&self) -> PathBuf {
        self.root.join("owner")
    }

    /// The store's directory, as it was given.
    pub fn root(&self) -> &Path {
        &self.root
    }
}

fn restrict(dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700))
}

/// The volume document of an open store.
///
/// # Errors
/// [`LayoutError::NotAStore`] if it is missing.
pub fn volume(store: &dyn Reader, root: &Path) -> Result<Volume, LayoutError> {
    match store.get(&Key::Volume)?.map(|stored| stored.document) {
        Some(document) => match &*document {
            Document::Volume(volume) if volume.format > FORMAT_VERSION => {
                Err(LayoutError::Newer { path: root.to_owned(), found: volume.format })
            }
            Document::Volume(volume) => Ok(volume.clone()),
            other => Err(StoreError::Damaged {
                key: Key::Volume.to_string(),
                cause: format!("it holds a {}", other.kind().name()),
            }
            .into()),
        },
        None => Err(LayoutError::NotAStore {
            path: root.to_owned(),
            cause: "its volume document is missing".to_owned(),
        }),
    }
}
