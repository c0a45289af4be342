//! Session documents in their cells. Imports `document` and `store::cells`.

use crate::document::{Document, Key, Session, SessionId, Stored, Version};
use crate::store::StoreError;
use crate::store::cells::{Cell, CellKey, MarkedDocument, StoredCell};

/// Where a session stands.
pub(in crate::lock) fn key(session: SessionId) -> CellKey {
    CellKey::Document(Key::Session(session))
}

/// The session in a cell; none if there is no cell.
///
/// # Errors
/// [`StoreError::Damaged`] if it is something else.
pub(in crate::lock) fn in_cell(
    session: SessionId,
    cell: Option<&StoredCell>,
) -> Result<Option<&Session>, StoreError> {
    let Some(cell) = cell else { return Ok(None) };
    if let Cell::Document(MarkedDocument { before: Some(stored), mark: None }) = &*cell.cell
        && let Document::Session(found) = &*stored.document
        && found.id == session
    {
        return Ok(Some(found));
    }
    Err(StoreError::Damaged {
        key: Key::Session(session).to_string(),
        cause: "it is not this session".to_owned(),
    })
}

/// The cell of a session that takes the place of another. Sessions are never marked: nothing but single compare-and-sets
/// changes them. The version of the document is that of the cell before, which no two writes have in common.
pub(super) fn cell(session: Session, before: Option<&StoredCell>) -> Cell {
    let version = before.map_or(Version(0), |cell| cell.version);
    let stored = Stored { version, document: Document::Session(session).into() };
    Cell::Document(MarkedDocument { before: Some(stored), mark: None })
}
