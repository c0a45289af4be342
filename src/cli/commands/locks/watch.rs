//! `lockwood locks --watch`: looks again and again. On a terminal each look takes the place of the one before; elsewhere
//! it is appended under the time.

use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use console::{Term, truncate_str};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::look;
use crate::ambient;
use crate::cli::Failure;
use crate::cli::args::Locks;
use crate::cli::output::print_to_reader;
use crate::cli::target::{Target, mount_of};
use crate::lock::Timestamp;

/// Looks until a signal or the end of its reader ends it, with success; or until the mount is gone, which is a failure.
pub(super) fn run(arguments: &Locks, target: &Target, interval: Duration) -> Result<ExitCode, Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let handle = signals.handle();
    let (sender, stopped) = mpsc::channel();
    let thread = ambient::spawn("lockwood-signals", move || {
        if signals.forever().next().is_some() {
            let _ = sender.send(()); // Who does not listen any more ends anyhow.
        }
    })?;
    // Buffered, so that a look appears at once.
    let screen = Some(Term::buffered_stdout()).filter(|screen| !arguments.json && screen.is_term());
    let ended = follow(arguments, target, interval, screen.as_ref(), || stopped.recv_timeout(interval));
    if let Some(screen) = &screen {
        screen.show_cursor()?;
        screen.flush()?;
    }
    handle.close();
    let _ = thread.join(); // It only passes a signal on.
    ended.map(|()| ExitCode::SUCCESS)
}

fn follow(
    arguments: &Locks,
    target: &Target,
    interval: Duration,
    screen: Option<&Term>,
    pause: impl Fn() -> Result<(), RecvTimeoutError>,
) -> Result<(), Failure> {
    let mut drawn_before = false;
    loop {
        // Asked of the mount table before anything is read: what is below the mount point is not for us.
        if let Target::Mount(mount_point) = target
            && mount_of(mount_point)?.as_deref() != Some(mount_point)
        {
            return Err(format!("{}: it is not mounted any more", mount_point.display()).into());
        }
        let text = look(arguments, target)?;
        let now = Timestamp::before(ambient::wall_clock(), Duration::ZERO);
        let is_read = match screen {
            Some(screen) => {
                let title = format!(
                    "{} every {} s, {now}; ^C ends",
                    arguments.target.display(),
                    interval.as_secs_f64()
                );
                redraw(screen, &format!("{title}\n\n{text}"), !drawn_before)?;
                true
            }
            None if arguments.json => print_to_reader(&text)?,
            None => print_to_reader(&format!("{now}\n{text}\n"))?,
        };
        if !is_read {
            return Ok(());
        }
        drawn_before = true;
        match pause() {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// Writes over what is there, line by line, so that nothing flickers.
fn redraw(screen: &Term, text: &str, first: bool) -> std::io::Result<()> {
    if first {
        screen.hide_cursor()?;
        screen.clear_screen()?;
    }
    let (height, width) = screen.size();
    let (height, width) = (usize::from(height).max(2), usize::from(width));
    let lines: Vec<&str> = text.lines().collect();
    let shown = if lines.len() < height { lines.len() } else { height - 2 };
    screen.move_cursor_to(0, 0)?;
    for line in lines.iter().take(shown) {
        screen.clear_line()?;
        screen.write_line(&truncate_str(line, width, "…"))?;
    }
    if shown < lines.len() {
        screen.clear_line()?;
        screen.write_str(&format!("… and {} lines more", lines.len() - shown))?;
    }
    screen.clear_to_end_of_screen()?;
    screen.flush()
}
