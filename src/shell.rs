//! Words of commands that people are told to run, as a shell takes them. Every layer but `document` may import it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

/// A path, a URL or a name, in quotes where a shell would take it for something else.
pub fn quoted(word: &(impl AsRef<OsStr> + ?Sized)) -> String {
    let bytes = word.as_ref().as_bytes();
    // What holds a zero byte can be no argument, and is only shown.
    let quoted = shlex::bytes::try_quote(bytes).unwrap_or(bytes.into());
    String::from_utf8_lossy(&quoted).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_shell_would_take_for_something_else_is_quoted() {
        assert_eq!(quoted("/mnt/tree-1_a.b"), "/mnt/tree-1_a.b");
        assert_eq!(quoted("/mnt/my tree"), "'/mnt/my tree'");
        assert_eq!(quoted("redis://h/0?prefix=a&tls=1"), "'redis://h/0?prefix=a&tls=1'");
        for word in ["/a; rm b", "/it's", "$(reboot)", "", "/a\nb"] {
            let quoted = quoted(word);
            assert_eq!(shlex::split(&quoted).unwrap(), [word], "{quoted}");
        }
        assert_eq!(quoted(OsStr::from_bytes(b"/\xffa b")), "'/\u{fffd}a b'");
    }
}
