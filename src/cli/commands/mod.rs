//! The verbs, one a file.

pub(super) mod breaking;
pub(super) mod check;
pub(super) mod format;
pub(super) mod get;
pub(super) mod lock;
pub(super) mod locks;
pub(super) mod mount;
pub(super) mod recover;
pub(super) mod sessions;
pub(super) mod status;
pub(super) mod umount;
