//! What a store that others change as well tells of their changes, and the text as which it travels. Pure.
//!
//! The text of a notice is the version, the session and the keys, with blanks between; a version or a session that is not
//! known is `-`. Several notices are lines of one text.

use crate::document::{Key, SessionId, Version};

/// What a store that others change as well tells of their changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// These documents were written or deleted.
    Changed {
        /// The version of what was written, if it is known.
        at: Option<Version>,
        /// The session whose commit it was, if it named one.
        by: Option<SessionId>,
        /// Which documents.
        keys: Vec<Key>,
    },
    /// Notices may have been lost: any document may have changed.
    Lost,
}

/// Whoever wants to know what others change.
pub trait Listener: Send + Sync {
    /// Called by a thread of the store's, soon after each change of others (and of one's own), in no order that means
    /// anything. Must not call the store.
    fn notice(&self, notice: &Notice);
}

impl Notice {
    /// What a text says. A line that is not understood tells that something was not told.
    pub(super) fn parse(text: &str) -> impl Iterator<Item = Self> {
        text.split('\n').map(Self::parse_line)
    }

    fn parse_line(line: &str) -> Self {
        let mut words = line.split(' ');
        let (at, by) = (words.next().and_then(known), words.next().and_then(known));
        match (at, by, words.map(str::parse).collect::<Result<Vec<Key>, _>>()) {
            (Some(at), Some(by), Ok(keys)) if !keys.is_empty() => {
                Self::Changed { at: at.map(Version), by, keys }
            }
            _ => Self::Lost,
        }
    }
}

/// What a word stands for, which may be unknown; nothing if it makes no sense.
fn known<T: std::str::FromStr>(word: &str) -> Option<Option<T>> {
    if word == "-" { Some(None) } else { word.parse().ok().map(Some) }
}

/// The word for something that may be unknown.
pub(super) fn word(known: Option<impl ToString>) -> String {
    known.map_or_else(|| "-".to_owned(), |known| known.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn notices_survive_text() {
        let text = "7 00000000000000ab node:5 entry:1:a%20b\n- - volume";
        let notices: Vec<_> = Notice::parse(text).collect();
        let [Notice::Changed { at, by, keys }, unknown] = &notices[..] else { panic!("{notices:?}") };
        assert_eq!((*at, *by), (Some(Version(7)), Some(SessionId(0xab))));
        assert_eq!(keys.iter().map(ToString::to_string).collect::<Vec<_>>(), ["node:5", "entry:1:a%20b"]);
        assert_eq!(*unknown, Notice::Changed { at: None, by: None, keys: vec![Key::Volume] });
        assert_eq!([word(Some(Version(7).0)), word(None::<u64>)], ["7", "-"]);
    }

    #[test]
    fn what_is_not_understood_is_a_loss() {
        for text in ["", "lost", "- -", "- - node:x", "- xyz node:1", "x - node:1", "-1 - node:1", "- node:1"]
        {
            assert_eq!(Notice::parse_line(text), Notice::Lost, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_parse_panic(text in "(-|[0-9]{0,21}) (-|[0-9a-f]{0,17})( [a-z]{0,5}:[%0-9a-f:]{0,5}){0,2}") {
            let _ = Notice::parse(&text).count();
        }
    }
}
