//! What verbs print: tables, JSON, and progress on long work.

use std::io::{self, Write as _};
use std::time::{Duration, UNIX_EPOCH};

use console::{Alignment, measure_text_width, pad_str};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::ambient;
use crate::lock::{Timestamp, printable};

/// Prints to standard output. A reader that has gone away (`| head`) is no error.
pub(super) fn print(text: &str) -> io::Result<()> {
    print_to_reader(text).map(drop)
}

/// The same; false if the reader has gone away, for whoever would print more and more.
pub(super) fn print_to_reader(text: &str) -> io::Result<bool> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(io::Error::new(e.kind(), format!("cannot write to standard output: {e}"))),
        Ok(()) => Ok(true),
    }
}

/// Prints a value as JSON.
pub(super) fn print_json(value: &Value) -> io::Result<()> {
    print(&format!("{value:#}\n"))
}

/// Rows under a header, in columns.
pub(super) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    // Much of what is shown others have named.
    let on_lines =
        |row: &Vec<String>| row.iter().map(|cell| printable(cell.as_bytes()).into_owned()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(on_lines).collect();
    let mut widths: Vec<usize> = header.iter().map(|h| measure_text_width(h)).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(measure_text_width(cell));
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let pad = |(cell, width): (&str, &usize)| pad_str(cell, *width, Alignment::Left, None).into_owned();
        let padded: Vec<String> = cells.zip(&widths).map(pad).collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    let mut text = line(&mut header.iter().copied());
    for row in rows {
        text.push_str(&line(&mut row.iter().map(String::as_str)));
    }
    text
}

/// How long ago that was, by the wall clock.
pub(super) fn age(since: Timestamp) -> String {
    let now = ambient::wall_clock().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let milliseconds = now.saturating_sub(u128::from(since.unix_ms));
    format!("{}.{:03} s", milliseconds / 1000, milliseconds % 1000)
}

/// A wait whose end is known, on standard error; shown on a terminal only. Its position is in milliseconds.
pub(super) fn countdown(message: &'static str, whole: Duration) -> ProgressBar {
    let length = u64::try_from(whole.as_millis()).unwrap_or(u64::MAX);
    let bar = ProgressBar::new(length).with_message(message);
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {elapsed}") {
        bar.set_style(style);
    }
    bar
}

/// Something to look at while it takes long; shown on a terminal only.
pub(super) fn spinner(message: String) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(message);
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {pos} ({elapsed})") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_line_for_each_row_and_drives_no_terminal() {
        let rows = [vec!["/a".to_owned(), "sh -c sleep 2\n/fake \u{1b}[2J\u{7}é".to_owned()]];
        let text = table(&["PATH", "OPERATION"], &rows);
        assert_eq!(text, "PATH  OPERATION\n/a    sh -c sleep 2\\n/fake \\u{1b}[2J\\u{7}é\n");
    }
}
