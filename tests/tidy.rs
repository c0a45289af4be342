//! The house rules that a program can hold: imports point down, every module is on the map, files keep one subject.
//! Each failure prints the mend.

#![allow(clippy::unwrap_used)] // A rule that cannot be checked has failed.

use std::fs;
use std::path::{Path, PathBuf};

/// The layers from the bottom up, each with the layers that it may import.
const MAY_IMPORT: [(&str, &str); 13] = [
    ("ambient", ""),
    ("later", "ambient"),
    ("mounts", "ambient"),
    ("rules", ""),
    ("shell", ""),
    ("document", ""),
    ("store", "ambient later rules mounts shell document"),
    ("content", "ambient rules document store"),
    ("lock", "ambient later rules document store"),
    ("check", "ambient rules document store content"),
    ("namespace", "ambient rules document store content lock"),
    ("fuse", "ambient rules mounts shell document store content lock check namespace"),
    ("cli", "ambient rules mounts shell document store content lock check namespace fuse"),
];

const LINES_MAX: usize = 500;
/// One `impl` of one trait with a method a request cannot be cut.
const LONGER: [(&str, usize); 1] = [("fuse/adapter.rs", 670)];
/// Starts simulated threads, which are none of the machine's.
const SIMULATED_THREADS: &str = "lock/table/schedules.rs";
const LINE_WIDTH_MAX: usize = 125;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for item in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let path = item.path();
        if item.file_type().unwrap().is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn sources() -> Vec<(String, String)> {
    let src = root().join("src");
    let name = |path: &Path| path.strip_prefix(&src).unwrap().display().to_string();
    files(&src, "rs").iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect()
}

fn layer(file: &str) -> &str {
    file.split(['/', '.']).next().unwrap()
}

/// The layers that a file names in paths from the crate's root.
fn imports(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
        for rest in line.split("crate::").skip(1) {
            match rest.strip_prefix('{') {
                Some(group) => found.extend(group.split(['}', ',']).map(|part| layer_of_path(part.trim()))),
                None => found.push(layer_of_path(rest)),
            }
        }
    }
    found
}

fn layer_of_path(path: &str) -> &str {
    path.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap()
}

#[test]
fn imports_point_down() {
    let mut wrong = Vec::new();
    for (file, text) in sources() {
        if file.contains("/tests") {
            continue; // A test may ask any judge.
        }
        let own = layer(&file);
        let Some((_, allowed)) = MAY_IMPORT.iter().find(|(name, _)| *name == own) else {
            assert!(
                matches!(own, "lib" | "main"),
                "src/{file}: give the layer `{own}` its place in tests/tidy.rs"
            );
            continue;
        };
        let is_layer = |name: &&str| MAY_IMPORT.iter().any(|(layer, _)| layer == name);
        for import in imports(&text).into_iter().filter(is_layer) {
            if import != own && !allowed.split(' ').any(|layer| layer == import) {
                wrong.push(format!(
                    "src/{file} imports {import}: `{own}` may import `{allowed}` only; move what it needs down"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_check_of_imports_can_fail() {
    let text =
        "use crate::fuse::mount;\nuse crate::{ambient, cli};\n// crate::namespace\nlet x = crate::lock::y();";
    assert_eq!(imports(text), ["fuse", "ambient", "cli", "", "lock"]);
}

#[test]
fn the_map_names_every_module() {
    let map = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let mut missing = Vec::new();
    for (file, _) in sources() {
        let (directory, name) = file.rsplit_once('/').unwrap_or(("", &file));
        let is_test = file.contains("tests") || name == "conformance.rs";
        let named =
            if name == "mod.rs" { map.contains(&format!("{directory}/")) } else { map.contains(name) };
        if !named && !is_test {
            missing.push(format!(
                "ARCHITECTURE.md does not name src/{file}: add a line that says what it is for"
            ));
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn files_say_their_subject_and_keep_to_it() {
    let mut wrong = Vec::new();
    let tests = files(&root().join("tests"), "rs");
    let tests = tests.iter().map(|path| (path.display().to_string(), fs::read_to_string(path).unwrap()));
    for (file, text) in sources().into_iter().chain(tests) {
        if !text.starts_with("//!") {
            wrong.push(format!("{file}: begin with `//!` and say what the file owns"));
        }
        let most = LONGER.iter().find(|(longer, _)| *longer == file).map_or(LINES_MAX, |(_, most)| *most);
        if text.lines().count() > most {
            wrong.push(format!("{file}: longer than {most} lines; give each subject a file"));
        }
        if let Some(line) = text.lines().position(|line| line.chars().count() > LINE_WIDTH_MAX) {
            wrong.push(format!("{file}:{}: longer than {LINE_WIDTH_MAX} characters", line + 1));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The errno of an error is decided in one place, and the clock is read in one place.
#[test]
fn some_things_have_one_place() {
    let mut wrong = Vec::new();
    for (file, text) in sources() {
        let in_front = file.starts_with("fuse/") || file.starts_with("cli/");
        if text.contains("Errno::E") && !in_front {
            wrong.push(format!("src/{file}: errno belongs to src/fuse/errno.rs"));
        }
        let clocks = ["SystemTime::now", "Instant::now", "thread::spawn("];
        if clocks.iter().any(|clock| text.contains(clock))
            && file != "ambient.rs"
            && !file.contains("tests")
            && file != SIMULATED_THREADS
        {
            wrong.push(format!("src/{file}: time and threads come from src/ambient.rs"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
