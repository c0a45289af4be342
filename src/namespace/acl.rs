//! POSIX access control lists, as far as they are the server's part: masks, defaults, and their tie to the mode.
//!
//! The kernel checks access with them; the server keeps the list and the mode bits consistent, and derives the list of a
//! new file from its directory's default. The semantics are those of POSIX 1003.1e draft 17, section 23, and acl(5). The
//! bytes are those of the kernel's extended attributes (`linux/posix_acl_xattr.h`).

use super::{NamespaceError, Result};

/// The attribute with the list that controls access.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute with the list that new files in a directory get.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const XATTR_VERSION: u32 = 2;
const ENTRY_LEN: usize = 8;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AclEntry {
    tag: u16,
    permissions: u16,
    id: u32,
}

/// A valid access control list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<AclEntry>,
}

impl Acl {
    /// Reads the kernel's form.
    ///
    /// # Errors
    /// `Invalid` if the bytes are no list, or the list is not valid: it must have the owner, the group and the others
    /// once, in order, and a mask if it names users or groups.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let invalid = || NamespaceError::Invalid("not a valid access control list");
        let (version, rest) = bytes.split_first_chunk::<4>().ok_or_else(invalid)?;
        let (entries, incomplete) = rest.as_chunks::<ENTRY_LEN>();
        if u32::from_le_bytes(*version) != XATTR_VERSION || !incomplete.is_empty() {
            return Err(invalid());
        }
        let entries: Vec<AclEntry> = entries
            .iter()
            .map(|e| AclEntry {
                tag: u16::from_le_bytes([e[0], e[1]]),
                permissions: u16::from_le_bytes([e[2], e[3]]),
                id: u32::from_le_bytes([e[4], e[5], e[6], e[7]]),
            })
            .collect();
        let list = Self { entries };
        if list.is_valid() { Ok(list) } else { Err(invalid()) }
    }

    fn is_valid(&self) -> bool {
        let count = |tag| self.entries.iter().filter(|e| e.tag == tag).count();
        let known = |tag| matches!(tag, USER_OBJ | USER | GROUP_OBJ | GROUP | MASK | OTHER);
        let named = count(USER) + count(GROUP) > 0;
        self.entries.iter().all(|e| known(e.tag) && e.permissions <= 7)
            && self.entries.is_sorted_by_key(|e| e.tag)
            && [USER_OBJ, GROUP_OBJ, OTHER].iter().all(|tag| count(*tag) == 1)
            && count(MASK) <= 1
            && (!named || count(MASK) == 1)
    }

    /// The kernel's form.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = XATTR_VERSION.to_le_bytes().to_vec();
        for entry in &self.entries {
            bytes.extend(entry.tag.to_le_bytes());
            bytes.extend(entry.permissions.to_le_bytes());
            bytes.extend(entry.id.to_le_bytes());
        }
        bytes
    }

    /// Whether the mode bits alone say the same.
    pub fn is_minimal(&self) -> bool {
        self.entries.len() == 3
    }

    fn permissions(&self, tag: u16) -> Option<u32> {
        self.entries.iter().find(|e| e.tag == tag).map(|e| u32::from(e.permissions))
    }

    /// The nine permission bits that go with the list: those of the group are its mask, if it has one.
    pub fn mode(&self) -> u32 {
        let part = |tag| self.permissions(tag).unwrap_or(0);
        let group = self.permissions(MASK).unwrap_or_else(|| part(GROUP_OBJ));
        part(USER_OBJ) << 6 | group << 3 | part(OTHER)
    }

    /// The list after chmod(2) to `mode`.
    #[must_use]
    pub fn with_mode(&self, mode: u32) -> Self {
        self.map_classes(|class, _| mode >> class & 7)
    }

    /// The list and the permission bits of a new file whose directory has this default list, when the caller asked for
    /// `mode`: each class gets what both allow.
    pub fn inherit(&self, mode: u32) -> (Self, u32) {
        let list = self.map_classes(|class, permissions| permissions & (mode >> class & 7));
        let mode = list.mode() & mode;
        (list, mode)
    }

    /// Changes the entry of each class (owner, group or mask, others), given its shift within the mode.
    fn map_classes(&self, change: impl Fn(u32, u32) -> u32) -> Self {
        let group_class = if self.permissions(MASK).is_some() { MASK } else { GROUP_OBJ };
        let mut list = self.clone();
        for entry in &mut list.entries {
            let class = match entry.tag {
                USER_OBJ => 6,
                OTHER => 0,
                tag if tag == group_class => 3,
                _ => continue,
            };
            entry.permissions = change(class, u32::from(entry.permissions)) as u16;
        }
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNDEFINED: u32 = u32::MAX;

    fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let entries = entries.iter().map(|&(tag, permissions, id)| AclEntry { tag, permissions, id });
        Acl { entries: entries.collect() }.to_bytes()
    }

    fn named() -> Acl {
        let bytes = list(&[
            (USER_OBJ, 7, UNDEFINED),
            (USER, 6, 1000),
            (GROUP_OBJ, 5, UNDEFINED),
            (MASK, 6, UNDEFINED),
            (OTHER, 1, UNDEFINED),
        ]);
        Acl::parse(&bytes).unwrap()
    }

    #[test]
    fn the_mask_is_the_group_of_the_mode() {
        assert_eq!(named().mode(), 0o761);
        assert_eq!(named().with_mode(0o640).mode(), 0o640);
        let minimal = Acl::parse(&list(&[(USER_OBJ, 6, 0), (GROUP_OBJ, 4, 0), (OTHER, 0, 0)])).unwrap();
        assert!(minimal.is_minimal());
        assert_eq!(minimal.mode(), 0o640);
        assert_eq!(minimal.with_mode(0o755).mode(), 0o755);
    }

    #[test]
    fn a_new_file_gets_what_both_allow() {
        let (access, mode) = named().inherit(0o666);
        assert_eq!(mode, 0o660);
        assert_eq!(access.mode(), 0o660);
        assert!(!access.is_minimal());
    }

    #[test]
    fn lists_that_are_not_valid() {
        let good = [(USER_OBJ, 6, 0), (GROUP_OBJ, 4, 0), (OTHER, 0, 0)];
        let mut bad: Vec<Vec<u8>> = vec![vec![], vec![2, 0, 0], list(&good[..2]), vec![1, 0, 0, 0]];
        bad.push(list(&[good[0], (USER, 6, 5), good[1], good[2]]));
        bad.push(list(&[good[1], good[0], good[2]]));
        bad.push(list(&[good[0], good[0], good[1], good[2]]));
        bad.push(list(&[(USER_OBJ, 8, 0), good[1], good[2]]));
        bad.push(list(&[good[0], good[1], (OTHER, 0, 0), (0x40, 0, 0)]));
        bad.push(list(&good)[..20].to_vec());
        for bytes in bad {
            assert!(Acl::parse(&bytes).is_err(), "{bytes:?}");
        }
    }
}
