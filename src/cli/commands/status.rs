//! `lockwood status`.

use std::process::ExitCode;

use serde_json::{Value, json};

use crate::cli::Failure;
use crate::cli::args::Status;
use crate::cli::output::{print, print_json};
use crate::cli::target::{Target, no_control, read_control};
use crate::lock::printable;
use crate::store::embedded::Tuning;
use crate::store::embedded::open::OpenVolume;

pub(in crate::cli) fn run(arguments: &Status) -> Result<ExitCode, Failure> {
    let status: Value = match Target::find(&arguments.target)? {
        Target::Mount(mount_point) => {
            let text =
                read_control(&mount_point, "status")?.ok_or_else(|| no_control(&mount_point, "status"))?;
            serde_json::from_str(&text)?
        }
        Target::Shared(volume) => {
            let opened = volume.open()?.1;
            json!({
                "store": volume.to_string(),
                "mount_point": null,
                "volume": opened.id,
                "locking": opened.locking,
                "format": opened.format,
            })
        }
        Target::Store(store) => {
            let volume = OpenVolume::open(&store, &[], Tuning::default())?;
            let status = json!({
                "store": store.display().to_string(),
                "mount_point": null,
                "volume": volume.volume.id,
                "locking": volume.volume.locking,
                "format": volume.volume.format,
                "crashed": volume.crashed(),
            });
            volume.close()?;
            status
        }
    };
    if arguments.json {
        print_json(&status)?;
    } else {
        print(&words(&status, ""))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// One line a value; the parts of a part are named after it.
fn words(value: &Value, prefix: &str) -> String {
    let Value::Object(fields) = value else { return String::new() };
    let mut lines = String::new();
    for (name, value) in fields {
        let name = format!("{prefix}{}", name.replace('_', " "));
        match value {
            Value::Object(_) => lines.push_str(&words(value, &format!("{name}: "))),
            Value::Null => {}
            // Worth a line only where it is to be acted on.
            Value::Bool(false) if name == "fenced" => {}
            Value::Bool(true) if name == "fenced" => {
                lines.push_str("fenced: true, so nothing is changed any more; unmount and mount again\n");
            }
            Value::String(text) => lines.push_str(&format!("{name}: {}\n", printable(text.as_bytes()))),
            other => lines.push_str(&format!("{name}: {other}\n")),
        }
    }
    lines
}
