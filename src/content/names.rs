//! Where a byte of a file is kept: how a file is cut into segments and what each segment's backing file is called. Pure:
//! no I/O. Imports only the errors of this layer.
//!
//! What is hard: offsets go up to the largest `i64`, so every sum is checked once, in [`range_end`]; after that no
//! arithmetic here can overflow.

use std::ffi::OsStr;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use super::error::ContentError;

/// The size of the largest file: 8 EiB - 1, which is what an offset of the kernel can say.
pub const MAX_SIZE: u64 = i64::MAX.unsigned_abs();

/// The bytes of a file that one backing file holds: 1 TiB, less than the limit of any host worth the name.
pub const SEGMENT_BYTES: u64 = 1 << 40;

/// How many directories the backing files are spread over, by the low byte of the inode.
pub(super) const SHARDS: usize = 256;

/// The shard of an inode.
pub(super) fn shard_of(ino: u64) -> usize {
    usize::from(ino.to_le_bytes()[0])
}

/// The directory of a shard.
pub(super) fn shard_path(root: &Path, shard: usize) -> PathBuf {
    root.join(format!("{shard:02x}"))
}

/// The backing file of one segment of an inode.
pub(super) fn segment_path(root: &Path, ino: u64, index: u64) -> PathBuf {
    let shard = shard_of(ino);
    root.join(match index {
        0 => format!("{shard:02x}/{ino:016x}"),
        _ => format!("{shard:02x}/{ino:016x}.{index:x}"),
    })
}

/// The inode and the segment that a file in a shard's directory holds; none if no backing file is called so. Only the
/// exact form that [`segment_path`] writes is accepted, so that no segment has two names.
pub(super) fn parse_name(shard: usize, name: &OsStr) -> Option<(u64, u64)> {
    let name = name.to_str()?;
    let (ino_text, index_text) = match name.split_once('.') {
        Some((ino, index)) => (ino, Some(index)),
        None => (name, None),
    };
    let ino = u64::from_str_radix(ino_text, 16).ok()?;
    let index = index_text.map_or(Some(0), |text| u64::from_str_radix(text, 16).ok())?;
    let written = segment_path(Path::new(""), ino, index);
    (shard_of(ino) == shard && written.file_name() == Some(OsStr::new(name))).then_some((ino, index))
}

/// The end of a range, exclusive.
///
/// # Errors
/// `TooLarge` if it lies beyond [`MAX_SIZE`].
pub(super) fn range_end(offset: u64, len: u64) -> Result<u64, ContentError> {
    match offset.checked_add(len) {
        Some(end) if end <= MAX_SIZE => Ok(end),
        _ => Err(ContentError::TooLarge { offset, len }),
    }
}

/// The part of a range that lies in one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The segment.
    pub(super) index: u64,
    /// Where the piece begins in the segment.
    pub(super) start: u64,
    /// How long it is; never 0.
    pub(super) len: u64,
}

/// How files are cut. The size of a segment is a parameter so that tests can cross many borders with few bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    segment_bytes: NonZeroU64,
}

impl Cut {
    /// Cuts files every so many bytes.
    pub(super) fn new(segment_bytes: NonZeroU64) -> Self {
        Self { segment_bytes }
    }

    /// The segment that holds the byte at `offset`, and where in it.
    pub(super) fn locate(self, offset: u64) -> (u64, u64) {
        (offset / self.segment_bytes, offset % self.segment_bytes)
    }

    /// The offset in the file of a byte of a segment; saturates for a segment that no file has.
    pub(super) fn offset(self, index: u64, start: u64) -> u64 {
        index.saturating_mul(self.segment_bytes.get()).saturating_add(start)
    }

    /// The part of `offset..end` that lies in the segment `index`.
    pub(super) fn clip(self, index: u64, offset: u64, end: u64) -> Option<Piece> {
        let base = self.offset(index, 0);
        let start = offset.max(base);
        let end = end.min(self.offset(index, self.segment_bytes.get()));
        (start < end).then(|| Piece { index, start: start - base, len: end - start })
    }

    /// The pieces of `offset..end`, in order. Lazy: a range may span millions of segments.
    pub(super) fn pieces(self, offset: u64, end: u64) -> impl Iterator<Item = Piece> {
        let first = offset / self.segment_bytes;
        (first..).map_while(move |index| self.clip(index, offset, end))
    }

    /// The last segment that a file may have.
    pub(super) fn last_index(self) -> u64 {
        (MAX_SIZE - 1) / self.segment_bytes
    }

    /// Whether a piece is the whole of its segment.
    pub(super) fn is_whole(self, piece: Piece) -> bool {
        piece.len == self.segment_bytes.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(bytes: u64) -> Cut {
        Cut::new(NonZeroU64::new(bytes).unwrap())
    }

    #[test]
    fn names_are_as_documented() {
        let root = Path::new("/s/content");
        assert_eq!(segment_path(root, 0x1234, 0), Path::new("/s/content/34/0000000000001234"));
        assert_eq!(segment_path(root, u64::MAX, 0x1f), Path::new("/s/content/ff/ffffffffffffffff.1f"));
    }

    #[test]
    fn names_are_read_back() {
        for (ino, index) in [(0, 0), (1, 1), (0xabcd, 0x7f_ffff), (u64::MAX, u64::MAX)] {
            let path = segment_path(Path::new(""), ino, index);
            assert_eq!(parse_name(shard_of(ino), path.file_name().unwrap()), Some((ino, index)));
        }
    }

    #[test]
    fn other_names_are_refused() {
        for name in [
            "",
            "12",
            "0000000000001234.0",
            "0000000000001234.01",
            "0000000000001234.",
            "0000000000001234.F",
            "0000000000001234.1.2",
            "000000000000ab34".to_uppercase().as_str(),
            "+000000000001234",
            "0000000000001235",
            "0000000000001234.tmp",
        ] {
            assert_eq!(parse_name(0x34, OsStr::new(name)), None, "{name}");
        }
    }

    #[test]
    fn a_range_may_end_at_the_largest_size_and_not_beyond() {
        assert_eq!(range_end(MAX_SIZE, 0).unwrap(), MAX_SIZE);
        assert_eq!(range_end(MAX_SIZE - 1, 1).unwrap(), MAX_SIZE);
        assert!(matches!(range_end(MAX_SIZE, 1), Err(ContentError::TooLarge { .. })));
        assert!(matches!(range_end(u64::MAX, u64::MAX), Err(ContentError::TooLarge { .. })));
    }

    #[test]
    fn pieces_cover_a_range_without_gaps() {
        let pieces: Vec<Piece> = cut(10).pieces(8, 31).collect();
        let expected = [(0, 8, 2), (1, 0, 10), (2, 0, 10), (3, 0, 1)];
        assert_eq!(pieces, expected.map(|(index, start, len)| Piece { index, start, len }));
        assert_eq!(cut(10).pieces(8, 8).count(), 0);
    }

    #[test]
    fn the_last_segment_of_the_largest_file_is_cut_like_any_other() {
        let cut = cut(SEGMENT_BYTES);
        let pieces: Vec<Piece> = cut.pieces(MAX_SIZE - 2, MAX_SIZE).collect();
        assert_eq!(pieces, [Piece { index: (1 << 23) - 1, start: SEGMENT_BYTES - 3, len: 2 }]);
    }
}
