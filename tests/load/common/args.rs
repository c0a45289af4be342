//! Command-line arguments of the load programs: `--name value`, `--name=value`, bare `--flag`s and words.

use super::Res;
use std::str::FromStr;

/// Arguments not yet asked for. Each `take_*` removes what it returns; [`Args::finish`] refuses what is left.
pub(crate) struct Args {
    rest: Vec<String>,
}

impl Args {
    /// The arguments of this process, without its name.
    pub(crate) fn from_env() -> Self {
        let mut rest = Vec::new();
        for arg in std::env::args().skip(1) {
            match arg.split_once('=') {
                // `--require create=0.7` keeps its `=`; only the option's own is split off.
                Some((name, value)) if name.starts_with("--") => {
                    rest.extend([name.to_owned(), value.to_owned()])
                }
                _ => rest.push(arg),
            }
        }
        Self { rest }
    }

    /// The first argument, if it is a word and no option.
    pub(crate) fn take_word(&mut self) -> Option<String> {
        let is_word = self.rest.first().is_some_and(|a| !a.starts_with('-'));
        is_word.then(|| self.rest.remove(0))
    }

    /// Whether the flag was given.
    pub(crate) fn take_flag(&mut self, name: &str) -> bool {
        let before = self.rest.len();
        self.rest.retain(|a| a != name);
        self.rest.len() != before
    }

    /// Every value of an option that may be repeated or hold a list with commas.
    pub(crate) fn take_list(&mut self, name: &str) -> Res<Vec<String>> {
        let mut values = Vec::new();
        while let Some(at) = self.rest.iter().position(|a| a == name) {
            if at + 1 >= self.rest.len() {
                return Err(format!("{name} needs a value; see --help"));
            }
            values.extend(self.rest[at + 1].split(',').map(str::to_owned));
            self.rest.drain(at..=at + 1);
        }
        Ok(values)
    }

    /// The value of an option given at most once.
    pub(crate) fn take<T: FromStr>(&mut self, name: &str) -> Res<Option<T>> {
        let Some(at) = self.rest.iter().position(|a| a == name) else { return Ok(None) };
        if at + 1 >= self.rest.len() {
            return Err(format!("{name} needs a value; see --help"));
        }
        let value = self.rest.remove(at + 1);
        self.rest.remove(at);
        value.parse().map(Some).map_err(|_| format!("{name} {value}: not understood; see --help"))
    }

    /// As [`Args::take`], for an option that must be there.
    pub(crate) fn need<T: FromStr>(&mut self, name: &str) -> Res<T> {
        self.take(name)?.ok_or_else(|| format!("{name} is missing; see --help"))
    }

    /// Refuses arguments that nobody asked for.
    pub(crate) fn finish(self) -> Res<()> {
        match self.rest.first() {
            Some(arg) => Err(format!("{arg}: not an argument of this program; see --help")),
            None => Ok(()),
        }
    }
}
