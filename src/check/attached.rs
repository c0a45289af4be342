//! What stands beside nodes (contents, attributes, orphans), and the sessions. Imports `document`.

use super::table::What;
use super::{Judge, Mode, Rule};
use crate::document::{ContentPlace, Document, Key, Kind, SessionState};

const XATTR_VALUE_BYTES_MAX: usize = 65_536;
const XATTR_NAME_BYTES_MAX: usize = 255;

impl Judge<'_> {
    /// Takes in one content document.
    pub(super) fn content(&mut self, key: &Key, document: Option<&Document>) {
        let &Key::Content(ino) = key else { return };
        self.report.counts.contents += 1;
        let inline_max =
            self.volume.iter().flatten().map(|volume| volume.inline_max).next().unwrap_or(u32::MAX);
        let Some(record) = self.table.get_mut(ino) else {
            if self.node_is_absent(ino) {
                self.report.accuse(Rule::ContentStray, key, format_args!("its node is missing"));
            }
            return;
        };
        record.content = true;
        match record.what {
            What::Unreadable => return,
            What::Regular(ContentPlace::Inline) => {}
            _ => {
                let detail = format_args!("its node keeps no bytes in a content document");
                self.report.accuse(Rule::ContentStray, key, detail);
                return;
            }
        }
        let size = record.size;
        let Some(Document::Content(content)) = document else { return };
        let len = content.bytes.len();
        if len > inline_max as usize {
            let detail = format_args!("it has {len} bytes, and the volume allows {inline_max}");
            self.report.accuse(Rule::ContentLength, key, detail);
        } else if len > size as usize {
            let detail = format_args!("it has {len} bytes, and the file has {size}");
            self.report.accuse(Rule::ContentLength, key, detail);
        }
    }

    /// Takes in one extended attribute.
    pub(super) fn xattr(&mut self, key: &Key, document: Option<&Document>) {
        let Key::Xattr(ino, name) = key else { return };
        self.report.counts.xattrs += 1;
        if let Some(record) = self.table.get_mut(*ino) {
            record.xattrs_seen = record.xattrs_seen.saturating_add(1);
        } else if self.node_is_absent(*ino) {
            self.report.accuse(Rule::XattrStray, key, format_args!("its node is missing"));
        }
        if !(1..=XATTR_NAME_BYTES_MAX).contains(&name.len()) {
            let detail = format_args!("the name has {} bytes", name.len());
            self.report.accuse(Rule::XattrLength, key, detail);
        }
        match document {
            Some(Document::Xattr(xattr)) if xattr.value.len() > XATTR_VALUE_BYTES_MAX => {
                let detail = format_args!("the value has {} bytes", xattr.value.len());
                self.report.accuse(Rule::XattrLength, key, detail);
            }
            _ => {}
        }
    }

    /// Takes in one orphan document, after the sessions and the nodes.
    pub(super) fn orphan(&mut self, key: &Key, document: Option<&Document>) {
        let &Key::Orphan(ino) = key else { return };
        self.report.counts.orphans += 1;
        match self.table.get_mut(ino) {
            Some(record) => {
                record.orphan = true;
                let nlink = record.nlink;
                if nlink > 0 {
                    let detail = format_args!("its node has nlink {nlink}, so it is no orphan");
                    self.report.accuse(Rule::OrphanNamed, key, detail);
                    return;
                }
            }
            None => self.orphans_without_node.push(ino),
        }
        let Some(Document::Orphan(orphan)) = document else { return };
        let session = orphan.session;
        if self.inputs.mode == Mode::Offline {
            let detail = format_args!("session {session} left it to be collected");
            self.report.accuse(Rule::OrphanLeft, key, detail);
            return;
        }
        let shared = matches!(self.inputs.mode, Mode::Shared { .. });
        let dead = match self.sessions.get(&session) {
            Some(None | Some(SessionState::Joining | SessionState::Live)) => return,
            // It is accused itself, and whoever recovers it collects this.
            Some(Some(SessionState::Fenced)) if shared => return,
            Some(Some(SessionState::Fenced)) => "fenced",
            Some(Some(SessionState::Recovered)) => "recovered",
            None if self.gap(Kind::Session) => return,
            None => "gone",
        };
        self.report.accuse(Rule::OrphanSession, key, format_args!("its session {session} is {dead}"));
    }

    /// Takes in one session.
    pub(super) fn session(&mut self, key: &Key, document: Option<&Document>) {
        let &Key::Session(id) = key else { return };
        self.report.counts.sessions += 1;
        let session = match document {
            Some(Document::Session(session)) => session,
            _ => {
                self.sessions.insert(id, None);
                return;
            }
        };
        self.sessions.insert(id, Some(session.state));
        if session.id != id {
            let detail = format_args!("the session under this key says that it is {}", session.id);
            self.report.accuse(Rule::SessionKey, key, detail);
        }
        let wrong = match (session.state, self.inputs.mode) {
            (SessionState::Fenced, _) => Rule::SessionFenced,
            (_, Mode::Offline) => Rule::SessionLeft,
            (SessionState::Live, Mode::Online { sessions }) if !sessions.contains(&id) => Rule::SessionLeft,
            _ => return,
        };
        let what = if wrong == Rule::SessionFenced { "fenced and not recovered" } else { "not ended" };
        let (pid, host, at) = (session.pid, &session.host, &session.mount_point);
        self.report.accuse(wrong, key, format_args!("{what}: process {pid} on {host}, mounted at {at:?}"));
    }

    /// Called when all sessions have been read: judges those of the process that the check runs in.
    pub(super) fn own_sessions(&mut self) {
        let (Mode::Online { sessions } | Mode::Shared { sessions }) = self.inputs.mode else { return };
        for session in sessions {
            let detail = match self.sessions.get(session) {
                None if !self.gap(Kind::Session) => "the session of this mount is missing",
                Some(Some(SessionState::Recovered)) => {
                    "the session of this mount has been recovered by another"
                }
                _ => continue, // A fenced one is accused already.
            };
            self.report.accuse(Rule::SessionOwn, &Key::Session(*session), format_args!("{detail}"));
        }
    }
}
